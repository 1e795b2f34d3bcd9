"""Random operations on a cohort at either intermediary: state machines for Hypothesis."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distrust.aggregator.service import Aggregator
from distrust.common.errors import Aborted, ProtocolError
from distrust.common.modular import Vector, unpack
from distrust.common.protocol.channels.masked import Masking, ModularSum
from distrust.common.protocol.channels.sealed import REPORT_ID, Records, sealed_size
from distrust.common.protocol.crypto.graph import bitmap_to_members
from distrust.common.protocol.crypto.seal import open_record, seal
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.storage.database import Database
from distrust.shuffler.service import Shuffler
from tests.support.cohorts import SECONDS, Authority, MaskingClients
from tests.support.manual_clock import ManualClock

N, M = 6, 2**20
server = Authority()
one = st.integers(0, N - 1)
some = st.sets(one, min_size=1)
EVERYONE = frozenset(range(N))
BY_SUBCLASS = "AtTheShuffler and AtTheAggregator implement it, each for its own messages"


class Powers(MaskingClients):
    """Client i of a masked cohort holds 2^i."""

    def vector(self, slot: int) -> Vector:
        return np.array([1 << slot], dtype=np.uint64)


class Operations(RuleBasedStateMachine):
    """The operations on either intermediary. A subclass makes the clients' messages, and reads the sum of a batch."""

    stages: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.clock = ManualClock()
        self.sent: dict[str, dict[int, bytes]] = {}
        self.left: set[int] = set()
        self.first_answer: bytes | None = None

    def build(self, database: Database) -> Intermediary:
        raise NotImplementedError(BY_SUBCLASS)

    def make_cohort(self) -> Cohort:
        raise NotImplementedError(BY_SUBCLASS)

    def bodies(self, view: StageView, who: set[int]) -> dict[int, bytes]:
        """Return new messages for the open stage."""
        raise NotImplementedError(BY_SUBCLASS)

    def counted(self, answer: BatchAnswer) -> int:
        """Return the sum of the values in a batch."""
        raise NotImplementedError(BY_SUBCLASS)

    @initialize()
    def begin(self) -> None:
        self.cohort = self.make_cohort()
        self._start()
        self.service.open(self.cohort)

    @rule(twice=st.booleans())
    def everyone_answers(self, *, twice: bool) -> None:
        """Let all clients answer. With fewer than three rules of this kind hardly any cohort would be released."""
        self._answer(EVERYONE, twice=twice)

    @rule(missing=one)
    def all_but_one_answer(self, missing: int) -> None:
        self._answer(EVERYONE - {missing}, twice=False)

    @rule(who=some, twice=st.booleans())
    def some_answer(self, who: set[int], *, twice: bool) -> None:
        self._answer(who, twice=twice)

    def _answer(self, who: AbstractSet[int], *, twice: bool) -> None:
        """Let clients answer the open stage; `twice`: they send the same bodies again, as if the answer was lost."""
        view = self.view()
        if view.stage not in self.stages:
            return
        known = self.sent.setdefault(view.stage, {})
        new = {slot for slot in who if slot not in known and slot not in self.left and self._member(view, slot)}
        known |= self.bodies(view, new)
        for _ in range(1 + twice):
            self._send(view.stage, {slot: known[slot] for slot in who if slot in known})

    @rule(stage=st.integers(0, 4), who=some)
    def replay(self, stage: int, who: set[int]) -> None:
        """Send old messages of any stage again."""
        name = self.stages[stage % len(self.stages)]
        self._send(name, {slot: body for slot, body in self.sent.get(name, {}).items() if slot in who})

    @rule(victim=one, thief=one)
    def steal(self, victim: int, thief: int) -> None:
        """Send another client's message as a client's own. The client has sent its own message of this stage before."""
        name = self.stages[-1] if self.stages == ("report",) else "keys"
        body = self.sent.get(name, {}).get(victim)
        if body is not None and thief in self.sent.get(name, {}) and thief != victim:
            self._send(name, {thief: body})

    @rule(who=one)
    def leave(self, who: int) -> None:
        self.left.add(who)
        self.service.leave(self.cohort.address, server.leaving(self.cohort, [who]))

    @rule(seconds=st.sampled_from([1.0, SECONDS / 3, SECONDS, 3 * SECONDS]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self._stop()
        self._start()

    @rule()
    def open_again(self) -> None:
        """Open the cohort again, as a restarted server does. The intermediary refuses if the cohort was aborted."""
        try:
            self.service.open(self.cohort)
        except Aborted:
            assert self.service.settled(self.cohort.address).stage == "aborted"

    @precondition(lambda self: hasattr(self, "cohort"))
    @invariant()
    def what_is_released_counts_everyone_at_most_once_and_never_changes(self) -> None:
        result = self.service.batch(self.cohort.address)
        if isinstance(result, BatchAnswer):
            assert self.first_answer is None
            assert result.batch is None
            return
        assert self.first_answer in (None, result)
        self.first_answer = result
        answer = BatchAnswer.model_validate_json(result)
        assert answer.batch is not None
        survivors = set(self.survivors())
        assert self.counted(answer) == sum(1 << slot for slot in survivors)
        assert (answer.batch.survivors, answer.lost) == (len(survivors), N - len(survivors))
        assert len(survivors) >= self.cohort.minimum

    def survivors(self) -> Iterator[int]:
        """Yield the slots whose vector the intermediary has committed, read from its database."""
        stage = "masked" if "masked" in self.stages else "report"
        with self.database.reading() as tx:
            query = "SELECT slot FROM messages WHERE stage = ? AND slot >= 0"
            yield from (slot for (slot,) in tx.exec_driver_sql(query, (stage,)))

    def teardown(self) -> None:
        self._stop()
        self.folder.cleanup()

    def view(self) -> StageView:
        return server.stage(self.service, self.cohort)

    def _member(self, view: StageView, slot: int) -> bool:
        return slot in bitmap_to_members(view.members, N)

    def _send(self, stage: str, bodies: dict[int, bytes]) -> None:
        try:
            answer = self.service.receive(self.cohort.address, stage, server.upload(self.cohort, stage, bodies))
        except ProtocolError:
            return
        assert answer.accepted + len(answer.refused) == len(bodies)

    def _start(self) -> None:
        self.database = Database(f"sqlite:///{Path(self.folder.name)}/s.sqlite3", METADATA, VERSION)
        self.service = self.build(self.database)

    def _stop(self) -> None:
        if hasattr(self, "service"):
            self.service.close()
            self.database.close()


class AtTheShuffler(Operations):
    stages = ("report",)

    def build(self, database: Database) -> Intermediary:
        return Shuffler(database, self.clock)

    def make_cohort(self) -> Cohort:
        return server.sealed(clients=N)

    def bodies(self, view: StageView, who: set[int]) -> dict[int, bytes]:
        key = server.seals.public_key().public_bytes_raw()
        ids = {slot: bytes([slot + 1] * REPORT_ID) for slot in who}
        return {s: ids[s] + seal(key, self.cohort, ids[s], (1 << s).to_bytes(8)) for s in who}

    def counted(self, answer: BatchAnswer) -> int:
        assert answer.batch is not None
        assert isinstance(answer.batch.content, Records)
        body, size = answer.batch.content.body, sealed_size(8)
        records = [body[at : at + size] for at in range(0, len(body), size)]
        return sum(int.from_bytes(open_record(server.seals, self.cohort, record)[1]) for record in records)


class AtTheAggregator(Operations):
    stages = ("keys", "shares", "confirm", "masked", "unmask")

    def __init__(self) -> None:
        super().__init__()
        self.masking_clients: Any = None

    def build(self, database: Database) -> Intermediary:
        return Aggregator(database, self.clock)

    def make_cohort(self) -> Cohort:
        cohort = server.masked(dimension=1, clients=N)
        assert isinstance(cohort.channel, Masking)
        cohort = cohort.model_copy(update={"channel": cohort.channel.model_copy(update={"modulus": M})})
        self.masking_clients = Powers(cohort)
        return cohort

    def bodies(self, view: StageView, who: set[int]) -> dict[int, bytes]:
        """Return new messages of the clients that have answered every earlier stage."""
        before = self.stages[: self.stages.index(view.stage)]
        able = {slot for slot in who if all(slot in self.sent.get(stage, {}) for stage in before)}
        return dict(self.masking_clients.answer(view, sorted(able)))

    def counted(self, answer: BatchAnswer) -> int:
        assert answer.batch is not None
        assert isinstance(answer.batch.content, ModularSum)
        return int(unpack(answer.batch.content.body, M, 1)[0])


def bounds(examples: int) -> settings:
    return settings(max_examples=examples, stateful_step_count=32, deadline=None, derandomize=True)
