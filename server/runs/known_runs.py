"""Holds the runs that a server knows by name: those that it serves, those that it cannot read, and pruned ones."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace

import structlog

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.errors import Conflict, Gone, RunFailed, WrongCohort, WrongStage
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.listing import Tombstone
from distrust.common.protocol.run.progress import RunState
from distrust.common.protocol.storage.database_faults import repeated
from distrust.server.learner.rounds import spent_by_all
from distrust.server.runs.active_run import ActiveRun
from distrust.server.storage.keeping import Keeping, StoredRun
from distrust.server.storage.keys import KeyFolder
from distrust.server.storage.rows import UnreadRun
from distrust.server.storage.store import Store

_log = structlog.get_logger("distrust.server")


class KnownRuns:
    """All runs of one server. Safe to use from many threads.

    `_lock` is held while a name is given to a run or taken from it, and before the lock of a run.
    """

    def __init__(self, store: Store, keys: KeyFolder, notify: Callable[[str], None]) -> None:
        self.store, self.keeping = store, Keeping(store)
        self._keys, self._notify, self._lock = keys, notify, threading.Lock()
        self._runs: dict[str, ActiveRun] = {}
        self._unread: dict[str, UnreadRun] = {}
        for row in store.runs():
            if isinstance(row, UnreadRun):
                _log.error("run_refused", run=row.run, why=row.why)
                self._unread[row.run] = row
            else:
                self._runs[row.config.run] = ActiveRun.from_store(row, store, keys)
        keys.keep(store.open_runs().values())
        self._tombstones = self.keeping.tombstones()
        self.keeping.rebase({run: active.config.intermediary.keep_seconds for run, active in self._runs.items()})

    def known(self) -> tuple[list[ActiveRun], list[UnreadRun], list[Tombstone]]:
        """Return all runs, oldest first; those whose stored configuration cannot be read; what pruned ones left."""
        return list(self._runs.values()), list(self._unread.values()), list(self._tombstones)

    def active_run(self, run: str) -> ActiveRun:
        """Return a run. Raises WrongCohort; Gone for a pruned one; RunFailed where its configuration is refused."""
        unread = self._unread.get(run)
        if unread is not None:
            end = "was cancelled" if unread.state == "cancelled" else "failed"
            raise RunFailed(f"run {run} {end}: its stored configuration is refused: {unread.why}")
        active = self._runs.get(run)
        if active is None:
            tombstone = self.pruned(run)
            if tombstone is not None:
                raise Gone(tombstone.line(), run=run, run_digest=tombstone.run_digest.hex())
            raise WrongCohort(f"run {run} is not known here")
        return active

    def opened(self, run: str, cohort: str) -> Cohort:
        """Return an open or ended cohort. Raises WrongCohort, WrongStage for one that is planned only."""
        active = self.active_run(run)
        message = self.store.cohort_message(cohort)
        if message is None or message.run != run:
            planned = any(one.cohort == cohort for one in active.pending())
            raise WrongStage(f"cohort {cohort} is not open yet") if planned else WrongCohort(f"no cohort {cohort} here")
        return message

    @contextmanager
    def unpruned(self, run: str) -> Iterator[ActiveRun]:
        """Hold a run's lock, under which it is not pruned. Raises as `active_run`."""
        active = self.active_run(run)
        with active.lock:
            if self._runs.get(run) is not active:  # it was pruned since
                raise Gone(f"run {run} was pruned just now")
            yield active

    def running(self) -> list[ActiveRun]:
        """Return the runs that still want clients."""
        return [active for active in list(self._runs.values()) if active.state == "running"]

    def needed(self) -> list[str]:
        """Return the runs whose batches are read again after a restart, or may be.

        These are open runs whose mechanism counts a stream, and all open ones that another version may read.
        """
        streams = [one.config.run for one in self.running() if one.config.mechanism.batches is not None]
        return streams + [one.run for one in list(self._unread.values()) if one.state == "running"]

    def cancel_unread(self, run: str, reason: str) -> bool:
        """Commit the end of an open run whose configuration is refused, and destroy its keys.

        Return whether its configuration is refused.
        """
        with self._lock:
            unread = self._unread.get(run)
            if unread is None:
                return False
            state = self._end_unread(unread, reason)
            self._unread[run] = replace(unread, state=state)
            if state != "running":
                self._keys.destroy(self.keeping.stored(run)[run].run_digest)
        self._notify(run)
        return True

    @repeated
    def _end_unread(self, unread: UnreadRun, reason: str) -> RunState:
        if self.store.state(unread.run)[0] == "running":  # else the confirmation of a call before was lost
            with self.store.writing() as writing:
                writing.end(unread.run, unread.keep_seconds, "cancelled", reason)
        return self.store.state(unread.run)[0]

    def pruned(self, run: str) -> Tombstone | None:
        """Return what is left of the last pruned run of this name; None while there is a run of it."""
        known = run in self._runs or run in self._unread
        return next((one for one in reversed(self._tombstones) if one.run == run and not known), None)

    def prunable(self, run: str) -> bytes:
        """Return R of a run that is over. Raises as `prune`.

        One that was pruned since is returned, too: `prune` then tells what is left of it.
        """
        stored = self.keeping.stored(run).get(run)
        if stored is None:
            return self._pruned_since(run).run_digest
        _check_over(stored)
        return stored.run_digest

    def prune(self, run: str, run_digest: bytes) -> Tombstone:
        """Delete the rows of the run with digest R, once its intermediaries have theirs. Idempotent.

        Another run may have its name by now, and stays. Raises Conflict for a running one, WrongCohort.
        """
        with self._lock:
            known = _of(run_digest, self._tombstones)
            if known is not None:
                return known
            active, stored = self._runs.get(run), self.keeping.stored(run).get(run)
            if stored is None or stored.run_digest != run_digest:
                raise WrongCohort(f"run {run} is not known here with R = {run_digest.hex()}")
            _check_over(stored)
            with nullcontext() if active is None else active.lock:
                now, spent = self.store.clock.now(), _spent(active)
                tombstone = Tombstone(**asdict(stored), guarantee=spent, pruned=now)
                try:
                    self.keeping.prune(tombstone)
                except Exception:
                    if _of(run_digest, self.keeping.tombstones()) is None:  # else only the confirmation was lost
                        raise
                self._forget(run)
        self._notify(run)
        return tombstone

    def _pruned_since(self, run: str) -> Tombstone:
        """Return what is left of a run without a row. The confirmation of its deletion may have been lost."""
        with self._lock:
            if run not in self.keeping.stored(run):  # else another run got the name just now
                self._forget(run)
                tombstone = self.pruned(run)
                if tombstone is not None:
                    return tombstone
        raise WrongCohort(f"run {run} is not known here")

    def _forget(self, run: str) -> None:
        """Take over from the database that a run is pruned. The caller holds the lock."""
        self._tombstones = self.keeping.tombstones()
        self._runs.pop(run, None)
        self._unread.pop(run, None)


def _of(run_digest: bytes, tombstones: list[Tombstone]) -> Tombstone | None:
    return next((tombstone for tombstone in tombstones if tombstone.run_digest == run_digest), None)


def _spent(active: ActiveRun | None) -> ShownGuarantee | None:
    """Return the most that a client has spent in a run; None for a stored one that is refused today."""
    try:
        return None if active is None else spent_by_all(active.config, active.learner.rounds)[-1].guarantee
    except RunFailed:
        return None


def _check_over(stored: StoredRun) -> None:
    if stored.state == "running":
        raise Conflict(f"run.state = 'running': run {stored.run} must be over before it is pruned; cancel it first")
