"""The shuffler and the aggregator, over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import Cohort, Via
from distrust.common.messages.status import StatementList
from distrust.common.web.client import Http, Patience, Peer

PATIENCE = Patience(first=0.2, longest=2.0, total=10.0)
"""Short: clients wait behind a call that opens a cohort, and they are patient themselves. Collectors try for ever."""

LONG_POLL = 25.0
CONNECTIONS = 256
"""Each open cohort holds one long poll, as long as there are enough."""

TURN = 4.0
"""Seconds in which all cohorts have had a connection, where there are more cohorts than connections."""


def long_poll(polls: int) -> float:
    """Return the seconds that one of so many long polls may take."""
    most = CONNECTIONS * 3 // 4
    return LONG_POLL if polls <= most else TURN * most / polls


class HttpIntermediaries:
    """Both S behind their URLs; `token` is the operator's, which they share with us."""

    def __init__(self, shuffler: str, aggregator: str, token: str | None, http: Http | None = None) -> None:
        self._http = http or Http(PATIENCE, connections=CONNECTIONS)
        self._polls = 0  # under way, or waiting for a connection
        self._peers: dict[Via, Peer] = {
            "shuffler": self._http.peer(shuffler, token),
            "aggregator": self._http.peer(aggregator, token),
        }

    async def open(self, cohort: Cohort) -> None:
        await self._peers[cohort.via].put(f"/v1/cohorts/{cohort.cohort}", cohort, Cohort)

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        with self._polling() as wait:
            told: dict[str, str | int | float] = {"after": after, "wait": wait}
            return await self._peers["aggregator"].get(f"/v1/cohorts/{cohort.cohort}/statements", StatementList, told)

    async def collect(self, cohort: Cohort) -> BatchAnswer:
        with self._polling() as wait:
            return await self._peers[cohort.via].get(f"/v1/cohorts/{cohort.cohort}/batch", BatchAnswer, {"wait": wait})

    @contextmanager
    def _polling(self) -> Iterator[float]:
        """Count one more long poll. Yield the seconds that it may take, so that the next cohort gets its connection."""
        self._polls += 1
        try:
            yield long_poll(self._polls)
        finally:
            self._polls -= 1

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()
