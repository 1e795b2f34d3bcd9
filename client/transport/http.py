"""Implements `Transport` over HTTP: the server for rounds and tickets, the cohort's intermediary for messages."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distrust.common.errors import Unavailable, WrongCohort
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.messages.admission import proof_header, request_text
from distrust.common.protocol.messages.cohort import Cohort, KeyHashes, TicketRequest
from distrust.common.protocol.messages.status import RecordList, StageView, StatementList
from distrust.common.protocol.messages.upload import (
    ActionAnswer,
    ActionRequest,
    InboxRequest,
    Leaving,
    Receipts,
    Upload,
    UploadAnswer,
)
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunList
from distrust.common.protocol.run.round import RoundView, TicketAnswer
from distrust.common.protocol.web.client import Http, Patience, Peer

A = TypeVar("A")

OPENING_SECONDS = 5.0
"""Seconds of pauses in which an intermediary that answers should have opened a cohort that has tickets."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.5  # seconds before a call is repeated; twice as long each time


Proof = Callable[[bytes, TicketRequest], str]
"""Returns the `Authorization` header of a request for tickets of the run with digest R."""


def token_proof(token: str) -> Proof:
    """Return the proof of a fleet that holds a participation token."""
    return lambda _run, _request: f"Bearer {token}"


def device_proof(key: Ed25519PrivateKey) -> Proof:
    """Return the proof of an enrolled device, which signs each request."""
    public = key.public_key().public_bytes_raw()
    return lambda run, request: proof_header(public, key.sign(request_text(run, request)))


@dataclass(frozen=True, slots=True)
class Addresses:
    """Base addresses of the three services."""

    server: str
    shuffler: str
    aggregator: str


class HttpTransport:
    """The services of one run. Every call is retried until it is answered or the patience of `http` is over.

    A request for tickets carries the proof that its fleet may take part. No other call does, and no intermediary sees
    it: there a client proves with its ticket what it may do.

    proof  returns the `Authorization` header of a request for tickets. None: the server asks for none.
    """

    def __init__(self, http: Http, addresses: Addresses, run: str, proof: Proof | None = None) -> None:
        self.run, self._proof = run, proof
        self._run_digest = b""  # R, once the server has shown a round
        self._server = http.peer(addresses.server)
        shuffler, aggregator = http.peer(addresses.shuffler), http.peer(addresses.aggregator)
        self._intermediaries = {"shuffler": shuffler, "aggregator": aggregator}

    async def round(self, after: int, wait: float) -> RoundView:
        view = await self._server.get(f"/v1/runs/{self.run}/round", RoundView, {"after": after, "wait": wait})
        self._run_digest = run_digest(view.config, view.run_id)
        return view

    async def config(self) -> RunConfig:
        return await self._server.get(f"/v1/runs/{self.run}/config", RunConfig)

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        server = self._server
        if self._proof is not None:
            server = replace(server, headers={"Authorization": self._proof(self._run_digest, request)})
        return await server.post(f"/v1/runs/{self.run}/tickets", request, TicketAnswer, {"wait": wait})

    async def terms(self, cohort: Cohort) -> Cohort:
        path = f"/v1/cohorts/{cohort.address}/terms"
        return await _once_open(lambda: self._peer(cohort).get(path, Cohort))

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        return await self._server.get(f"/v1/runs/{self.run}/cohorts/{cohort.cohort}/keys", KeyHashes)

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        path = f"/v1/runs/{self.run}/cohorts/{cohort.cohort}/statements"
        return await self._server.get(path, StatementList, {"after": after, "wait": wait})

    async def records(self, cohort: Cohort, wait: float) -> RecordList:
        path = f"/v1/runs/{self.run}/cohorts/{cohort.cohort}/records"
        return await self._server.get(path, RecordList, {"wait": wait})

    async def give_receipts(self, cohort: Cohort, receipts: Receipts) -> UploadAnswer:
        path = f"/v1/runs/{self.run}/cohorts/{cohort.cohort}/receipts"
        return await self._server.post(path, receipts, UploadAnswer)

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        path = f"/v1/cohorts/{cohort.address}/actions"
        return await _once_open(lambda: self._peer(cohort).post(path, request, ActionAnswer))

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        route = "reports" if upload.stage == "report" else upload.stage
        path = f"/v1/cohorts/{cohort.address}/{route}"
        return await _once_open(lambda: self._peer(cohort).post(path, upload, UploadAnswer))

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        if cohort.via == "shuffler":  # it has one stage, and the answer comes at its end
            return await self._peer(cohort).get(f"/v1/cohorts/{cohort.address}", StageView, {"wait": wait})
        path = f"/v1/cohorts/{cohort.address}/stage"
        params: dict[str, str | int | float] = {"after": after, "wait": wait}
        if asked is None:
            return await self._peer(cohort).get(path, StageView, params)
        return await self._peer(cohort).post(path, asked, StageView, params)

    async def leave(self, cohort: Cohort, leaving: Leaving) -> UploadAnswer:
        path = f"/v1/cohorts/{cohort.address}/departures"
        return await _once_open(lambda: self._peer(cohort).post(path, leaving, UploadAnswer))

    def _peer(self, cohort: Cohort) -> Peer:
        return self._intermediaries[cohort.via]


async def _once_open(call: Callable[[], Awaitable[A]]) -> A:
    """Return a call's answer. Repeat the call for a while where its cohort is not known yet.

    The server asks the intermediary to open a cohort while its first tickets are on their way to clients.
    """
    pause, waited = FIRST_PAUSE, 0.0
    while True:
        try:
            return await call()
        except WrongCohort:
            if waited >= OPENING_SECONDS:  # the pauses alone: the intermediary may be away meanwhile
                raise
        await asyncio.sleep(pause)
        waited += pause
        pause = min(2 * pause, LONGEST_PAUSE)


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
