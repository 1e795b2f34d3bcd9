"""Moves a cohort through its life at an intermediary: stages, their deadlines and minima, and the mixing at the end.

A cohort passes its party's `stages`, then `MIXING` (no message is taken any more), and ends `done` or `aborted`.
A stage is over `stage_seconds` after it began. The first stage begins with its first message. A cohort ends if none of
its clients sends a message or leaves within `first_seconds` after it was opened last. So a run does not stand still for
a client that holds a ticket, or has crashed with one.
Deadlines are checked at every request, and by `sweep` while requests wait. The batch is computed from committed
messages, outside every transaction, so a crash in between only repeats it. A party may compute a small one in the
transaction that takes the last message: messages and batch are committed together then, or neither.

Log events: `cohort_aborted`; `release_delayed`, when a batch is tried again at the next request; `release_failed`, when
an unexpected error ended the cohort.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar

import structlog
from sqlalchemy import Connection

from distrust.common.errors import ProtocolError, TooSmall, Unavailable
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS, MIXING, Clock, Deadlines
from distrust.common.protocol.intermediary.keeping import Keeper
from distrust.common.protocol.intermediary.store import State
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, name_in
from distrust.common.protocol.messages.status import CohortStage
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import repeated

_RELEASED = 16  # small batches in memory, from the newest on
_FETCH = 256  # bodies in memory at once while a stage is read through

_log = structlog.get_logger("distrust.intermediary")


def silence(_address: str) -> None:
    """Do nothing: no request waits for changes."""


class StageMachine(ABC):
    """Moves cohorts from stage to stage. Safe to call from many threads, and from several workers over one database.

    notify         called with the cohort's address after every change.
    first_seconds  time from the last opening of a cohort to its first message; never more than its `stage_seconds`.
    """

    stages: ClassVar[tuple[CohortStage, ...]]
    first_seconds: float = FIRST_SECONDS

    def __init__(self, database: Database, clock: Clock, notify: Callable[[str], None] = silence) -> None:
        self._database, self._clock, self._notify = database, clock, notify
        self._mixer = ThreadPoolExecutor(1, thread_name_prefix="mixer")
        self._mixing: set[str] = set()
        self._released: dict[str, bytes] = {}
        self.deadlines = Deadlines(database, clock, self.stages[0])
        self.keeper = Keeper(database, clock)
        self._guard = threading.Lock()

    @abstractmethod
    def _mix(self, state: State) -> Batch:
        """Return the batch of a frozen cohort. Runs outside every transaction; a ProtocolError aborts the cohort."""

    @abstractmethod
    def _closing(self, tx: Connection, state: State) -> None:
        """Store this party's data for clients once the open stage closes. A TooSmall ends the cohort."""

    def _small_batch(self, _tx: Connection, _state: State) -> Batch | None:
        """Return the batch of a cohort whose last stage closes, if it is small enough to be computed at once."""
        return None

    def _members(self, _tx: Connection, _state: State) -> Collection[int] | None:
        """Return the slots that take part in the open stage; None when all do."""
        return None

    def _min_answers(self, state: State) -> int:
        """Return the number of messages below which the open stage ends the cohort."""
        return state.cohort.minimum

    def close(self) -> None:
        """Finish the batch that is being computed. Start no other."""
        self._mixer.shutdown(cancel_futures=True)

    @repeated
    def settled(self, address: str) -> State:
        """Return the state of the cohort with this address after every deadline that has passed. Raises WrongCohort."""
        with self._database.reading() as tx:
            state = store.need(tx, address)
            due = self._due(tx, state) is not None
        if due:
            with self._database.transaction() as tx:
                state = self._advance(tx, store.need(tx, address, lock=True))
            self._notify(address)
        self._mix_when_frozen(state)  # a crash may have interrupted it
        return state

    def sweep(self) -> None:
        """Settle every cohort that is due: its deadline has passed, or it is frozen and nothing mixes it."""
        for address in self.deadlines.due():
            try:
                self.settled(address)
            except Exception:  # noqa: BLE001  the others are due, too; requests that wait for this one meet it
                _log.warning("sweep_delayed", cohort=name_in(address), exc_info=True)
                self._notify(address)

    def _position(self, stage: str) -> int:
        """Return a stage's index; `MIXING`, `done` and `aborted` come after every stage."""
        return self.stages.index(stage) if stage in self.stages else len(self.stages)

    def _advance(self, tx: Connection, state: State) -> State:
        while (answers := self._due(tx, state)) is not None:
            state = self._close(tx, state, answers)
        return state

    def _advance_late(self, tx: Connection, state: State) -> State:
        """Return the state after every deadline that has passed.

        A stage that all have answered is closed already: every transaction that takes messages ends with `_advance`.
        """
        return self._advance(tx, state) if self._late(state) or self._unused(tx, state) else state

    def _late(self, state: State) -> bool:
        """Return whether the open stage's deadline has passed."""
        if state.stage not in self.stages or state.since is None:
            return False
        return self._clock.now() >= state.since + state.cohort.stage_seconds

    def _due(self, tx: Connection, state: State) -> int | None:
        """Return how many have answered in the open stage if it is over; None while it is not, and without one.

        It is over when its deadline has passed, or every member has answered or left.
        """
        if state.stage not in self.stages or state.since is None:
            return None
        answers, awaited = store.answers_and_awaited(tx, state, self._members(tx, state))
        return answers if not awaited or self._late(state) or self._unused(tx, state) else None

    def _unused(self, tx: Connection, state: State) -> bool:
        """Return whether the first deadline has passed without any client's message or leave."""
        if state.stage != self.stages[0] or state.since is None or self._clock.now() < state.since:
            return False
        return not store.is_used(tx, state)

    def _first_deadline(self, cohort: Cohort) -> float:
        """Return when a cohort that is opened now ends if no client sends anything."""
        return self._clock.now() + min(self.first_seconds, cohort.stage_seconds)

    def _close(self, tx: Connection, state: State, count: int) -> State:
        """Close the open stage, in which `count` clients have answered. Return the next stage, mixing, or aborted."""
        needed = self._min_answers(state)
        if count < needed:
            return self._abort(tx, state, TooSmall(count, needed, f"clients in stage {state.stage}"))
        try:
            self._closing(tx, state)
        except TooSmall as error:
            return self._abort(tx, state, error)
        following = (*self.stages, MIXING)[self._position(state.stage) + 1]
        batch = self._small_batch(tx, state) if following == MIXING else None
        if batch is None:
            store.move(tx, state.number, following, self._clock.now())
            return store.need(tx, state.address)
        try:
            released = self._put_batch(tx, state, batch)
        except ProtocolError as error:  # before it has written anything: the last sender is not to blame
            return self._abort(tx, state, error)
        return replace(state, stage="done", since=None, released=released)

    def _abort(self, tx: Connection, state: State, why: ProtocolError) -> State:
        store.end(tx, state, "aborted", self._clock.now(), why.detail)
        _log.warning("cohort_aborted", cohort=state.name, stage=state.stage, code=why.code, why=why.detail)
        return store.need(tx, state.address)

    def _progressed(self, tx: Connection, state: State) -> State:
        """Return the state after a message. The first one starts the first stage's deadline, if it comes in time."""
        now = self._clock.now()
        if state.stage != self.stages[0] or state.since is None or now >= state.since:
            return self._advance(tx, state)
        started = replace(state, since=now)
        after = self._advance(tx, started)
        if after is started:  # else the stage was written as it closed
            store.move(tx, state.number, state.stage, now)
        return after

    def _renewed(self, tx: Connection, state: State) -> State:
        """Return the state after the cohort is opened again: without any message, its first deadline starts again."""
        if state.stage != self.stages[0] or state.since is None:
            return state
        if store.is_used(tx, state):
            return state
        since = self._first_deadline(state.cohort)
        store.move(tx, state.number, state.stage, since)
        return replace(state, since=since)

    def _changed(self, state: State) -> None:
        """Wake waiting requests after a commit, and mix a frozen cohort."""
        if state.released is not None:
            self._keep_released(state.address, state.released)
        self._notify(state.address)
        self._mix_when_frozen(state)

    def _keep_released(self, address: str, batch: bytes) -> None:
        """Keep a committed small batch in memory: the server waits for it."""
        with self._guard:
            self._released[address] = batch
            while len(self._released) > _RELEASED:
                del self._released[next(iter(self._released))]

    def scrub(self) -> None:
        """Scrub what is due. A batch that is scrubbed is in memory no more."""
        for address in self.keeper.sweep():
            self._forget(address)

    def _forget(self, address: str) -> None:
        """Drop what is in memory of a cohort that was scrubbed or pruned."""
        with self._guard:
            self._released.pop(address, None)

    def known_batch(self, address: str) -> bytes | None:
        """Return the batch if this process released it a moment ago: that takes no look at the database."""
        return self._released.get(address)

    def _mix_when_frozen(self, state: State) -> None:
        """Start mixing: one cohort at a time, in a thread of its own, and never a cohort twice at once."""
        with self._guard:
            if state.stage == MIXING and state.address not in self._mixing:
                self._mixing.add(state.address)
                self._mixer.submit(self._release, state)

    def _stored(self, cohort: int, stage: str) -> Iterator[tuple[int, bytes]]:
        """Yield slot and body of a stage's messages of a cohort, by its number, ascending by slot.

        Few are in memory at once, and no transaction is open.
        """
        after = store.SELF
        while True:
            with self._database.reading() as tx:
                rows = store.bodies(tx, cohort, stage, after, _FETCH)
            if not rows:
                return
            yield from rows
            after = rows[-1][0]

    def _release(self, state: State) -> None:
        try:
            self._publish(state, self._mix(state))
        except Unavailable:
            _log.exception("release_delayed", cohort=state.name)  # the next request tries again
        except ProtocolError as error:
            self._end_without(state, error)
        except Exception:  # noqa: BLE001  fail closed: a bug must not be tried again without end
            _log.exception("release_failed", cohort=state.name)
            self._end_without(state, ProtocolError("an unexpected error; the service's log has it"))
        finally:
            with self._guard:
                self._mixing.discard(state.address)

    @repeated
    def _publish(self, state: State, batch: Batch) -> None:
        """Commit the batch, unless another worker has committed one."""
        with self._database.transaction() as tx:
            known = store.find_cohort(tx, state.address, lock=True)  # None: its run was pruned
            if known is not None and known.stage == MIXING:
                self._put_batch(tx, state, batch)
        self._notify(state.address)

    def _put_batch(self, tx: Connection, state: State, batch: Batch) -> bytes:
        """Store the batch, and that it is delivered. Return its JSON."""
        lost, position = state.cohort.clients - batch.survivors, store.add_delivery(tx, state)
        released = BatchAnswer(cohort=state.name, state="released", batch=batch, lost=lost, delivery=position)
        answer = released.model_dump_json().encode()
        store.put_statement(tx, state.number, store.BATCH, answer)
        store.end(tx, state, "done", self._clock.now())
        return answer

    @repeated
    def _end_without(self, state: State, why: ProtocolError) -> None:
        with self._database.transaction() as tx:
            known = store.find_cohort(tx, state.address, lock=True)
            if known is not None and known.stage == MIXING:
                self._abort(tx, state, why)
        self._notify(state.address)
