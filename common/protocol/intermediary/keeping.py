"""Deletes what an intermediary need not keep: messages of cohorts that have ended, and the rows of pruned runs.

A cohort's end is stored together with the time at which its messages are due. From then on the clients' bodies, their
tickets and report ids are scrubbed, and their digests stay: so a repeat is still told from other messages. What the
intermediary stored itself, its batch among it, goes at the same time, but not before the server says that it collects
the cohort no more: after a crash the server collects the batch again. An aborted cohort has no batch.

SQLite moves rows as others beside them are deleted, and leaves copies behind. So a message is scrubbed in its place.
Its row, without a body, is deleted once all older rows and those near it are without one, and its digest goes to a
table of its own. Until then the file keeps its room.

Each step changes few rows in one transaction, so that clients do not wait long, and a kill between two steps leaves
messages that the next sweep finds.
"""

import threading
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)

from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.intermediary.store import LIST
from distrust.common.protocol.intermediary.tables import COHORTS, DELIVERED, DIGESTS, MESSAGES, PRUNED
from distrust.common.protocol.messages.cohort import cohort_address
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import repeated

MOST_ROWS, MOST_BYTES = 512, 4 * 2**20
"""Messages that one transaction scrubs, and bytes of their bodies; one message is scrubbed in any case."""

SCRUB_SECONDS = 1.0
"""Pause between two sweeps of a service."""

NEAR = 512
"""Rows of messages that may lie on the two pages of a SQLite file beside the one from which a row is deleted."""

_COHORTS = 64  # that one look at the database finds
_EVERY_SLOT, _EVERY_ROW = -(2**31), 2**63 - 1

_DUE = select(COHORTS.c.number, COHORTS.c.run_digest, COHORTS.c.cohort).where(COHORTS.c.due <= bindparam("now"))
_DUE = _DUE.order_by(COHORTS.c.due).limit(_COHORTS)
_NOT_COLLECTED = and_(COHORTS.c.stage != "aborted", COHORTS.c.settled.is_(False))  # the server may need the batch
_ENDS_HERE = select(COHORTS.c.number).where(COHORTS.c.number == bindparam("number"), ~_NOT_COLLECTED)
_WHOLE = MESSAGES.c.cohort == bindparam("of"), MESSAGES.c.slot >= bindparam("least"), MESSAGES.c.body.is_not(None)
_NEXT = select(MESSAGES.c.number, func.length(MESSAGES.c.body)).where(*_WHOLE, MESSAGES.c.number > bindparam("after"))
_NEXT = _NEXT.order_by(MESSAGES.c.number).limit(MOST_ROWS)
_OWN_DIGEST = case(  # from the digest of a sum one could find the sum
    (MESSAGES.c.stage == LIST, MESSAGES.c.body), (MESSAGES.c.slot < 0, literal(b"")), else_=MESSAGES.c.digest
)
_SCRUB = update(MESSAGES).where(*_WHOLE, MESSAGES.c.number.between(bindparam("first"), bindparam("last")))
_SCRUB = _SCRUB.values(body=None, ticket=None, mark=None, digest=_OWN_DIGEST)
_SCRUBBED = update(COHORTS).where(COHORTS.c.number == bindparam("of"))
_SCRUBBED = _SCRUBBED.values(due=None, scrubbed=func.coalesce(COHORTS.c.scrubbed, bindparam("now")))
_SCRUBBED_IN_PART = _SCRUBBED.where(_NOT_COLLECTED)
_LATE = and_(COHORTS.c.scrubbed.is_not(None), COHORTS.c.due.is_(None))  # only the server's word was missing
_SETTLE = update(COHORTS).where(COHORTS.c.run_digest == bindparam("run"), COHORTS.c.settled.is_(False))
_SETTLE = _SETTLE.values(settled=True, due=case((_LATE, bindparam("now")), else_=COHORTS.c.due))
_SETTLE = _SETTLE.where(COHORTS.c.cohort.in_(bindparam("names", expanding=True)))
_LATEST: ColumnElement[float] = bindparam("now", type_=Float) + COHORTS.c.keep_seconds
_REBASE = update(COHORTS).where(COHORTS.c.due > _LATEST).values(due=_LATEST)
_OLDEST_BODY = select(func.min(MESSAGES.c.number)).where(MESSAGES.c.body.is_not(None))
_EMPTY = (
    select(MESSAGES.c.number).where(MESSAGES.c.number < bindparam("below")).order_by(MESSAGES.c.number).limit(MOST_ROWS)
)
_OF_KNOWN = exists().where(COHORTS.c.number == MESSAGES.c.cohort)
_MOVED = MESSAGES.c.number.between(bindparam("first"), bindparam("last"))
_DIGEST_COLUMNS = [MESSAGES.c[name] for name in ("cohort", "stage", "slot", "digest")]
_MOVE = insert(DIGESTS).from_select(
    [column.name for column in _DIGEST_COLUMNS],
    select(*_DIGEST_COLUMNS).where(_MOVED, func.length(MESSAGES.c.digest) > 0, _OF_KNOWN),
)
_DELETE_MOVED = delete(MESSAGES).where(_MOVED)
_LEFT = MESSAGES.c.cohort == bindparam("of")
_FORGET_ROWS = update(MESSAGES).where(_LEFT).values(digest=literal(b""))
_DELETE_ROWS = delete(MESSAGES).where(_LEFT)
_NUMBERS = select(COHORTS.c.number, COHORTS.c.cohort).where(COHORTS.c.run_digest == bindparam("run"))
_CLOSE_RUN = update(COHORTS).where(COHORTS.c.run_digest == bindparam("run"))
_CLOSE_RUN = _CLOSE_RUN.values(stage="aborted", since=None, due=None, reason="the run was pruned")


class Keeper:
    """Scrubs and prunes one intermediary's database. Safe to call from many threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._turn = threading.Lock()  # of one sweep: else one could take another's deletions for tidied up
        self._untidy = True  # a process before this one may have scrubbed, and ended

    @repeated
    def settle(self, run_digest: bytes, cohorts: Sequence[str]) -> None:
        """Note that the server collects these cohorts of a run no more. Idempotent."""
        if cohorts:
            with self._database.transaction() as tx:
                values = {"run": run_digest, "now": self._clock.now(), "names": list(cohorts)}
                tx.execute(_SETTLE, values)

    @repeated
    def rebase(self) -> None:
        """Let nothing be kept longer than if its cohort had ended now: the wall clock may have been set back."""
        with self._database.transaction() as tx:
            tx.execute(_REBASE, {"now": self._clock.now()})

    def sweep(self) -> list[str]:
        """Scrub every cohort that is due, and return their addresses."""
        scrubbed = list[str]()
        with self._turn:
            while due := self._due():
                self._untidy = True
                for row in due:
                    self._scrub(row.number)
                    scrubbed.append(cohort_address(row.run_digest, row.cohort))
            if self._untidy:
                self._move_digests()
                self._untidy = not self._database.truncate_log()
        return scrubbed

    def _due(self) -> Sequence[Any]:
        with self._database.reading() as tx:
            return tx.execute(_DUE, {"now": self._clock.now()}).all()

    def prune(self, run_digest: bytes) -> float:
        """Delete all that is here of a run, and return when. Idempotent; after an error the same call goes on.

        The first step refuses every later cohort of the run. What was delivered goes with the last one.
        """
        since = self._begin_pruning(run_digest)
        with self._database.reading() as tx:
            numbers = [row.number for row in tx.execute(_NUMBERS, {"run": run_digest})]
        for number in numbers:
            self._scrub_messages(number, _EVERY_SLOT)
        self._forget(run_digest, numbers)
        with self._turn:
            self._untidy = True
        return since

    @repeated
    def _begin_pruning(self, run_digest: bytes) -> float:
        with self._database.transaction() as tx:
            store.one_opening(tx, run_digest)
            since = store.pruned_since(tx, run_digest)
            if since is None:
                since = self._clock.now()
                tx.execute(insert(PRUNED), [{"run_digest": run_digest, "since": since}])
            tx.execute(_CLOSE_RUN, {"run": run_digest})
        return since

    @repeated
    def _forget(self, run_digest: bytes, numbers: Sequence[int]) -> None:
        """Delete a run's rows. SQLite keeps those of messages, without a digest, while older rows have a body."""
        with self._database.transaction() as tx:
            _one_moving(tx)
            rows = _FORGET_ROWS if tx.dialect.name == "sqlite" else _DELETE_ROWS
            for number in numbers:
                tx.execute(rows, {"of": number})
                tx.execute(delete(DIGESTS).where(DIGESTS.c.cohort == number))
            tx.execute(delete(COHORTS).where(COHORTS.c.run_digest == run_digest))
            tx.execute(delete(DELIVERED).where(DELIVERED.c.run_digest == run_digest))

    def _scrub(self, cohort: int) -> None:
        with self._database.reading() as tx:
            own = tx.execute(_ENDS_HERE, {"number": cohort}).first() is not None
        self._scrub_messages(cohort, _EVERY_SLOT if own else 0)
        self._note_scrubbed(cohort, own=own)

    @repeated
    def _note_scrubbed(self, cohort: int, *, own: bool) -> None:
        """Note that a cohort was scrubbed. It stays due if the server's word has come meanwhile."""
        with self._database.transaction() as tx:
            tx.execute(_SCRUBBED if own else _SCRUBBED_IN_PART, {"of": cohort, "now": self._clock.now()})

    def _scrub_messages(self, cohort: int, least: int) -> None:
        """Scrub a cohort's messages of slots from `least` on, step by step."""
        after = 0
        while after >= 0:
            after = self._scrub_step({"of": cohort, "least": least, "after": after})

    @repeated
    def _scrub_step(self, values: dict[str, Any]) -> int:
        """Scrub the next messages. Return the last one's number, or -1 when there were none."""
        with self._database.transaction() as tx:
            numbers, size = list[int](), 0
            for number, length in tx.execute(_NEXT, values):
                size += length
                if numbers and size > MOST_BYTES:
                    break
                numbers.append(number)
            if not numbers:
                return -1
            tx.execute(_SCRUB, {**values, "first": numbers[0], "last": numbers[-1]})
            return numbers[-1]

    def _move_digests(self) -> None:
        while self._move_step():
            pass

    @repeated
    def _move_step(self) -> bool:
        """Delete some rows that have no body, with none near them that has one. Return whether there were any."""
        with self._database.transaction() as tx:
            _one_moving(tx)
            oldest = tx.execute(_OLDEST_BODY).scalar_one()
            below = _EVERY_ROW if oldest is None else oldest - NEAR
            numbers = list(tx.execute(_EMPTY, {"below": below}).scalars())
            if numbers:
                span = {"first": numbers[0], "last": numbers[-1]}
                tx.execute(_MOVE, span)
                tx.execute(_DELETE_MOVED, span)
            return bool(numbers)


def _one_moving(tx: Connection) -> None:
    """Keep out other transactions that move digests or forget a run: a moved digest would outlive its cohort."""
    store.one_by_one(tx, b"move digests")
