"""Tests that a run goes on after commits that fail or lose their confirmation, and after cancelled ticket requests."""

import asyncio
import random
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from distrust.common.errors import Conflict, Unavailable, WrongStage
from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.round import TicketAnswer
from distrust.common.protocol.storage.database_faults import Collision
from distrust.server.learner.learner import Learner
from distrust.server.storage.store import Store, Writing
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, ServerHarness, config, unnamed, until

STAGE = config().intermediary.stage_seconds
FAULTS = ("none", "refused", "lost", "cancelled")


def away(*_: object) -> None:
    raise Unavailable("the database is away")


class Faults:
    """Faults of the next commits, one after another. Later commits have none.

    refused    rolled back.
    collided   rolled back by PostgreSQL for another's sake.
    lost       committed, and the confirmation does not arrive.
    cancelled  committed, and the task that asks for tickets is cancelled before that.
    """

    def __init__(self, faults: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._faults, self._writing = iter(faults), Store.writing
        self.asking: asyncio.Task[TicketAnswer] | None = None
        self.unanswered = 0
        monkeypatch.setattr(Store, "writing", lambda store: self._disturbed(store))  # noqa: PLW0108  a bound method gets no store

    @contextmanager
    def _disturbed(self, store: Store) -> Iterator[Writing]:
        fault = next(self._faults, "none")
        with self._writing(store) as writing:
            yield writing
            if fault == "refused":
                raise Unavailable("the database is away")
            if fault == "collided":
                raise Collision("deadlock detected")
            if fault == "cancelled":
                self._cancel()
        if fault == "lost":
            raise Unavailable("the connection was lost behind the commit")

    def _cancel(self) -> None:
        asking, cancelled = self.asking, threading.Event()
        if asking is not None and not asking.done():
            asking.get_loop().call_soon_threadsafe(lambda: (asking.cancel(), cancelled.set()))
            cancelled.wait(0.2)  # the loop may wait for this thread


async def play_waiting(harness: ServerHarness, faults: Faults) -> RunView:
    """Play a run to its end. Clients wait for each round's tickets, and repeat a request that was not answered."""
    clients, name = InMemoryClients(harness.intermediaries, REWARDS), secrets.token_hex(16)
    while True:
        faults.asking = asyncio.create_task(harness.wait("demo", 64, name))
        await asyncio.wait({faults.asking})
        if faults.asking.cancelled() or isinstance(faults.asking.exception(), Unavailable):
            faults.unanswered += 1
            continue
        tickets = faults.asking.result()
        assert tickets.view is not None
        if tickets.view.round is None:
            return unnamed(harness.reader.view("demo"))
        name = secrets.token_hex(16)
        await harness.until_open(tickets)
        clients.answer(tickets.view.round, tickets)
        await asyncio.sleep(0.001)


async def play(harness: ServerHarness, faults: Faults) -> RunView:
    """Play a run to its end. Clients repeat a request that was not answered."""
    clients = InMemoryClients(harness.intermediaries, REWARDS)
    while (round_ := harness.reader.round_view("demo").round) is not None:
        name, answered = secrets.token_hex(16), False
        while not answered:
            faults.asking = asyncio.create_task(harness.ask("demo", 64, name, round_.number))
            await asyncio.wait({faults.asking})
            answered = not faults.asking.cancelled() and not isinstance(faults.asking.exception(), Unavailable)
            faults.unanswered += not answered
        if isinstance(faults.asking.exception(), WrongStage):
            continue  # the next round has opened
        clients.answer(round_, faults.asking.result())
        await asyncio.sleep(0.001)
    return unnamed(harness.reader.view("demo"))


def run_with(faults: Faults, folder: Path, *, waiting: bool) -> RunView:
    """Play a run to its end, and check what the database has of it."""
    folder.mkdir()
    harness = ServerHarness(folder, InMemoryIntermediaries())
    harness.service.create(config(horizon=300))

    async def whole() -> RunView:
        view = await asyncio.wait_for((play_waiting if waiting else play)(harness, faults), 240)
        await harness.coordinator.stop()
        return view

    view = asyncio.run(whole())
    active, store = harness.service.active_run("demo"), harness.service.store
    outcomes = store.outcomes("demo")
    assert Learner.replay(active.config, outcomes).snapshot() == view.snapshot
    assert len({outcome.cohort for outcome in outcomes}) == len(outcomes)
    assert view.cohorts_open == 0
    for one in outcomes:
        spans = [(grant.first, grant.count) for grant in store.cohort_grants(one.cohort)]
        slots = [slot for first, count in spans for slot in range(first, first + count)]
        assert slots == list(range(len(slots)))  # each once
    harness.database.close()
    return view


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda: cycle(["lost"]), id="each-lost"),
        pytest.param(lambda: cycle(["cancelled"]), id="each-cancelled"),
        pytest.param(lambda: cycle(["lost", "refused", "cancelled", "none"]), id="in-turn"),
        *(pytest.param(lambda seed=seed: random.Random(seed).choices(FAULTS, k=99), id=f"{seed}") for seed in range(4)),
    ],
)
@pytest.mark.few(6)
def test_a_run_has_the_same_end_whatever_its_commits_and_requests_meet(
    fault: Callable[[], Iterable[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, waiting: bool
) -> None:
    """A cohort that is open and that nothing collects would hold the run until the server starts again."""
    calm = run_with(Faults([], monkeypatch), tmp_path / "calm", waiting=waiting)
    assert calm.state == "finished"
    assert run_with(Faults(fault(), monkeypatch), tmp_path / "disturbed", waiting=waiting) == calm


@pytest.mark.parametrize("waiting", [False, True])
def test_a_run_in_which_each_transaction_is_ended_once_for_anothers_sake_answers_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, waiting: bool
) -> None:
    """What the server keeps in memory is not changed twice: no slot, outcome or round is missing or repeated."""
    calm = run_with(Faults([], monkeypatch), tmp_path / "calm", waiting=waiting)
    faults = Faults(cycle(["collided", "none"]), monkeypatch)
    assert run_with(faults, tmp_path / "disturbed", waiting=waiting) == calm
    assert faults.unanswered == 0


def test_a_cohort_whose_record_failed_is_not_lost_before_a_request_needs_it(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intermediary ends it, but it has no tickets: a request that comes later may open it in time."""

    async def whole() -> None:
        harness.service.create(config())
        Faults(["refused"], monkeypatch)
        with pytest.raises(Unavailable):
            await harness.ask("demo", 5)
        harness.intermediaries.time += 0.9 * FIRST_SECONDS
        await asyncio.sleep(0.05)
        (grant,) = (await harness.ask("demo", 5)).grants
        assert grant.cohort == "demo.1.0.1"
        harness.intermediaries.time += 2 * STAGE
        await until(lambda: harness.service.store.outcome("demo.1.0.1") is not None)  # now it is collected
        await harness.coordinator.stop()

    asyncio.run(whole())


def test_no_slot_is_granted_twice_where_a_commit_lands_after_the_grants_were_read_again(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL may end a commit only after its connection was lost and another one has read the rows."""

    async def whole() -> None:
        harness.service.create(config())
        await harness.ask("demo", 3)
        early = harness.service.active_run("demo").rows()
        Faults(["lost"], monkeypatch)
        with pytest.raises(Unavailable, match="behind the commit"):
            await harness.ask("demo", 2)
        reads, now = iter([early]), Store.with_taken
        monkeypatch.setattr(Store, "with_taken", lambda store, rows: next(reads, None) or now(store, rows))
        (grant,) = (await harness.ask("demo", 4)).grants
        assert next(reads, None) is None
        assert (grant.first, grant.count) == (5, 4)
        await harness.coordinator.stop()

    asyncio.run(whole())


@pytest.mark.parametrize("readable", [True, False])
def test_a_run_whose_creation_lost_its_confirmation_is_taken_up(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch, *, readable: bool
) -> None:
    Faults(["lost"], monkeypatch)
    if readable:
        harness.service.create(config())
        assert harness.reader.view("demo").state == "running"
    else:
        with monkeypatch.context() as broken:
            broken.setattr(Store, "runs", away)
            with pytest.raises(Unavailable, match="the database is away"):
                harness.service.create(config())
        with pytest.raises(Conflict, match="run demo exists with another configuration"):
            harness.service.create(config(horizon=801))
    assert not harness.service.create(config())
    view = harness.reader.view("demo")
    assert (view.state, view.digest) == ("running", config().digest())
    assert [row.kind for row in harness.reader.events("demo", 0)[0]] == ["round-opened"]


def test_a_run_that_was_not_committed_is_not_created(harness: ServerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    Faults(["refused"], monkeypatch)
    with pytest.raises(Unavailable, match="the database is away"):
        harness.service.create(config())
    assert harness.reader.runs().runs == []
    assert harness.service.create(config())


def test_a_run_is_cancelled_though_the_confirmation_is_lost(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.service.create(config())
    Faults(["refused", "lost"], monkeypatch)
    with pytest.raises(Unavailable, match="the database is away"):
        harness.service.cancel("demo", "enough")
    assert harness.reader.round_view("demo").state == "open"
    harness.service.cancel("demo", "enough")
    view = harness.reader.view("demo")
    assert (view.state, view.reason) == ("cancelled", "enough")


def test_no_round_is_played_of_a_run_of_which_it_is_unknown_whether_it_was_cancelled(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole() -> None:
        harness.service.create(config())
        clients = InMemoryClients(harness.intermediaries, REWARDS)
        round_ = harness.reader.round_view("demo").round
        assert round_ is not None
        tickets = await harness.ask("demo", 96)
        Faults(["lost"], monkeypatch)
        with monkeypatch.context() as broken:
            broken.setattr(Store, "state", away)
            with pytest.raises(Unavailable, match="the database is away"):
                harness.service.cancel("demo", "enough")
            with pytest.raises(Unavailable, match="the database is away"):
                harness.reader.round_view("demo")
            clients.answer(round_, tickets)
            await asyncio.sleep(0.05)
            assert harness.service.store.outcomes("demo") == []
        await until(lambda: not harness.coordinator._collectors)
        assert harness.service.store.outcomes("demo") == []
        assert (harness.reader.round_view("demo").state, harness.reader.view("demo").reason) == (
            "cancelled",
            "enough",
        )

    asyncio.run(whole())
