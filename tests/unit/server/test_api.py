"""Tests the server's API as a caller sees it: the real app, intermediaries in memory."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from distrust.common.protocol.run.progress import RunEvent
from distrust.common.protocol.run.round import RoundView, TicketAnswer
from distrust.common.protocol.web.bodies import MOST_BODIES
from distrust.common.wire import Version, encode_blob
from distrust.server.app import server_app
from distrust.server.reading.reader import Reader
from distrust.server.runs.service import Service
from distrust.server.settings import ServerSettings
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, config

TOKEN = "operator's secret"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}

Body = Callable[[httpx.AsyncClient, InMemoryIntermediaries], Coroutine[Any, Any, None]]


@asynccontextmanager
async def api(path: Path, intermediaries: InMemoryIntermediaries) -> AsyncIterator[httpx.AsyncClient]:
    token = path / "token"
    token.write_text(TOKEN)
    settings = ServerSettings(database=f"sqlite:///{path}/server.sqlite3", operator_token_file=token)
    app = server_app(settings, intermediaries)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server.localhost/v1") as client,
    ):
        yield client


def over_http(path: Path, body: Body) -> None:
    """Run `body` against the app."""

    async def whole() -> None:
        intermediaries = InMemoryIntermediaries()
        async with api(path, intermediaries) as client:
            await asyncio.wait_for(body(client, intermediaries), 240)

    asyncio.run(whole())


def run_json(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(config(**{"horizon": 300, **changes}).canonical())
    return whole


async def create(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    return await client.post("/runs", json=run_json(**changes), headers=OPERATOR)


def wish(want: int, number: int) -> dict[str, Any]:
    """Return a request for tickets of the round of this number; 0: of any."""
    return {"request": secrets.token_hex(16), "round": number, "want": want, "keys": encode_blob(bytes(32 * want))}


async def ask(client: httpx.AsyncClient, **options: Any) -> httpx.Response:
    """Request tickets as the operator's own fleets do."""
    return await client.post("/runs/demo/tickets", headers=OPERATOR, **options)


async def play(client: httpx.AsyncClient, clients: InMemoryClients, run: str = "demo") -> None:
    """Play as a fleet: long-poll the round, take tickets, answer them, until the run is over."""
    known = 0
    while True:
        view = await round_of(client, run, wait=5, after=known)
        if view.round is None:
            return
        known = view.round.number
        wish = {"request": secrets.token_hex(16), "round": known, "want": 50, "keys": "A" * 2134}
        answer = await client.post(f"/runs/{run}/tickets", headers=OPERATOR, json=wish)
        if answer.status_code == 409:
            continue
        tickets = TicketAnswer.model_validate_json(answer.content)
        assert bool(tickets.grants) != ("retry-after" in answer.headers)
        if tickets.grants:
            round_ = (await round_of(client, run)).round
            assert round_ is not None
            clients.answer(round_, tickets)


async def round_of(client: httpx.AsyncClient, run: str, **params: int) -> RoundView:
    return RoundView.model_validate_json((await client.get(f"/runs/{run}/round", params=params)).content)


def test_a_run_is_created_played_and_read(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, intermediaries: InMemoryIntermediaries) -> None:
        assert [(await create(client, horizon=400)).status_code for _ in range(2)] == [201, 200]
        await play(client, InMemoryClients(intermediaries, REWARDS, {"1.1": 6}))
        run = (await client.get("/runs/demo")).json()
        assert (run["state"], run["cohorts_aborted"], run["snapshot"]["pulls"]) == ("finished", 1, 400)
        assert [one["run"] for one in (await client.get("/runs")).json()["runs"]] == ["demo"]
        pages = (await client.get("/runs/demo/rounds", params={"limit": 1})).json()
        assert (pages["next"], len(pages["rounds"])) == (1, 1)
        first = (await client.get("/runs/demo/rounds/1")).json()
        assert first == pages["rounds"][0]
        assert len((await client.get("/runs/demo/ledger")).json()["lines"]) == pages["total"]
        cohort = first["cohorts"][0]["cohort"]
        seen = await client.get(f"/runs/demo/cohorts/{cohort}/messages", headers=OPERATOR)
        assert seen.json()["messages"][-1]["stage"] == "estimate"
        few = await client.get(f"/runs/demo/cohorts/{cohort}/messages?each=1", headers=OPERATOR)
        stages = [one["stage"] for one in few.json()["messages"]]
        assert (stages[0], stages[-1], len(set(stages))) == ("cohort", "estimate", len(stages))
        assert (few.json()["total"], few.json()["next"]) == (seen.json()["total"], None)
        bad = await client.get(f"/runs/demo/cohorts/{cohort}/messages?each=1001", headers=OPERATOR)
        assert bad.status_code == 422

    over_http(tmp_path, body)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        pytest.param({"mechanism": {"name": "distributed-polya", "epsilon": -1.0}}, "mechanism.epsilon = -1.0", id="ε"),
        pytest.param({"horizon": 2}, "horizon = 2", id="T-below-K"),
        pytest.param({"horizon": 95}, "horizon = 95: must be at least 96", id="no-whole-batch"),
        pytest.param({"arms": 1}, "arms = 1", id="one-arm"),
        pytest.param({"colour": "red"}, "colour", id="unknown-key"),
        pytest.param(
            {"mechanism": {"name": "shuffled-binomial", "epsilon": 1.0, "delta": 0.5}}, "mechanism.delta = 0.5", id="δ"
        ),
        pytest.param(
            {"mechanism": {"name": "distributed-polya", "epsilon": 1.0, "via": "shuffler"}}, "mechanism.via", id="via"
        ),
    ],
)
def test_bad_input_is_one_line_with_the_field(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    async def body(client: httpx.AsyncClient, _s: InMemoryIntermediaries) -> None:
        answer = await client.post("/runs", json=run_json() | changes, headers=OPERATOR)
        problem = answer.json()
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert line in problem["detail"]
        assert "\n" not in problem["detail"]
        assert (await client.get("/runs")).json()["runs"] == []

    over_http(tmp_path, body)


def test_operators_calls_need_the_token(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, _s: InMemoryIntermediaries) -> None:
        await create(client)
        for call in (
            client.post("/runs", json=run_json()),
            client.delete("/runs/demo"),
            client.get("/runs/demo/cohorts/demo.1.0.1/messages"),
        ):
            assert (await call).status_code == 401
        assert (await client.get("/runs/demo")).json()["state"] == "running"

    over_http(tmp_path, body)


def test_problems_have_stable_types(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, intermediaries: InMemoryIntermediaries) -> None:
        await create(client)
        assert await problem(await create(client, arms=4)) == (409, "conflict")
        for path in ("/runs/x", "/runs/x/round", "/runs/x/ledger", "/runs/x/events", "/runs/demo/rounds/9"):
            assert await problem(await client.get(path)) == (404, "wrong-cohort")
        wish = {"request": "ab" * 16, "round": 2, "want": 1, "keys": "A" * 43}
        assert await problem(await ask(client, json=wish)) == (
            409,
            "wrong-stage",
        )
        intermediaries.down = True
        assert await problem(await ask(client, json=wish | {"round": 1})) == (
            503,
            "unavailable",
        )

    over_http(tmp_path, body)


async def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def test_a_cancelled_run_is_over_for_fleets(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, _s: InMemoryIntermediaries) -> None:
        await create(client)
        waiting = asyncio.create_task(round_of(client, "demo", wait=30, after=1))
        assert (await client.delete("/runs/demo", headers=OPERATOR)).json()["state"] == "cancelled"
        await waiting
        assert (await round_of(client, "demo", wait=30, after=1)).state == "cancelled"

    over_http(tmp_path, body)


def test_events_stream_to_the_end_and_resume(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, intermediaries: InMemoryIntermediaries) -> None:
        await create(client)
        listening = asyncio.create_task(client.get("/runs/demo/events", timeout=60))
        await play(client, InMemoryClients(intermediaries, REWARDS))
        whole = (await listening).text
        numbers = [int(line[4:]) for line in whole.splitlines() if line.startswith("id: ")]
        assert numbers == sorted(set(numbers))
        assert whole.rstrip().splitlines()[-2] == "event: finished"
        last = {"Last-Event-ID": str(numbers[2])}
        for asked in ({"headers": last}, {"params": {"after": numbers[2]}}, {"headers": last, "params": {"after": 0}}):
            rest = await client.get("/runs/demo/events", **asked)
            told = [line for line in rest.text.splitlines() if line.startswith("id: ")]
            assert told == [f"id: {n}" for n in numbers[3:]]

    over_http(tmp_path, body)


def test_listeners_read_a_long_past_one_after_another_and_in_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most, calls = [0], [0], [0]
    plain = Reader.events

    def counted(self: Reader, run: str, after: int) -> tuple[list[RunEvent], bool]:
        inside[0], calls[0] = inside[0] + 1, calls[0] + 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return plain(self, run, after)

    monkeypatch.setattr(Reader, "events", counted)
    app = server_app(ServerSettings(database=f"sqlite:///{tmp_path}/server.sqlite3"), InMemoryIntermediaries())
    service: Service = app.state.service
    service.create(config())
    with service.store.writing() as writing:
        for number in range(1100):
            writing.event("demo", "cohort-opened", round=number)
    service.cancel("demo", "enough")

    async def listen() -> list[str]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server.localhost/v1") as client:
            answers = await asyncio.gather(*(client.get("/runs/demo/events") for _ in range(4)))
        return [answer.text for answer in answers]

    texts = asyncio.run(listen())
    app.state.database.close()
    assert [text.count("\nevent: ") for text in texts] == [1102] * 4
    assert (most[0], calls[0]) == (1, 4 * 3)


def test_a_request_that_was_told_that_no_slot_is_free_gets_none_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is on the way as a settlement serves the requests that wait. The slots would be lost."""

    async def body(client: httpx.AsyncClient, intermediaries: InMemoryIntermediaries) -> None:
        await create(client)
        clients, service = InMemoryClients(intermediaries, REWARDS), client._transport.app.state.service
        monkeypatch.setattr(service.issuer, "_window", 32)
        view = await round_of(client, "demo")
        assert view.round is not None
        first = TicketAnswer.model_validate_json((await ask(client, json=wish(32, 1))).content)
        advance, asked, settled = service.advance, threading.Event(), threading.Event()

        def late(*given: Any) -> Any:
            told = advance(*given)
            asked.set()
            settled.wait(60)
            return told

        settle = service.settle

        def settling(*given: Any) -> Any:
            try:
                return settle(*given)
            finally:
                settled.set()

        monkeypatch.setattr(service, "advance", late)
        monkeypatch.setattr(service, "settle", settling)
        second = asyncio.create_task(ask(client, json=wish(7, 1)))
        assert await asyncio.to_thread(asked.wait, 60)
        clients.answer(view.round, first)
        assert (await second).json()["grants"] == []
        assert sum(row.granted for row in service.store.cohorts("demo", 1).values()) == 32

    over_http(tmp_path, body)


def test_requests_that_wait_for_tickets_hold_no_place_among_the_bodies_that_are_read(tmp_path: Path) -> None:
    """With keys each is larger than what always has room. More than MOST_BODIES of them wait."""

    async def body(client: httpx.AsyncClient, _: InMemoryIntermediaries) -> None:
        await create(client)
        while (await ask(client, json=wish(512, 1))).json()["grants"]:
            pass
        waits = [
            asyncio.create_task(ask(client, params={"wait": 30}, json=wish(512, 0))) for _ in range(MOST_BODIES + 1)
        ]
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in waits)
        async with asyncio.timeout(60):
            answer = await ask(client, json=wish(512, 1))
        assert answer.json() == {"version": 3, "grants": []}
        assert (await client.delete("/runs/demo", headers=OPERATOR)).status_code == 200
        async with asyncio.timeout(60):
            ends = [TicketAnswer.model_validate_json((await task).content) for task in waits]
        assert {one.view.state for one in ends if one.view is not None} == {"cancelled"}
        assert len(ends) == MOST_BODIES + 1

    over_http(tmp_path, body)


def test_a_request_for_tickets_of_another_version_is_refused_for_its_version_and_takes_no_slot(tmp_path: Path) -> None:
    """It lacks what a request of today has: an older fleet is told why, and the cohort keeps its tickets."""
    (own,) = get_args(Version)

    async def body(client: httpx.AsyncClient, _: InMemoryIntermediaries) -> None:
        await create(client)
        view = await round_of(client, "demo")
        assert view.round is not None
        cohort = view.round.assignments[0].cohort
        for other in (own - 1, own + 1):
            for wait in ({}, {"wait": 5}):
                old = {"version": other, "ask": 4}
                refused = await ask(client, json=old, params=wait)
                assert await problem(refused) == (422, "bad-message")
                told = f"version = {other}: this program speaks version {own} of the wire, and all parties"
                assert refused.json()["detail"].startswith(told)
        answer = await ask(client, json=wish(cohort.clients, 1))
        grant = TicketAnswer.model_validate_json(answer.content).grants[0]
        assert (grant.cohort, grant.first, grant.count) == (cohort.cohort, 0, cohort.clients)

    over_http(tmp_path, body)


@pytest.mark.parametrize("version", [None, "1", 1.5, [], 10**400])
def test_what_is_no_number_of_a_version_is_a_bad_field(tmp_path: Path, version: object) -> None:
    async def body(client: httpx.AsyncClient, _: InMemoryIntermediaries) -> None:
        await create(client)
        refused = await ask(client, json={**wish(1, 1), "version": version})
        assert await problem(refused) == (422, "bad-message")
        assert "version" in refused.json()["detail"]

    over_http(tmp_path, body)


def test_requests_for_unknown_runs_leave_no_state(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, _: InMemoryIntermediaries) -> None:
        for number in range(20):
            answers = [
                await client.post(f"/runs/unknown-{number}/tickets", json=wish(50, 1), headers=OPERATOR),
                await client.get(f"/runs/unknown-{number}/round", params={"wait": 5}),
                await client.get(f"/runs/unknown-{number}/events"),
            ]
            assert [answer.status_code for answer in answers] == [404] * 3
        state = client._transport.app.state
        assert state.coordinator._ticket_locks == {}
        assert state.notifier._watches == state.notifier._waits == {}

    over_http(tmp_path, body)
