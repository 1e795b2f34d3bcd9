"""Deletes what the server need not keep: batches whose outcome is committed, and the rows of pruned runs.

A cohort is in the table `kept` from its end until its intermediary knows that it is collected no more, and its batch
and receipts are scrubbed. Outcomes stay, as a restart replays them. A mechanism that counts a stream also reads the
run's batches again after a restart: they are kept until the run is over.

As at an intermediary, a batch is scrubbed in its place, and a row is deleted once no row near it has a batch.
"""

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, bindparam, delete, func, insert, literal_column, select, text, update

from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.messages.status import MOST_SETTLED
from distrust.common.protocol.run.listing import Tombstone
from distrust.common.protocol.run.progress import RunState
from distrust.common.protocol.storage.database_faults import repeated
from distrust.common.wire import Via
from distrust.server.storage.store import Store
from distrust.server.storage.tables import (
    BATCHES,
    COHORTS,
    ENDED,
    EVENTS,
    GRANTS,
    OUTCOMES,
    RECEIPTS,
    REGRETS,
    RUNS,
    STATEMENTS,
    TOMBSTONES,
)

_SCRUBS = 100  # batches that one transaction scrubs
_NEAR = 1024  # rows of batches that may lie on the two pages of a SQLite file beside the one of a deleted row

_UNTOLD = select(ENDED.c.cohort, ENDED.c.run).where(ENDED.c.told.is_(False), ENDED.c.via == bindparam("at"))
_UNTOLD = _UNTOLD.order_by(ENDED.c.run).limit(MOST_SETTLED)
_NAMED: Any = bindparam("named", expanding=True)
_TELL = update(ENDED).where(ENDED.c.cohort.in_(_NAMED)).values(told=True)
_DUE = select(ENDED.c.cohort).where(ENDED.c.due <= bindparam("now"))
_DUE = _DUE.where(ENDED.c.run.not_in(bindparam("needed", expanding=True))).limit(_SCRUBS)
_DELETE_DONE = delete(ENDED).where(ENDED.c.due.is_(None), ENDED.c.told.is_(True))
_SCRUB = update(BATCHES).where(BATCHES.c.cohort.in_(_NAMED)).values(body=None)
_NOTE = update(COHORTS).where(COHORTS.c.cohort.in_(_NAMED), COHORTS.c.cohort.in_(select(BATCHES.c.cohort)))
_NOTE = _NOTE.values(scrubbed=bindparam("now"))
_OF_RUN = select(COHORTS.c.cohort).where(COHORTS.c.run == bindparam("pruned"))
_SCRUB_RUN = update(BATCHES).where(BATCHES.c.cohort.in_(_OF_RUN)).values(body=None)
_RENAME = text("""
    UPDATE batches SET cohort = '~' || rowid WHERE cohort IN (SELECT cohort FROM cohorts WHERE run = :pruned)
""")  # no cohort has such a name
_ROW = literal_column("rowid", Integer)
_OLDEST = select(func.coalesce(func.min(_ROW) - _NEAR, 2**63 - 1)).select_from(BATCHES)
_OLDEST = _OLDEST.where(BATCHES.c.body.is_not(None)).correlate(None)
_DELETE_EMPTY = delete(BATCHES).where(BATCHES.c.cohort.like("~%"), _OLDEST.scalar_subquery() > _ROW)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The facts of a tombstone besides the guarantee. run_digest: R."""

    run: str
    run_id: bytes
    run_digest: bytes
    state: RunState
    started: float | None
    ended: float | None


class Keeping:
    """Scrubs and prunes the server's database. Safe to call from many threads."""

    def __init__(self, store: Store) -> None:
        self._store, self._database = store, store.database
        self._turn = threading.Lock()  # of one sweep: else one could take another's deletions for tidied up
        self._untidy = True  # a process before this one may have scrubbed, and ended

    def stored(self, run: str | None = None) -> dict[str, StoredRun]:
        """Return the runs by name, or one of them: also those whose configuration cannot be read any more."""
        columns = [RUNS.c[name] for name in ("run", "run_id", "digest", "state", "started", "ended")]
        query = select(*columns) if run is None else select(*columns).where(RUNS.c.run == run)
        return {
            row.run: StoredRun(
                row.run, row.run_id, run_digest(row.digest, row.run_id), row.state, row.started, row.ended
            )
            for row in self._store.read(query)
        }

    def tombstones(self) -> list[Tombstone]:
        """Return what is left of pruned runs, oldest first."""
        query = select(TOMBSTONES.c.body).order_by(TOMBSTONES.c.number)
        return [Tombstone.model_validate_json(body) for (body,) in self._store.read(query)]

    def untold(self, via: Via) -> dict[str, list[str]]:
        """Return by run ended cohorts of an intermediary, which must be told that they are collected no more."""
        told: dict[str, list[str]] = {}
        for row in self._store.read(_UNTOLD, {"at": via}):
            told.setdefault(row.run, []).append(row.cohort)
        return told

    @repeated
    def told(self, cohorts: Collection[str]) -> None:
        """Note that their intermediary knows these cohorts to be over."""
        with self._database.transaction() as connection:
            connection.execute(_TELL, {"named": list(cohorts)})

    @repeated
    def rebase(self, keep_seconds: Mapping[str, float]) -> None:
        """Let no batch be kept longer than if its cohort had ended now: the wall clock may have been set back.

        keep_seconds  by run.
        """
        with self._database.transaction() as connection:
            for run, seconds in keep_seconds.items():
                latest = self._store.clock.now() + seconds
                query = update(ENDED).where(ENDED.c.run == run, ENDED.c.due > latest).values(due=latest)
                connection.execute(query)

    def scrub(self, needed: Iterable[str]) -> None:
        """Scrub the batches that are due. needed: runs that still read their batches after a restart."""
        values = {"now": self._store.clock.now(), "needed": [*needed, ""]}
        with self._turn:
            while self._scrub_step(values):
                self._untidy = True
            if self._untidy:
                self._delete_empty()
                self._untidy = not self._database.truncate_log()

    @repeated
    def _scrub_step(self, values: dict[str, object]) -> bool:
        with self._database.transaction() as connection:
            named = list(connection.execute(_DUE, values).scalars())
            if named:
                connection.execute(_SCRUB, {"named": named})
                connection.execute(_NOTE, {"named": named, "now": values["now"]})
                connection.execute(delete(RECEIPTS).where(RECEIPTS.c.cohort.in_(named)))
                connection.execute(update(ENDED).where(ENDED.c.cohort.in_(named)).values(due=None))
            connection.execute(_DELETE_DONE)
            return bool(named)

    @repeated
    def prune(self, tombstone: Tombstone) -> None:
        """Delete a run's rows, and add its tombstone, in one transaction."""
        run = {"pruned": tombstone.run}
        try:
            with self._database.transaction() as connection:
                connection.execute(_SCRUB_RUN, run)
                if connection.dialect.name == "sqlite":
                    connection.execute(_RENAME, run)
                for table in (BATCHES, RECEIPTS, STATEMENTS):
                    connection.execute(delete(table).where(table.c.cohort.in_(_OF_RUN)), run)
                for table in (ENDED, GRANTS, OUTCOMES, EVENTS, REGRETS, COHORTS, RUNS):
                    connection.execute(delete(table).where(table.c.run == bindparam("pruned")), run)
                connection.execute(insert(TOMBSTONES), [{"body": tombstone.model_dump_json()}])
        finally:  # also where only the commit's confirmation is lost
            with self._turn:
                self._untidy = True

    @repeated
    def _delete_empty(self) -> None:
        with self._database.transaction() as connection:
            if connection.dialect.name == "sqlite":
                connection.execute(_DELETE_EMPTY)
