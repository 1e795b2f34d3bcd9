"""A server that gives tickets to those whom its operator admits: over HTTP, with intermediaries in memory."""

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from distrust.common.protocol.messages.admission import Participant
from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.common.protocol.run.round import RoundView, TicketAnswer
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.participants import Participants
from distrust.lab.stack.stack import make_tokens
from distrust.server.app import ServerSettings, server_app
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, config

N = 32
"""Clients of a first cohort here."""

LOCAL = {"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler"}

OPEN: dict[str, Any] = {"operator_token_file": None, "participants_file": None}
"""Settings of a server that admits every caller, as all servers did before there were participation tokens."""


@dataclass
class World:
    """A server that asks for tokens, its folder, and clients of it."""

    folder: DataDir
    app: FastAPI
    client: httpx.AsyncClient
    intermediaries: InMemoryIntermediaries

    def token(self, name: str, **limits: Any) -> str:
        """Make a participation token and return its header."""
        file = self.folder.path / name
        Participants(self.folder).new_token(Participant(name=name, kind="token", id="0" * 64, **limits), file)
        return f"Bearer {file.read_text().strip()}"

    @property
    def operator(self) -> str:
        return f"Bearer {self.folder.token()}"

    async def create(self, **changes: Any) -> None:
        """Create a run. Unless its configuration says otherwise, a quarter of each cohort may collude."""
        whole = json.loads(config(**{"intermediary": {"corrupt": 0.25}} | changes).canonical())
        answer = await self.client.post("/runs", json=whole, headers={"Authorization": self.operator})
        assert answer.status_code == 201, answer.text

    async def ask(
        self, header: str | None, want: int = 100, request: str | None = None, number: int = 1, wait: float = 0
    ) -> httpx.Response:
        """Request tickets, with as many hashes as the open round's cohorts need."""
        body = await self.wish(want, request, number)
        return await self.post(header, body, wait)

    async def wish(self, want: int, request: str | None = None, number: int = 1) -> TicketRequest:
        view = await self.view()
        mechanism = None if view.round is None else view.round.mechanism
        hashed = mechanism is not None and (mechanism.via == "aggregator" or mechanism.receipted)
        keys = bytes(32 * want) if hashed else b""
        return TicketRequest(request=request or secrets.token_hex(16), round=number, want=want, keys=keys)

    async def post(self, header: str | None, body: TicketRequest, wait: float = 0) -> httpx.Response:
        headers = {"Content-Type": "application/json"} | ({} if header is None else {"Authorization": header})
        path = "/runs/demo/tickets" + (f"?wait={wait}" if wait else "")
        return await self.client.post(path, content=body.model_dump_json(), headers=headers)

    async def view(self) -> RoundView:
        return RoundView.model_validate_json((await self.client.get("/runs/demo/round")).content)

    async def finish_round(self, *answers: httpx.Response) -> None:
        """Answer for all holders of these tickets."""
        round_ = (await self.view()).round
        assert round_ is not None
        for answer in answers:
            InMemoryClients(self.intermediaries, REWARDS).answer(
                round_, TicketAnswer.model_validate_json(answer.content)
            )

    def cells(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder.path / "server.sqlite3")) as database:
            return database.execute(query).fetchall()


def slots(answer: httpx.Response, cohort: str = "") -> int:
    """Return how many slots were granted: all of them, or those of one cohort."""
    assert answer.status_code == 200, answer.text
    granted = TicketAnswer.model_validate_json(answer.content).grants
    return sum(one.count for one in granted if cohort in {"", one.cohort})


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Return status and type of a refusal, which is one line."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert "\n" not in answer.json()["detail"]
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def play(path: Path, body: Callable[[World], Coroutine[Any, Any, None]], **settings: Any) -> None:
    @asynccontextmanager
    async def world() -> AsyncIterator[World]:
        folder, intermediaries = DataDir(path), InMemoryIntermediaries()
        folder.make()
        make_tokens(folder)
        files = {"operator_token_file": folder.token_file, "participants_file": folder.participants_file}
        whole = {"database": f"sqlite:///{path}/server.sqlite3", **files, **settings}
        app = server_app(ServerSettings(**whole), intermediaries)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://server.localhost/v1") as client,
        ):
            yield World(folder, app, client, intermediaries)

    async def whole() -> None:
        async with world() as one:
            await asyncio.wait_for(body(one), 240)

    asyncio.run(whole())
