"""Tests that no client of a fleet randomizes its reward twice: for an old round, a slot it held, or after a restart.

Server and intermediary are in memory here, and forget. Over services: `tests/threats/test_second_release.py`.
"""

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from distrust.aggregator.service import Aggregator
from distrust.client.cohort.randomizer import World
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.client.fleet.memory import HeldSlots, Memory
from distrust.common.errors import BadParameter, BudgetExceeded, Refused, Unavailable
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.upload import Upload, UploadAnswer
from distrust.common.protocol.run.round import Round, RoundView, TicketAnswer
from distrust.common.protocol.storage.database import Database
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import TICKET_KEY, FleetHarness, config_of, serve
from tests.support.limits import lenient
from tests.support.manual_clock import ManualClock
from tests.unit.client.conftest import spent

MakeRound = Callable[..., Round]
Answer = TypeVar("Answer")
MakeParty = Callable[[Round], Intermediary]
USUAL = lenient()
BLOCK = FleetOptions(block=7)


@pytest.fixture
def new_party(clock: ManualClock, tmp_path: Path) -> Iterator[MakeParty]:
    """Return a maker of intermediaries of a round's kind, each with an empty database."""
    made: list[tuple[Intermediary, Database]] = []

    def make(round_: Round) -> Intermediary:
        database = Database(f"sqlite:///{tmp_path}/party-{len(made)}.sqlite3", METADATA, VERSION)
        kind: Any = Shuffler if round_.assignments[0].cohort.via == "shuffler" else Aggregator
        made.append((kind(database, clock), database))
        return made[-1][0]

    yield make
    for party, database in made:
        party.close()
        database.close()


@pytest.fixture(params=["records", "bits", "masks", "assigned"])
def round_(request: pytest.FixtureRequest, make_round: MakeRound, make_assigned: MakeRound) -> Round:
    """Return a round of one cohort with 32 clients, by each way that messages travel."""
    makers: dict[str, Callable[[], Round]] = {
        "records": lambda: make_round("local-laplace-discrete", via="shuffler", clients=32),
        "bits": lambda: make_round("shuffled-binomial", delta=1e-2, clients=32),
        "masks": lambda: make_round("distributed-polya", clients=32),
        "assigned": lambda: make_assigned(times=(12, 10, 10)),
    }
    return makers[request.param]()


def sent(harness: FleetHarness) -> set[int]:
    """Return the slots of which a message left, other than that they leave."""
    requested = [slot for request in harness.action_requests for slot in request.slots]
    return {item.slot for upload in harness.uploads for item in upload.items} | set(requested)


def test_a_cohort_whose_server_and_intermediary_forgot_it_is_not_played_again(
    round_: Round, world: World, new_party: MakeParty, tmp_path: Path
) -> None:
    """The attack is real: clients that forget are all released a second time. Those with a file send nothing."""
    file, everyone, block = tmp_path / "clients.sqlite3", set(range(32)), FleetOptions(block=32)
    first = FleetHarness([round_], new_party(round_), TICKET_KEY)
    assert serve(Fleet(first, world, USUAL, block, Memory(file))) == ["finished"]
    forgetting = FleetHarness([round_], new_party(round_), TICKET_KEY)
    assert serve(Fleet(forgetting, world, USUAL, block)) == ["finished"]
    assert (sent(first), sent(forgetting)) == (everyone, everyone)
    again = FleetHarness([round_], new_party(round_), TICKET_KEY)
    fleet = Fleet(again, world, USUAL, block, Memory(file))
    with pytest.raises(Refused, match=r"slots 0 to 31 of cohort demo\.1\..*\.1 a second time: each client takes part"):
        serve(fleet)
    assert (sent(again), fleet.stats.clients["refused"]) == (set(), 32)
    assert fleet.stats.clients["served"] == 0


class _Rewound(FleetHarness):
    """A server and an intermediary that go back to an earlier round, once, before the fleet has ended.

    back  the number of rounds that they have forgotten, as after a restore from a copy of then.
    """

    def __init__(self, rounds: list[Round], parties: Sequence[Intermediary], back: int) -> None:
        self._later, self._back = parties[1], back
        super().__init__(rounds, parties[0], TICKET_KEY)

    async def round(self, after: int, wait: float) -> RoundView:
        view = await super().round(after, wait)
        last = self._at == len(self.rounds)
        if last and self._back:
            self._at, self._back, self.intermediary = self._at - self._back, 0, self._later
            self.before, self.uploads, self.action_requests = sent(self), [], []
            self._given.clear()
            self.hashes.clear()
            for cohort in self._cohorts():
                self.intermediary.open(cohort)
            return await super().round(after, wait)
        return view


def test_a_fleet_that_runs_on_while_the_others_go_back_sends_nothing_a_second_time(
    round_: Round, world: World, new_party: MakeParty
) -> None:
    harness = _Rewound([round_], [new_party(round_), new_party(round_)], back=1)
    fleet = Fleet(harness, world, USUAL, BLOCK)
    with pytest.raises(Refused, match=r"slots (0 to 6|7 to 13) of cohort demo\.1\..*\.1 a second time"):  # its blocks'
        serve(fleet)
    assert (len(harness.before), sent(harness)) == (32, set())


@pytest.mark.parametrize("name", ["local-laplace-discrete", "distributed-polya"])
def test_an_earlier_round_is_refused_before_a_ticket_of_it_is_used(
    make_round: MakeRound, world: World, new_party: MakeParty, tmp_path: Path, name: str
) -> None:
    """The server goes back from round 2 to round 1. A fleet that starts then has the file only."""
    via = {"via": "shuffler"} if name.startswith("local") else {}
    rounds = [make_round(name, number=number, **via) for number in (1, 2)]
    harness = _Rewound(rounds, [new_party(rounds[0]), new_party(rounds[0])], back=2)
    says = "round 1 of run demo: these clients have been in round 2, and go forward only"
    with pytest.raises(Refused, match=says):
        serve(Fleet(harness, world, USUAL, BLOCK, Memory(tmp_path / "clients.sqlite3")))
    assert (len(harness.before), sent(harness)) == (20, set())
    later = FleetHarness(rounds, new_party(rounds[0]), TICKET_KEY)
    fleet = Fleet(later, world, USUAL, BLOCK, Memory(tmp_path / "clients.sqlite3"))
    with pytest.raises(Refused, match=says):
        serve(fleet)
    assert (sent(later), later._given, later.looks) == (set(), {}, [])  # not even a ticket


def test_a_cohort_that_has_changed_since_a_client_was_in_it_is_refused(
    make_round: MakeRound, world: World, new_party: MakeParty, tmp_path: Path
) -> None:
    """A restored server has another key for the same cohort."""
    round_ = make_round("local-laplace-discrete", via="shuffler")
    memory = Memory(tmp_path / "clients.sqlite3")
    cohort = round_.assignments[0].cohort.model_copy(update={"ticket_key": b"k" * 32})
    memory.hold([HeldSlots(cohort, round_.mechanism, [19])])
    harness = FleetHarness([round_], new_party(round_), TICKET_KEY)
    with pytest.raises(Refused, match=r"cohort demo\.1\.0\.1 is another one than that in which clients have taken"):
        serve(Fleet(harness, world, USUAL, BLOCK, memory))
    assert (sent(harness), harness._given, harness.looks) == (set(), {}, [])


class _Dying(FleetHarness):
    """A server and an intermediary that outlive a fleet, which ends at its call `at`: before it arrives, or after.

    After that, once all tickets are taken, a stage ends at each look at the round: it waits for no lost clients.
    """

    def __init__(self, round_: Round, party: Intermediary, clock: ManualClock, at: int, *, after: bool) -> None:
        self._at_call, self._after, self._clock, self._calls, self.killed = at, after, clock, 0, False
        self.begun: list[Upload] = []
        super().__init__([round_], party, TICKET_KEY)

    async def _counted(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        self._calls += 1
        dies = self._calls == self._at_call
        answer = await call() if self._after or not dies else None
        if dies or answer is None:
            self.killed = True
            raise Unavailable("killed")
        return answer

    async def round(self, after: int, wait: float) -> RoundView:
        given = all(self._given[cohort.cohort] == cohort.clients for cohort in self._cohorts())
        if given and self.killed:
            self._clock.advance(61.0)
        return await super().round(after, wait)

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        return await self._counted(lambda: FleetHarness.tickets(self, request, wait))

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        self.begun.append(upload)
        return await self._counted(lambda: FleetHarness.upload(self, cohort, upload))


@pytest.mark.parametrize(
    ("name", "after"),
    [
        pytest.param("local-laplace-discrete", False, id="records-before-the-call"),
        pytest.param("local-laplace-discrete", True, id="records-after-the-call"),
        pytest.param("distributed-polya", True, id="masks-after-the-call"),
    ],
)
def test_a_fleet_that_is_killed_at_any_call_and_starts_again_randomizes_no_slot_twice(
    make_round: MakeRound,
    world: World,
    new_party: MakeParty,
    *,
    clock: ManualClock,
    tmp_path: Path,
    name: str,
    after: bool,
) -> None:
    """A slot is in the file before a message of it leaves. The fleet that starts again gets other slots."""
    records = name.startswith("local")
    round_ = make_round(name, clients=12, minimum=2, **({"via": "shuffler"} if records else {}))
    options = FleetOptions(block=6)
    for at in count(1):
        file = tmp_path / f"clients-{at}.sqlite3"
        harness = _Dying(round_, new_party(round_), clock, at, after=after)
        with suppress(Unavailable):
            serve(Fleet(harness, world, USUAL, options, Memory(file)))
        if not harness.killed:
            break
        assert {item.slot for upload in harness.begun for item in upload.items} <= noted(file, round_)
        assert serve(Fleet(harness, world, USUAL, options, Memory(file))) == ["finished"]
        bodies = defaultdict(set)
        for item in (item for upload in harness.begun if upload.stage in {"report", "masked"} for item in upload.items):
            bodies[item.slot].add(item.body)
        assert all(len(each) == 1 for each in bodies.values())
    assert at > (4 if records else 12)  # it was killed at each call of a run, and at last at none


def noted(file: Path, round_: Round) -> set[int]:
    """Return the slots of the round's cohort in the file."""
    run = round_.assignments[0].cohort.run_digest
    return {slot for row in spent(Memory(file), run) for slot in range(row.first, row.last + 1)}


def test_an_upload_is_repeated_with_the_same_bytes_and_counts_once(
    make_round: MakeRound, world: World, new_party: MakeParty, tmp_path: Path
) -> None:
    class Forgetful(FleetHarness):
        async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
            await super().upload(cohort, upload)
            return await super().upload(cohort, upload)

    round_ = make_round("local-laplace-discrete", via="shuffler")
    memory, harness = Memory(tmp_path / "clients.sqlite3"), Forgetful([round_], new_party(round_), TICKET_KEY)
    assert serve(Fleet(harness, world, USUAL, FleetOptions(), memory)) == ["finished"]
    assert harness.uploads[0] == harness.uploads[1]
    assert noted(tmp_path / "clients.sqlite3", round_) == set(range(20))


def test_a_cohort_that_fails_after_messages_left_has_cost_its_clients_a_contribution(
    make_round: MakeRound, world: World, shuffler: Shuffler, tmp_path: Path
) -> None:
    class Aborting(FleetHarness):
        async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
            await super().upload(cohort, upload)
            self.cancelled = True
            raise Unavailable("the shuffler is gone")

    round_ = make_round("local-laplace-discrete", via="shuffler")
    memory = Memory(tmp_path / "clients.sqlite3")
    with pytest.raises(Unavailable):
        serve(Fleet(Aborting([round_], shuffler, TICKET_KEY), world, USUAL, FleetOptions(), memory))
    (row,) = spent(Memory(tmp_path / "clients.sqlite3"), round_.assignments[0].cohort.run_digest)
    assert (row.cohort, row.first, row.last, row.guarantee.epsilon) == ("demo.1.0.1", 0, 19, 1.0)


def test_fleets_of_one_machine_share_a_file_and_a_cohort(
    round_: Round, world: World, new_party: MakeParty, tmp_path: Path
) -> None:
    file = tmp_path / "clients.sqlite3"
    harness = FleetHarness([round_], new_party(round_), TICKET_KEY)
    fleets = [Fleet(harness, world, USUAL, BLOCK, Memory(file)) for _ in range(3)]
    assert serve(*fleets) == ["finished"] * 3
    assert noted(file, round_) == set(range(32))
    assert sum(fleet.stats.clients["served"] for fleet in fleets) == 32


def test_clients_that_cannot_note_that_they_take_part_send_nothing(
    round_: Round, world: World, new_party: MakeParty, tmp_path: Path
) -> None:
    file = tmp_path / "clients.sqlite3"
    memory, harness = Memory(file), FleetHarness([round_], new_party(round_), TICKET_KEY)
    memory._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(BadParameter, match=r"memory_file = .* cannot be written"):
        serve(Fleet(harness, world, USUAL, BLOCK, memory))
    assert sent(harness) == set()
    memory = Memory(file)
    memory._connection.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match=r"memory_file .* another program has held it"):
            serve(Fleet(harness, world, USUAL, BLOCK, memory))
    assert sent(harness) == set()


def test_what_cohorts_have_cost_is_counted_by_a_fleet_that_starts_again(
    make_round: MakeRound, world: World, new_party: MakeParty, tmp_path: Path
) -> None:
    """Clients come twice. A fleet before this one was in a cohort at ε = 2: twice costs almost 4, and they allow 3."""
    twice = lenient(max_epsilon=3.0, contributions=2)
    round_ = make_round("local-laplace-discrete", via="shuffler")
    weaker = round_.mechanism.model_copy(update={"epsilon": 2.0})
    assert config_of(round_).mechanism.epsilon == 1.0
    file = tmp_path / "clients.sqlite3"
    for before, counted in (([], False), ([weaker], True)):
        cohort = round_.assignments[0].cohort.model_copy(update={"cohort": "demo.1.1.1"})
        memory = Memory(file)
        memory.hold([HeldSlots(cohort, mechanism, [number]) for number, mechanism in enumerate(before)])
        harness = FleetHarness([round_], new_party(round_), TICKET_KEY)
        fleet = Fleet(harness, world, twice, BLOCK, memory)
        if counted:
            with pytest.raises(BudgetExceeded, match=r"2 contributions would cost ε = 3\.981\d+ .* is ε = 3"):
                serve(fleet)
            assert (sent(harness), harness._given) == (set(), {})
        else:
            memory.close()
            assert asyncio.run(Fleet(harness, world, twice, BLOCK).serve()) == "finished"
