"""Tests that the real aggregator opens the sum of what a fleet's surviving clients put in."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from distrust.aggregator.service import Aggregator
from distrust.client.cohort.departures import departures, survives
from distrust.client.cohort.randomizer import World
from distrust.client.cohort.secagg import Secrets
from distrust.client.cohort.session import CohortSession, Worker
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.user import User
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.common.modular import sum_rows, unpack
from distrust.common.protocol.channels.masked import ModularSum
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, Grant
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import InboxRequest, Item
from distrust.common.protocol.run.round import Assignment, Round
from distrust.common.randomness import UnsafeSeededStream
from tests.support.fleet_harness import TICKET_KEY, FleetHarness, serve
from tests.support.limits import lenient
from tests.support.manual_clock import ManualClock

MakeRound = Callable[..., Round]
UNSAFE = lenient(allow_unsafe=True)
NOISE = 9


@pytest.fixture
def unsafe(world: World) -> World:
    return replace(world, noise_seed=NOISE)


def _answer(aggregator: Aggregator, cohort: Cohort) -> BatchAnswer:
    answer = aggregator.batch(cohort.address)
    return BatchAnswer.model_validate_json(answer) if isinstance(answer, bytes) else answer


def _batch(aggregator: Aggregator, cohort: Cohort) -> Batch:
    batch = _answer(aggregator, cohort).batch
    assert batch is not None
    return batch


def _sum(batch: Batch, round_: Round) -> int:
    assert isinstance(batch.content, ModularSum)
    return int(unpack(batch.content.body, round_.mechanism.modulus, 1)[0])


def _expected(world: World, round_: Round, arm: int, dropout: float) -> tuple[int, int]:
    """Return (sum mod m, survivors) as the in-process driver computes them from the same seeds."""
    cohort = round_.assignments[arm].cohort
    names = (cohort.run, cohort.cohort)
    rewards = world.environment.rewards(arm, cohort.clients, UnsafeSeededStream(world.seed, *names, "rewards"))
    rows = round_.mechanism.randomize(round_.statistic.vectors(rewards), UnsafeSeededStream(NOISE, *names))
    leaves = departures(cohort.clients, dropout, UnsafeSeededStream(world.seed, *names, "departures"))
    kept = rows[survives(leaves)]
    return int(sum_rows(kept, round_.mechanism.modulus)[0]), len(kept)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param("distributed-polya", (8, 0.0, 1), id="small-and-complete"),
        pytest.param("distributed-polya", (60, 0.2, 1), id="sparse-graph-with-losses"),
        pytest.param("distributed-skellam", (60, 0.2, 2), id="two-fleets-with-losses"),
        pytest.param("local-laplace-discrete", (20, 0.1, 2), id="local-noise"),
    ],
)
@pytest.mark.few(2)
def test_the_sum_is_that_of_the_same_seeds_in_process(
    make_round: MakeRound, unsafe: World, aggregator: Aggregator, name: str, case: tuple[int, float, int]
) -> None:
    clients, dropout, fleets = case
    rounds = [
        make_round(name, clients=clients, cohorts=2, number=number, dropout=dropout, corrupt=0.1, via="aggregator")
        for number in (1, 2)
    ]
    harness = FleetHarness(rounds, aggregator, TICKET_KEY)
    all_fleets = [Fleet(harness, unsafe, UNSAFE, FleetOptions(block=13, dropout=dropout)) for _ in range(fleets)]
    assert serve(*all_fleets) == ["finished"] * fleets
    for round_ in rounds:
        for arm, assignment in enumerate(round_.assignments):
            batch = _batch(aggregator, assignment.cohort)
            assert (_sum(batch, round_), batch.survivors) == _expected(unsafe, round_, arm, dropout)


def test_counts_of_several_fleets_add_up(make_round: MakeRound, unsafe: World, aggregator: Aggregator) -> None:
    round_ = make_round(clients=60, cohorts=2, dropout=0.2)
    harness = FleetHarness([round_], aggregator, TICKET_KEY)
    all_fleets = [Fleet(harness, unsafe, UNSAFE, FleetOptions(block=13, dropout=0.2)) for _ in range(2)]
    serve(*all_fleets)
    counts = {name: sum(fleet.stats.clients[name] for fleet in all_fleets) for name in ("joined", "departed", "served")}
    survivors = sum(_batch(aggregator, assignment.cohort).survivors for assignment in round_.assignments)
    assert counts == {"joined": 120, "departed": 24, "served": survivors}
    size = (round_.mechanism.bits + 7) // 8
    assert sum(fleet.stats.payload_bytes for fleet in all_fleets) == survivors * size


@pytest.mark.parametrize(
    ("block", "looks"),
    [
        pytest.param(20, 1, id="one-block-gets-them-with-the-stage"),
        pytest.param(8, 3, id="of-several-blocks-each-asks-for-its-own"),
    ],
)
def test_inboxes_are_asked_for_once_a_block(
    make_round: MakeRound, unsafe: World, aggregator: Aggregator, block: int, looks: int
) -> None:
    round_ = make_round(clients=20)
    harness = FleetHarness([round_], aggregator, TICKET_KEY)
    serve(Fleet(harness, unsafe, UNSAFE, FleetOptions(block=block)))
    assert harness.inboxes == looks
    assert _batch(aggregator, round_.assignments[0].cohort).survivors == 20


def test_without_a_noise_seed_every_client_draws_for_itself(
    make_round: MakeRound, world: World, aggregator: Aggregator
) -> None:
    """Arm 0 always pays: 20 clients add up to 20 g plus noise beyond 50 g / ε with probability below e^-40."""
    round_ = make_round(clients=20, dropout=0.0)
    serve(Fleet(FleetHarness([round_], aggregator, TICKET_KEY), world, lenient(min_survivors=18)))
    batch = _batch(aggregator, round_.assignments[0].cohort)
    estimate = round_.mechanism.estimate(np.array([_sum(batch, round_)], dtype=np.uint64), 20, UnsafeSeededStream(0))
    assert abs(estimate[0] - 20) < 50


def test_clients_are_forgotten_after_their_last_message(
    make_round: MakeRound, unsafe: World, aggregator: Aggregator
) -> None:
    round_ = make_round(clients=20)
    fleet = Fleet(FleetHarness([round_], aggregator, TICKET_KEY), unsafe, UNSAFE)
    serve(fleet)
    (session,) = fleet._sessions.values()
    assert session.users == {}
    assert session.protocol._clients == {}  # type: ignore[attr-defined]


def test_an_aborted_cohort_is_dropped_and_the_fleet_goes_on(
    make_round: MakeRound, unsafe: World, aggregator: Aggregator
) -> None:
    """Half of the first round's clients leave, which its cohort does not stand; its replacement has no losses."""
    first = make_round(clients=40, number=1, dropout=0.1)
    second = make_round(clients=40, number=2, dropout=0.1)

    class Sometimes(Fleet):
        def _holders(self, round_: Round, grants: list[Grant]) -> list[tuple[Assignment, list[User]]]:
            holders = super()._holders(round_, grants)
            leaving = 1 if round_.number == 1 else 2  # the remainder of the slots that leave: of none in other rounds
            return [
                (one, [replace(user, leaves=2) if user.slot % 2 == leaving else user for user in users])
                for one, users in holders
            ]

    fleet = Sometimes(FleetHarness([first, second], aggregator, TICKET_KEY), unsafe, UNSAFE)
    assert serve(fleet) == ["finished"]
    lost, done = (round_.assignments[0].cohort for round_ in (first, second))
    assert _answer(aggregator, lost).state == "aborted"
    assert _batch(aggregator, done).survivors == 40
    assert all(not session.users for session in fleet._sessions.values())


class _Liar(FleetHarness):
    """An aggregator that hides slots 0 to 5 among the survivors, and asks the others to reveal their mask keys."""

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        view = await super().stage(cohort, after, asked, wait)
        if view.stage != "unmask":
            return view
        return view.model_copy(update={"members": bytes([view.members[0] & 0b11000000]) + view.members[1:]})


def test_users_refuse_a_survivors_list_below_their_floor(
    make_round: MakeRound, unsafe: World, aggregator: Aggregator, clock: ManualClock
) -> None:
    round_ = make_round(clients=20)
    harness = _Liar([round_], aggregator, TICKET_KEY)
    fleet = Fleet(harness, unsafe, UNSAFE)

    async def play() -> str:
        task = asyncio.create_task(fleet.serve())
        while fleet.stats.clients["refused"] < 20:  # noqa: ASYNC110 - no event tells that a user refuses
            await asyncio.sleep(0.01)
        clock.advance(61)
        return await asyncio.wait_for(task, 120)

    asyncio.run(play())
    ended = {name: fleet.stats.clients[name] for name in ("late", "served")}
    assert ended == {"late": 0, "served": 20}
    assert fleet.stats.clients["refused"] + fleet.stats.clients["aborted"] == 20
    assert fleet.stats.reasons["the aggregator took the vectors of clients, and calls these clients lost"] == 6
    assert [upload for upload in harness.uploads if upload.stage == "unmask"] == []
    assert _answer(aggregator, round_.assignments[0].cohort).state == "aborted"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Secrets]:
    """Return a list of the secrets of all clients, which grows as fleets make them."""
    result: list[Secrets] = []
    begin = Secrets.__init__

    def noted(self: Secrets) -> None:
        begin(self)
        assert any(self.self_seed)
        assert any(self.mask_seed)
        result.append(self)

    monkeypatch.setattr(Secrets, "__init__", noted)
    return result


def wiped(secrets: Secrets) -> bool:
    return (any(secrets.self_seed), any(secrets.mask_seed), secrets.mask_pair, secrets.channel_pair) == (
        *(False, False),
        *(None, None),
    )


def test_seeds_and_keys_of_all_clients_are_zeroed_also_of_those_that_leave_and_of_those_without_a_ticket(
    make_round: MakeRound, unsafe: World, aggregator: Aggregator, made: list[Secrets]
) -> None:
    round_ = make_round(clients=60, dropout=0.2)
    fleet = Fleet(FleetHarness([round_], aggregator, TICKET_KEY), unsafe, UNSAFE, FleetOptions(block=50, dropout=0.2))
    serve(fleet)
    fleet._worker.shutdown()  # it has done then what was submitted
    assert (fleet.stats.clients["departed"], len(made) > 60) == (12, True)
    assert all(map(wiped, made))


def test_a_client_that_is_dropped_loses_its_seeds_after_the_message_in_work_is_made(make_round: MakeRound) -> None:
    """Before, its message would be one of zeros: a seed that every party knows."""
    order: list[str] = []
    started, go, worker = threading.Event(), threading.Event(), Worker()
    protocol = SimpleNamespace(first="keys", last="unmask", forget=lambda users: order.append(f"forget {users}"))
    uploader: Any = SimpleNamespace(stats=FleetStats())
    session = CohortSession(make_round().assignments[0].cohort, cast("Any", protocol), uploader, worker, 1)
    user = User(0, b"")
    session.users[0] = user

    def make() -> list[Item]:
        started.set()
        go.wait()
        order.append("made")
        return []

    async def play() -> None:
        message = asyncio.create_task(session._run_in_thread("shares", make))
        await asyncio.to_thread(started.wait)
        session._drop([0])
        go.set()
        assert await message == []

    asyncio.run(play())
    worker.shutdown()
    assert order == ["made", f"forget {[user]}"]


def test_one_clients_first_message_waits_for_what_is_in_work_and_else_for_no_thread(make_round: MakeRound) -> None:
    """So no two threads make messages of one cohort."""
    order: list[str] = []
    caller, started, go, worker = threading.current_thread(), threading.Event(), threading.Event(), Worker()

    def begin(users: Sequence[User]) -> list[Item]:
        order.append("here" if threading.current_thread() is caller else "in its turn")
        return []

    protocol = SimpleNamespace(first="keys", last="unmask", begin=begin)

    async def leave(*_: object) -> None:
        """Announce nothing, as no client leaves."""

    uploader: Any = SimpleNamespace(stats=FleetStats(), leave=leave)
    cohort = make_round().assignments[0].cohort.model_copy(update={"clients": 1})
    session = CohortSession(cohort, cast("Any", protocol), uploader, worker, 1)
    session.users[0] = user = User(0, b"")

    def other() -> None:
        started.set()
        go.wait()
        order.append("other")

    async def play() -> None:
        await session.begin([user], asyncio.gather())
        worker.submit(other)
        await asyncio.to_thread(started.wait)
        message = asyncio.create_task(session.begin([user], asyncio.gather()))
        await asyncio.sleep(0.01)  # it would be made here meanwhile
        go.set()
        await message

    asyncio.run(play())
    worker.shutdown()
    assert order == ["here", "other", "in its turn"]


def test_a_stopped_fleet_says_that_all_its_clients_leave_and_zeroes_their_seeds(
    make_round: MakeRound, unsafe: World, aggregator: Aggregator, made: list[Secrets]
) -> None:
    """Two fleets are needed to fill the cohort and only one is there; it is told to stop."""
    round_ = make_round(clients=40)
    harness = FleetHarness([round_], aggregator, TICKET_KEY)
    name = round_.assignments[0].cohort.cohort
    harness._given[name], harness.hashes[name] = 10, bytes(32 * 10)  # another fleet holds these tickets
    fleet = Fleet(harness, unsafe, UNSAFE)

    async def play() -> None:
        task = asyncio.create_task(fleet.serve())
        while not harness.uploads:  # noqa: ASYNC110 - no event tells of an upload
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fleet.leave()

    asyncio.run(play())
    assert [sorted(leaving.slots) for leaving in harness.departures] == [list(range(10, 40))]
    fleet._worker.shutdown()
    assert len(made) >= 30
    assert all(map(wiped, made))
