"""Tests that strangers get no tickets, and that participants get their share: over HTTP, intermediaries in memory."""

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI

from distrust.client.http_transport import device_proof
from distrust.common.crypto.context import run_digest
from distrust.common.intermediary.deadlines import FIRST_SECONDS
from distrust.common.messages.admission import Participant, new_token
from distrust.common.messages.cohort import TicketRequest
from distrust.common.run.round import RoundView, TicketAnswer
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.participants import Participants
from distrust.lab.stack.stack import make_tokens
from distrust.server.app import ServerSettings, server_app
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, config, until

N = 32
"""Clients of a first cohort here."""

LOCAL = {"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler"}


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
        """Request tickets of a masked cohort, or of one at the shuffler."""
        body = await self.wish(want, request, number)
        return await self.post(header, body, wait)

    async def wish(self, want: int, request: str | None = None, number: int = 1) -> TicketRequest:
        view = await self.view()
        masked = view.round is not None and view.round.mechanism.via == "aggregator"
        keys = bytes(32 * want) if masked else b""
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


def test_a_stranger_with_three_plain_calls_takes_no_slot_of_a_cohort(tmp_path: Path) -> None:
    """It took n - 1 of them, and read the last client's reward off the sum."""

    async def body(world: World) -> None:
        await world.create()
        for header in (None, "Basic abc", "Bearer", "Device abc"):
            assert refusal(await world.ask(header, N - 1)) == (401, "unauthorized")
        assert refusal(await world.ask(f"Bearer {new_token()}", N - 1)) == (401, "foreign-token")
        assert world.cells("SELECT count(*) FROM grants") == [(0,)]
        assert world.intermediaries.opened == []

    play(tmp_path, body)


@pytest.mark.parametrize(
    ("share", "corrupt", "most"),
    [(0.25, 0.4, 8), (0.1, 0.4, 3), (0.001, 0.4, 1), (1.0, 0.25, 8), (1.0, 0.1, 3), (0.25, 0.1, 3), (1.0, 0.0, 1)],
)
def test_a_token_gets_its_share_of_a_cohort_and_no_more_than_may_collude_over_all_its_requests(
    tmp_path: Path, share: float, corrupt: float, most: int
) -> None:
    async def body(world: World) -> None:
        await world.create(intermediary={"corrupt": corrupt})
        header = world.token("some", share=share)
        got = [slots(await world.ask(header, want)) for want in (1, 2, 100, 100)]
        first = world.cells("SELECT sum(count) FROM grants WHERE cohort = 'demo.1.0.1'")
        assert first == [(most,)]
        assert sum(got) == most  # cohorts fill one after another: the next one is begun once others have the rest
        assert slots(await world.ask(world.operator, N - most)) == N - most
        assert slots(await world.ask(header)) == most

    play(tmp_path, body)


def test_the_operators_own_fleets_get_whole_cohorts_though_no_client_may_collude(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create(intermediary={"corrupt": 0.0})
        assert slots(await world.ask(f"Bearer {world.folder.fleet_token()}", N)) == N
        assert slots(await world.ask(world.operator, N)) == N
        assert world.cells("SELECT DISTINCT participant FROM grants") == [(None,)]

    play(tmp_path, body)


def test_a_mechanism_whose_promise_counts_on_no_other_client_has_no_share(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create(mechanism=LOCAL)
        assert slots(await world.ask(world.token("some", share=0.1), N)) == N
        assert world.cells("SELECT DISTINCT participant FROM grants") == [(None,)]  # nothing to count

    play(tmp_path, body)


def test_a_quota_is_of_all_slots_and_its_end_leaves_the_tickets_of_before_good(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        header, request = world.token("some", share=1.0, quota=5), secrets.token_hex(16)
        first = await world.ask(header, 3, request)
        assert (slots(first), slots(await world.ask(header, 3))) == (3, 2)
        assert refusal(await world.ask(header, 1)) == (403, "exhausted-token")
        assert (await world.ask(header, 3, request)).content == first.content
        await world.client.delete("/runs/demo", headers={"Authorization": world.operator})
        assert world.cells("SELECT slots FROM quotas") == [(5,)]

    play(tmp_path, body)


def test_expired_revoked_and_foreign_tokens_are_told_apart_and_change_nothing_for_others(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        late = world.token("late", expires=datetime.now(UTC) - timedelta(seconds=1))
        gone, good = world.token("gone"), world.token("good", share=0.5)
        assert slots(await world.ask(gone, 1)) == 1
        Participants(world.folder).revoke("gone")  # and no restart
        assert refusal(await world.ask(gone, 1)) == (403, "revoked-token")
        assert refusal(await world.ask(late, 1)) == (403, "expired-token")
        assert slots(await world.ask(good)) == N // 4
        world.folder.participants_file.unlink()
        assert refusal(await world.ask(good)) == (503, "unavailable")  # fails closed
        assert slots(await world.ask(world.operator, 1)) == 1

    play(tmp_path, body)


def test_a_device_gets_one_slot_of_a_cohort_whatever_it_says(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create(mechanism=LOCAL)
        key, stranger = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        own = key.public_key().public_bytes_raw().hex()
        Participants(world.folder).enroll(Participant(name="phone", kind="device", id=own))
        view = await world.view()
        run = run_digest(view.config, view.run_id)
        first = await world.wish(100)
        answer = await world.post(device_proof(key)(run, first), first)
        assert slots(answer) == 1
        for want in (1, 100):
            again = await world.wish(want)
            assert slots(await world.post(device_proof(key)(run, again), again)) == 0
        replayed = await world.post(device_proof(key)(run, first), first)
        assert replayed.content == answer.content  # it gains nothing
        other = await world.wish(1)
        assert refusal(await world.post(device_proof(stranger)(run, other), other)) == (401, "foreign-token")
        for proof in (device_proof(key)(run, first), device_proof(key)(bytes(32), other)):
            assert refusal(await world.post(proof, other)) == (401, "unauthorized")
        assert refusal(await world.post(f"Bearer {own}", other)) == (401, "foreign-token")
        assert world.cells("SELECT participant, sum(count) FROM grants") == [(own, 1)]

    play(tmp_path, body)


def test_who_had_which_slot_is_forgotten_with_the_cohorts_outcome_and_with_the_end_of_a_run(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        header = world.token("some", share=0.25)
        mine, others = await world.ask(header), await world.ask(world.operator, N - 8)
        second = await world.ask(header)
        noted = "SELECT cohort, sum(count) FROM grants WHERE participant IS NOT NULL GROUP BY cohort"
        assert world.cells(noted) == [("demo.1.0.1", 8), ("demo.1.1.1", 8)]
        await world.finish_round(mine, others)
        await until(lambda: world.cells("SELECT count(*) FROM outcomes") == [(1,)])
        assert world.cells(noted) == [("demo.1.1.1", 8)]
        assert slots(second) == 8
        await world.client.delete("/runs/demo", headers={"Authorization": world.operator})
        assert world.cells(noted) == []

    play(tmp_path, body)


def test_requests_that_wait_share_the_next_cohorts_slots(tmp_path: Path) -> None:
    """One held request took all of them."""

    async def body(world: World) -> None:
        await world.create(mechanism=LOCAL)
        headers = [world.token(name) for name in ("one", "two", "three")]
        await world.finish_round(*[await world.ask(world.operator, 2 * N)])
        last = await world.ask(world.operator, N)
        waiting = [asyncio.create_task(world.ask(one, 1000, number=0, wait=60)) for one in headers]
        places = world.app.state.coordinator.places
        await until(lambda: len(places.unserved("demo")) == 3)
        await world.finish_round(last)
        got = [slots(await one, "demo.2.0.1") for one in waiting]  # the last one may have others besides
        size = world.cells("SELECT clients FROM cohorts WHERE cohort = 'demo.2.0.1'")[0][0]
        assert sum(got) <= size
        assert min(got) >= size // 6  # a third, unless one of them asks while the others are served
        assert max(got) <= size // 2

    play(tmp_path, body)


def test_a_request_whose_token_is_revoked_while_it_waits_gets_no_slot(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        header = world.token("some", share=1.0)
        await world.finish_round(await world.ask(world.operator, 2 * N))
        last = await world.ask(world.operator, N)
        waiting = asyncio.create_task(world.ask(header, 5, number=0, wait=60))
        await until(lambda: len(world.app.state.coordinator.places.unserved("demo")) == 1)
        Participants(world.folder).revoke("some")
        await world.finish_round(last)
        assert refusal(await waiting) == (403, "revoked-token")

    play(tmp_path, body)


def test_a_ticket_that_is_held_does_not_stop_a_run_of_one_client_a_round(tmp_path: Path) -> None:
    """It stopped the run for two stages, of up to a day."""

    async def body(world: World) -> None:
        alone = {"minimum": 1, "stage_seconds": 86_400.0}
        await world.create(
            policy={"name": "ucb1"}, mechanism={"name": "identity", "via": "shuffler"}, intermediary=alone
        )
        assert slots(await world.ask(world.token("some"), 1)) == 1
        assert slots(await world.ask(world.operator, 1)) == 0
        waiting = asyncio.create_task(world.ask(world.operator, 1, number=0, wait=60))
        await until(lambda: len(world.app.state.coordinator.places.unserved("demo")) == 1)
        world.intermediaries.time += FIRST_SECONDS
        answer = await waiting
        assert TicketAnswer.model_validate_json(answer.content).grants[0].cohort == "demo.1.0.2"

    play(tmp_path, body)


def test_another_token_does_not_get_the_slots_of_a_requests_id(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        request = secrets.token_hex(16)
        assert slots(await world.ask(world.token("one", share=0.25), 4, request)) == 4
        assert refusal(await world.ask(world.token("two", share=0.25), 4, request)) == (409, "conflict")

    play(tmp_path, body)


def test_a_new_operators_token_is_used_without_a_restart_and_a_missing_one_opens_nothing(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        before = {"Authorization": world.operator}
        fresh = tmp_path / "fresh"
        fresh.write_text("another secret")
        fresh.replace(world.folder.token_file)
        after = {"Authorization": "Bearer another secret"}
        assert (await world.client.delete("/runs/demo", headers=before)).status_code == 401
        world.folder.token_file.unlink()
        for headers in (before, after, {}):
            answer = await world.client.delete("/runs/demo", headers=headers)
            assert refusal(answer) == (503, "unavailable")
        world.folder.token_file.write_text("a third secret\n")
        third = {"Authorization": "Bearer a third secret"}
        assert (await world.client.delete("/runs/demo", headers=third)).status_code == 200

    play(tmp_path, body)


def test_a_server_without_an_operators_token_stays_open_on_loopback(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.client.post("/runs", json=json.loads(config().canonical()))
        assert slots(await world.ask(None, N)) == N

    play(tmp_path, body, operator_token_file=None, participants_file=None)


def test_a_devices_header_is_its_key_and_a_signature_of_the_documented_bytes() -> None:
    """The documented form of a device's header."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    request = TicketRequest(request="ab" * 16, round=1, want=1)
    header = device_proof(key)(bytes(32), request)
    public, signature = header.removeprefix("Device ").split(":")
    text = b"\x1f".join([b"distrust ticket request v3", bytes(32), b"ab" * 16, b"1", b"1", b""])
    key.public_key().verify(bytes.fromhex(signature), text)
    assert public == key.public_key().public_bytes_raw().hex()
