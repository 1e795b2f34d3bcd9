"""Tests that clients' memory lets no slot be held twice, over restarts, and says why a file cannot be used."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distrust.client.fleet import memory as module
from distrust.client.fleet.memory import HeldSlots, Memory
from distrust.client.fleet.settings import FleetSettings
from distrust.common.bandit.decisions import AssignedArm
from distrust.common.bandit.statistics import Reward
from distrust.common.dp.mechanisms import AnyMechanism, MechanismSpec, plan, promise_of
from distrust.common.errors import BadParameter, Refused, Unavailable
from distrust.common.protocol.channels.sealed import Sealed
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.round import Assignment, Round
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from tests.unit.client.conftest import spent

R, OTHER_RUN = b"r" * 32, b"s" * 32
CLIENTS = 100


def _mechanism(epsilon: float) -> AnyMechanism:
    spec = MechanismSpec(name="local-laplace-discrete", epsilon=epsilon, via="shuffler")
    return plan(spec, clients=CLIENTS, min_survivors=90, min_honest=80, overflow_probability=1e-9, statistic=Reward())


MECHANISM, WEAKER = _mechanism(1.0), _mechanism(2.0)


def cohort_of(number: int = 1, *, run: bytes = R, arm: int = 0, terms: str = "{}") -> Cohort:
    return Cohort(
        run="demo",
        round=number,
        cohort=f"demo.{number}.{arm}.1",
        clients=CLIENTS,
        minimum=90,
        stage_seconds=1.0,
        run_digest=run,
        ticket_key=b"t" * 32,
        channel=Sealed(size=1, server_key=b"k" * 32),
        terms=terms,
    )


def round_of(*cohorts: Cohort) -> Round:
    return Round(
        run="demo",
        number=cohorts[0].round,
        decision=AssignedArm(),
        statistic=Reward(),
        mechanism=MECHANISM,
        dropout=0.1,
        corrupt=0.1,
        assignments=[Assignment(arm=arm, cohort=cohort) for arm, cohort in enumerate(cohorts)],
    )


def hold(memory: Memory, cohort: Cohort, *slots: int, mechanism: AnyMechanism = MECHANISM) -> None:
    memory.hold([HeldSlots(cohort, mechanism, slots)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "clients.sqlite3"


@pytest.fixture
def reopen(file: Path) -> Iterator[Callable[[], Memory]]:
    """Return a function that opens the file, as a fleet does that starts again."""
    opened: list[Memory] = []

    def again() -> Memory:
        opened.append(Memory(file))
        return opened[-1]

    yield again
    for memory in opened:
        memory.close()


@pytest.mark.parametrize(
    ("slots", "named"),
    [
        pytest.param((5,), "slot 5", id="one-of-them"),
        pytest.param((7, 8, 9), "slot 7", id="from-the-last"),
        pytest.param((2, 3, 4, 5), "slots 4 to 5", id="up-to-the-second"),
        pytest.param(range(100), "slots 20 to 29", id="all-around"),
        pytest.param((60, 61, 22), "slot 22", id="second-block-in-any-order"),
    ],
)
def test_a_slot_is_held_once_also_after_a_restart(
    reopen: Callable[[], Memory], slots: tuple[int, ...], named: str
) -> None:
    memory, cohort = reopen(), cohort_of()
    hold(memory, cohort, 4, 5, 6, 7)
    hold(memory, cohort, *range(20, 30))
    before = spent(memory, R)
    for again in (memory, reopen()):
        with pytest.raises(Refused, match=f"^{named} of cohort demo.1.0.1 a second time: each client takes part once$"):
            hold(again, cohort, *slots)
        assert spent(again, R) == before  # nothing of the block is noted
    hold(reopen(), cohort, 8, 19, 30)  # the slots between are other clients'


def test_a_slot_twice_in_one_block_is_refused_with_the_whole_block() -> None:
    memory = Memory()
    with pytest.raises(Refused, match=r"slots 3 to 4 of cohort demo\.1\.0\.1 a second time"):
        memory.hold([HeldSlots(cohort_of(), MECHANISM, range(5)), HeldSlots(cohort_of(), MECHANISM, range(3, 9))])
    with pytest.raises(Refused, match="slot 3 of cohort"):
        hold(memory, cohort_of(), 3, 3)
    assert spent(memory, R) == []


def test_rounds_go_forward_only_also_after_a_restart_and_each_run_has_its_own(reopen: Callable[[], Memory]) -> None:
    memory = reopen()
    for slot, number in enumerate((1, 3, 3, 5)):
        memory.check(R, round_of(cohort_of(number)))
        hold(memory, cohort_of(number), slot)
    for again in (memory, reopen()):
        for old in (1, 4):
            with pytest.raises(Refused, match=f"^round {old} of run demo: these clients have been in round 5, and go"):
                again.check(R, round_of(cohort_of(old)))
        again.check(R, round_of(cohort_of(5)))
        again.check(OTHER_RUN, round_of(cohort_of(1, run=OTHER_RUN)))


def test_a_round_that_was_only_looked_at_is_no_way_back_either(reopen: Callable[[], Memory]) -> None:
    memory = reopen()
    memory.check(R, round_of(cohort_of(2)))
    with pytest.raises(Refused, match="round 1 of run demo"):
        memory.check(R, round_of(cohort_of(1)))
    reopen().check(R, round_of(cohort_of(1)))  # nothing left a client in round 2


def test_a_cohort_of_a_known_name_must_be_the_same_cohort(reopen: Callable[[], Memory]) -> None:
    memory, other = reopen(), cohort_of(terms='{"arm":1}')
    hold(memory, cohort_of(), 1)
    for again in (memory, reopen()):
        for act in (lambda: again.check(R, round_of(cohort_of(arm=1), other)), lambda: hold(again, other, 2)):  # noqa: B023
            with pytest.raises(Refused, match=r"cohort demo\.1\.0\.1 is another one than that in which clients have"):
                act()
    hold(reopen(), cohort_of(run=OTHER_RUN, terms="{}"), 1)  # the same name in another run


def test_contributions_are_counted_by_slot_with_what_they_cost(reopen: Callable[[], Memory]) -> None:
    memory = reopen()
    memory.hold([HeldSlots(cohort_of(), MECHANISM, range(4)), HeldSlots(cohort_of(arm=1), WEAKER, [9, 3, 4])])
    hold(memory, cohort_of(2), *range(5), mechanism=MECHANISM)
    hold(memory, cohort_of(1, run=OTHER_RUN), 0)
    strong, weak = promise_of(MECHANISM), promise_of(WEAKER)
    assert (strong.epsilon, weak.epsilon) == (1.0, 2.0)
    again = reopen()
    assert spent(again, R) == [
        (1, "demo.1.0.1", 0, 3, strong),
        (1, "demo.1.1.1", 3, 4, weak),
        (1, "demo.1.1.1", 9, 9, weak),
        (2, "demo.2.0.1", 0, 4, strong),
    ]
    assert again.mechanisms(R) == [MECHANISM, WEAKER]
    assert again.mechanisms(OTHER_RUN) == [MECHANISM]
    assert again.mechanisms(b"t" * 32) == []


def test_two_fleets_of_a_machine_share_a_file_and_each_goes_forward_by_what_it_saw(file: Path) -> None:
    """The second fleet has an answer about round 1 when the first has come to round 2. No party has lied."""
    first, second = Memory(file), Memory(file)
    second.check(R, round_of(cohort_of(1)))
    for number in (1, 2):
        first.check(R, round_of(cohort_of(number)))
        hold(first, cohort_of(number), 1)
    second.check(R, round_of(cohort_of(1)))
    hold(second, cohort_of(1), 2)
    with pytest.raises(Refused, match=r"slot 1 of cohort demo\.2\.0\.1 a second time"):
        hold(second, cohort_of(2), 1)
    with pytest.raises(Refused, match="these clients have been in round 2"):
        Memory(file).check(R, round_of(cohort_of(1)))


def test_a_memory_without_a_file_forgets() -> None:
    hold(Memory(), cohort_of(), 1)
    hold(Memory(), cohort_of(), 1)


def test_only_its_owner_reads_the_file(file: Path) -> None:
    memory = Memory(file)
    hold(memory, cohort_of(), 1)
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in file.parent.iterdir()}
    assert modes == dict.fromkeys((file.name, f"{file.name}-wal", f"{file.name}-shm"), 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    memory.close()
    file.chmod(0o644)
    Memory(file).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_commit_is_on_the_disk_when_it_returns(file: Path) -> None:
    memory = Memory(file)
    modes = [memory._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert modes == ["wal", 2]  # 2: FULL, which waits for the disk at each commit


def _bend(file: Path) -> None:
    """Change the page of contributions."""
    raw = bytearray(file.read_bytes())
    start = raw.rindex(b"demo.1.0.1")
    page = start - start % 4096
    raw[page : page + 16] = b"\xff" * 16
    file.write_bytes(raw)


def _sql(command: str) -> Callable[[Path], None]:
    def harm(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute(command)

    return harm


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda file: (file.unlink(), make(file))[0]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        pytest.param(lambda file: file.write_bytes(b""), "is damaged; it alone tells which clients", id="truncated"),
        pytest.param(
            lambda file: file.write_bytes(b"no database " * 1000),
            "is damaged; it alone tells which clients",
            id="overwritten",
        ),
        pytest.param(_bend, "is damaged; it alone tells which clients", id="a-page-of-it"),
        pytest.param(
            _sql("UPDATE costs SET mechanism = '{}'"), "is damaged; it alone tells which clients", id="values"
        ),
        pytest.param(_sql("DROP TABLE runs"), "is damaged; it alone tells which clients", id="a-table"),
        pytest.param(_sql("PRAGMA user_version = 99"), "has version 99, and this program needs 1", id="other-version"),
        pytest.param(
            _instead(_sql("CREATE TABLE their_own (number INTEGER)")), "is no file of a fleet", id="other-program"
        ),
        pytest.param(_instead(Path.mkdir), "must be a file", id="folder"),
        pytest.param(_instead(os.mkfifo), "must be a file", id="pipe"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_named_and_never_begun_anew(
    file: Path, harm: Callable[[Path], None], words: str
) -> None:
    memory = Memory(file)
    hold(memory, cohort_of(), *range(50))
    memory.close()
    harm(file)
    before = file.read_bytes() if file.is_file() else None
    with pytest.raises(BadParameter, match=words) as raised:
        Memory(file).mechanisms(R)
    assert raised.value.field in FleetSettings.model_fields
    assert raised.value.detail.startswith(f"memory_file = '{file}': {words}")
    assert "\n" not in raised.value.detail
    assert before == (file.read_bytes() if file.is_file() else None)


@contextmanager
def _full(memory: Memory, _file: Path) -> Iterator[None]:
    pages = memory._connection.execute("PRAGMA page_count").fetchone()[0]
    memory._connection.execute(f"PRAGMA max_page_count = {pages}")
    yield


@contextmanager
def _read_only(memory: Memory, _file: Path) -> Iterator[None]:
    memory._connection.execute("PRAGMA query_only = ON")
    yield


@contextmanager
def _busy(memory: Memory, file: Path) -> Iterator[None]:
    memory._connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.close()


def _fill(memory: Memory) -> None:
    for number in range(2, 1000):  # until the pages that are there are full
        memory.hold([HeldSlots(cohort_of(number), MECHANISM, range(0, 100, 2))])


@pytest.mark.parametrize(
    ("harm", "error", "words"),
    [
        pytest.param(_full, Unavailable, "the disk is full", id="full"),
        pytest.param(_read_only, BadParameter, "cannot be written", id="read-only"),
        pytest.param(_busy, Unavailable, "another program has held it", id="held"),
    ],
)
def test_what_cannot_be_noted_is_an_error_and_what_was_noted_stays(
    file: Path,
    harm: Callable[[Memory, Path], AbstractContextManager[None]],
    error: type[Exception],
    words: str,
) -> None:
    memory = Memory(file)
    hold(memory, cohort_of(), 1)
    with harm(memory, file), pytest.raises(error, match=words):
        _fill(memory)
    noted = spent(memory, R)
    assert noted[0][:4] == (1, "demo.1.0.1", 1, 1)
    assert spent(Memory(file), R) == noted


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BadParameter, match=r"clients\.sqlite3': cannot be used"):
        Memory(tmp_path / "file" / "clients.sqlite3")


def test_a_file_that_another_user_could_have_made_forget_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory(file).close()
    os.chown(file, 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(BadParameter, match="belongs to user"):
        Memory(file)


def test_a_fleet_that_is_killed_while_it_makes_the_file_leaves_none(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "link", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Memory(file)
    assert list(file.parent.iterdir()) == []


def test_fleets_that_name_no_file_and_those_of_a_local_stack_share_one() -> None:
    own = FleetSettings(environment="{}").memory_file
    assert own.resolve() == DataDir(DEFAULT).memory_file


class _Clients(RuleBasedStateMachine):
    """Restarts, rounds and slots in any order, against sets of what was held: no slot is randomized a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.file = Path(self.folder.name) / "clients.sqlite3"
        self.memory = Memory(self.file)
        self.held, self.last = set[tuple[int, int]](), 0

    def teardown(self) -> None:
        self.memory.close()
        self.folder.cleanup()

    @rule()
    def restart(self) -> None:
        self.memory.close()
        self.memory = Memory(self.file)
        self.last = max((number for number, _ in self.held), default=0)

    @rule(number=st.integers(1, 4))
    def is_shown(self, number: int) -> None:
        try:
            self.memory.check(R, round_of(cohort_of(number)))
        except Refused:
            assert number < self.last
        else:
            assert number >= self.last
            self.last = number

    @rule(number=st.integers(1, 4), slots=st.lists(st.integers(0, 12), min_size=1, max_size=5))
    def holds(self, number: int, slots: list[int]) -> None:
        new = {(number, slot) for slot in slots}
        fresh = len(new) == len(slots) and not new & self.held
        try:
            hold(self.memory, cohort_of(number), *slots)
        except Refused:
            assert not fresh
        else:
            assert fresh
            self.held |= new

    @invariant()
    def has_what_was_held(self) -> None:
        noted = ((row.round, slot) for row in spent(self.memory, R) for slot in range(row.first, row.last + 1))
        assert sorted(noted) == sorted(self.held)


TestAnyOrder = _Clients.TestCase
TestAnyOrder.settings = settings(max_examples=20, stateful_step_count=15)
