"""Implements `Transport` over HTTP: the server for rounds and tickets, the cohort's intermediary for messages."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from distrust.common.errors import Unavailable
from distrust.common.messages.cohort import Cohort, KeyHashes, TicketAnswer, TicketRequest
from distrust.common.messages.status import StageView, StatementList
from distrust.common.messages.upload import ActionAnswer, ActionRequest, Departure, Upload, UploadAnswer
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import RunList
from distrust.common.run.round import RoundView
from distrust.common.web.client import Http, Patience, Peer


@dataclass(frozen=True, slots=True)
class Addresses:
    """Base addresses of the three services."""

    server: str
    shuffler: str
    aggregator: str


class HttpTransport:
    """The services of one run. Every call is retried until it is answered or the patience of `http` is over.

    Calls carry no operator's token: a client proves with its ticket what it may do.
    """

    def __init__(self, http: Http, addresses: Addresses, run: str) -> None:
        self.run = run
        self._server = http.peer(addresses.server)
        shuffler, aggregator = http.peer(addresses.shuffler), http.peer(addresses.aggregator)
        self._intermediaries = {"shuffler": shuffler, "aggregator": aggregator}

    async def round(self, after: int, wait: float) -> RoundView:
        return await self._server.get(f"/v1/runs/{self.run}/round", RoundView, {"after": after, "wait": wait})

    async def config(self) -> RunConfig:
        return await self._server.get(f"/v1/runs/{self.run}/config", RunConfig)

    async def tickets(self, request: TicketRequest) -> TicketAnswer:
        return await self._server.post(f"/v1/runs/{self.run}/tickets", request, TicketAnswer)

    async def terms(self, cohort: Cohort) -> Cohort:
        return await self._peer(cohort).get(f"/v1/cohorts/{cohort.cohort}/terms", Cohort)

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        return await self._server.get(f"/v1/runs/{self.run}/cohorts/{cohort.cohort}/keys", KeyHashes)

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        path = f"/v1/runs/{self.run}/cohorts/{cohort.cohort}/statements"
        return await self._server.get(path, StatementList, {"after": after, "wait": wait})

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        return await self._peer(cohort).post(f"/v1/cohorts/{cohort.cohort}/actions", request, ActionAnswer)

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        route = "reports" if upload.stage == "report" else upload.stage
        return await self._peer(cohort).post(f"/v1/cohorts/{cohort.cohort}/{route}", upload, UploadAnswer)

    async def stage(self, cohort: Cohort, after: str, slots: Sequence[int], wait: float) -> StageView:
        params: dict[str, str | int | float] = {"after": after, "wait": wait, "slots": ranges(slots)}
        return await self._peer(cohort).get(f"/v1/cohorts/{cohort.cohort}/stage", StageView, params)

    async def depart(self, cohort: Cohort, departure: Departure) -> UploadAnswer:
        return await self._peer(cohort).post(f"/v1/cohorts/{cohort.cohort}/departures", departure, UploadAnswer)

    def _peer(self, cohort: Cohort) -> Peer:
        return self._intermediaries[cohort.via]


def ranges(slots: Sequence[int]) -> str:
    """Return ascending slots as a query names them: `0-99,120`."""
    parts: list[list[int]] = []
    for slot in slots:
        if parts and parts[-1][1] == slot - 1:
            parts[-1][1] = slot
        else:
            parts.append([slot, slot])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


async def newest_running(http: Http, server: str) -> str:
    """Return the run that was started last and is not over. Wait for one as long as the patience of `http` goes."""
    end = asyncio.get_running_loop().time() + http.patience.total
    while True:
        runs = (await http.peer(server).get("/v1/runs", RunList)).runs
        running = [line.run for line in runs if line.state == "running"]
        if running:
            return running[-1]
        if asyncio.get_running_loop().time() > end:
            raise Unavailable(f"no run is open at {server}")
        await asyncio.sleep(1.0)


def patience(seconds: float) -> Patience:
    """Return how to retry: quickly at first, since services restart in a second or two; not after `seconds`."""
    return Patience(first=0.25, longest=5.0, total=seconds, answer=60.0)
