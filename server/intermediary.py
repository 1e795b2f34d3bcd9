"""Calls the shuffler and the aggregator over HTTP."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import DeliveryList, PrunedRun, Settled, StatementList
from distrust.common.protocol.web.client import Http, Patience, Peer
from distrust.common.wire import Via
from distrust.server.runs.intermediaries import Intermediaries

PATIENCE = Patience(first=0.2, longest=2.0, total=10.0)
"""Short, because clients wait while a cohort is opened, and repeat their request. Collectors repeat without end."""

LONG_POLL = 25.0  # seconds of one long poll while connections suffice
MOST_BATCH = 2**30
"""Bytes of the longest batch: a million sealed records of some numbers have hundreds of megabytes."""

CONNECTIONS = 256
"""At most; each open cohort holds one for its long poll while they suffice."""

TURN = 4.0
"""Seconds in which every cohort gets a connection where there are more cohorts than connections."""


def long_poll(polls: int) -> float:
    """Return the seconds that each of `polls` simultaneous long polls may take."""
    most = CONNECTIONS * 3 // 4
    return LONG_POLL if polls <= most else TURN * most / polls


class HttpIntermediaries(Intermediaries):
    """The two intermediaries behind their URLs.

    token  returns the operator's token, which they share with the server, as it is now.
    """

    def __init__(
        self, shuffler: str, aggregator: str, token: Callable[[], str | None], http: Http | None = None
    ) -> None:
        self._http = http or Http(PATIENCE, connections=CONNECTIONS, most=MOST_BATCH)
        self._polls = 0  # under way, or waiting for a connection
        self._urls: dict[Via, str] = {"shuffler": shuffler, "aggregator": aggregator}
        self._token = token

    def _peer(self, via: Via) -> Peer:
        return self._http.peer(self._urls[via], self._token())

    async def open(self, cohort: Cohort) -> None:
        await self._peer(cohort.via).put(f"/v1/cohorts/{cohort.address}", cohort, Cohort)

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        with self._polling() as wait:
            query: dict[str, str | int | float] = {"after": after, "wait": wait}
            return await self._peer("aggregator").get(f"/v1/cohorts/{cohort.address}/statements", StatementList, query)

    async def delivered(self, run_digest: bytes, via: Via, after: int) -> DeliveryList:
        path = f"/v1/runs/{run_digest.hex()}/delivered"
        return await self._peer(via).get(path, DeliveryList, {"after": after})

    async def settle(self, run_digest: bytes, via: Via, cohorts: Sequence[str]) -> None:
        path = f"/v1/runs/{run_digest.hex()}/settled"
        await self._peer(via).post(path, Settled(cohorts=list(cohorts)), Settled)

    async def prune(self, run_digest: bytes, via: Via) -> None:
        await self._peer(via).delete(f"/v1/runs/{run_digest.hex()}", PrunedRun)

    async def collect(self, cohort: Cohort, *, opening: bool) -> BatchAnswer:
        peer, path = self._peer(cohort.via), f"/v1/cohorts/{cohort.address}"
        with self._polling() as wait:
            if opening:
                return await peer.put(path, cohort, BatchAnswer, {"wait": wait})
            return await peer.get(f"{path}/batch", BatchAnswer, {"wait": wait})

    @contextmanager
    def _polling(self) -> Iterator[float]:
        """Count one more long poll. Yield the seconds that it may take, so that every cohort gets a connection."""
        self._polls += 1
        try:
            yield long_poll(self._polls)
        finally:
            self._polls -= 1

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
