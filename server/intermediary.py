"""The shuffler and the aggregator, over HTTP."""

from common.messages.batch import BatchAnswer
from common.messages.cohort import Cohort, Via
from common.web.client import Http, Patience, Peer

PATIENCE = Patience(first=0.2, longest=2.0, total=10.0)
"""Short: clients wait behind a call that opens a cohort, and they are patient themselves. Collectors try for ever."""

LONG_POLL = 25.0
CONNECTIONS = 256
"""Each open cohort holds one long poll."""


class HttpIntermediaries:
    """Both S behind their URLs; `token` is the operator's, which they share with us."""

    def __init__(self, shuffler: str, aggregator: str, token: str | None, http: Http | None = None) -> None:
        self._http = http or Http(PATIENCE, connections=CONNECTIONS)
        self._peers: dict[Via, Peer] = {
            "shuffler": self._http.peer(shuffler, token),
            "aggregator": self._http.peer(aggregator, token),
        }

    async def open(self, cohort: Cohort) -> None:
        await self._peers[cohort.via].put(f"/v1/cohorts/{cohort.cohort}", cohort, Cohort)

    async def collect(self, cohort: Cohort) -> BatchAnswer:
        return await self._peers[cohort.via].get(f"/v1/cohorts/{cohort.cohort}/batch", BatchAnswer, {"wait": LONG_POLL})

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()
