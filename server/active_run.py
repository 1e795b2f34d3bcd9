"""Holds an active run: its learner and state, and its round as a message.

Learner and state are changed under one lock, together with the store.
"""

import threading
from typing import Literal

import structlog

from distrust.common.crypto.context import run_digest
from distrust.common.database_faults import repeated
from distrust.common.errors import (
    ProtocolError,
    RunFailed,
    Unavailable,
    WrongCohort,
    describe_error,
)
from distrust.common.mechanisms.families.base import StreamCounter
from distrust.common.messages.cohort import Cohort
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import RunState, Snapshot
from distrust.common.run.round import Round, RoundView
from distrust.common.wire import Via
from distrust.server.keys import PublicKeys, RunIdentity
from distrust.server.learner.learner import Learner, blank_snapshot
from distrust.server.round_messages import round_message
from distrust.server.rows import CohortRow, RunRow
from distrust.server.store import Store

_log = structlog.get_logger("distrust.server")

RoundState = Literal["open", "finished", "cancelled", "failed"]
ROUND_STATES: dict[RunState, RoundState] = {
    "running": "open",
    "finished": "finished",
    "cancelled": "cancelled",
    "failed": "failed",
}


class ActiveRun:
    """One run in memory. Callers hold `lock`. Whatever is visible here is committed in the store."""

    def __init__(
        self, config: RunConfig, identity: RunIdentity, learner: Learner | None, store: Store, keys: PublicKeys
    ) -> None:
        self.lock = threading.RLock()
        self.config, self.digest, self.identity = config, config.digest(), identity
        self.run_digest = run_digest(self.digest, identity.run_id)
        self.state: RunState = "running"
        self.reason: str | None = None
        self._learner, self._store, self._keys = learner, store, keys
        self._stale = False
        self._round: Round | None = None
        self._rows: tuple[int, dict[str, CohortRow]] | None = None
        self.delivered: dict[Via, list[bytes]] = {}  # see server.deliveries
        self.counter: StreamCounter | None = None  # after the committed outcomes, of a mechanism that counts a stream

    @classmethod
    def from_store(cls, row: RunRow, store: Store, keys: PublicKeys) -> "ActiveRun":
        """Return the run after all its committed outcomes, in its committed state.

        A running run that fails when it is replayed is committed as failed, once. A run that this version of the code
        refuses counts as failed and has no learner, so that the server still serves the others.
        """
        learner, refusal = _replayed(row.config, store)
        active = cls(row.config, row.identity, learner, store, keys)
        active.state, active.reason = row.state, row.reason
        if refusal is not None:
            active.state, active.reason = "failed", row.reason if row.state == "failed" else refusal
            _log.error("run_refused", run=row.config.run, was=row.state, why=refusal)
            if row.state == "running":
                active._commit_failure()
        elif row.state == "failed" and not active.learner.finished:  # the outcomes do not hold the reason
            active.learner.stop(row.reason or "no reason was kept")
        elif row.state == "running":
            active.plan_next(active.learner)
            active.changed()
            if active.state == "failed":
                active._commit_failure()
        return active

    @repeated
    def _commit_failure(self) -> None:
        with self._store.writing() as writing:
            writing.state(self.config.run, self.state, self.reason)
            writing.event(self.config.run, kind="failed", detail=self.reason)

    def snapshot(self) -> Snapshot:
        """Return the learner's snapshot; a blank one for a stored run that is refused today."""
        return blank_snapshot(self.config) if self._learner is None else self.learner.snapshot()

    @property
    def learner(self) -> Learner:
        """Return the learner after the committed outcomes. Reads them again if a commit is in doubt.

        Raises Unavailable while the database cannot be read, RunFailed for a stored run that is refused today.
        """
        with self.lock:
            if self._learner is None:
                raise RunFailed(f"run {self.config.run} failed: {self.reason}")
            if self._stale:
                state, reason = self._store.state(self.config.run)
                self._learner = Learner.replay(self.config, self._store.outcomes(self.config.run))
                self.plan_next(self._learner)
                self._stale = False
                if state in {"cancelled", "failed"} and not self._learner.finished:  # which no outcome tells
                    self.state, self.reason = state, reason
                self.changed()
            return self._learner

    def doubt(self) -> None:
        """Read learner and state again before they are used: a commit failed, or only its confirmation was lost."""
        self._stale, self._rows, self.counter = True, None, None

    def changed(self) -> None:
        """Take over the learner's end. Call after each committed change, once the next round is planned."""
        learner = self._learner
        if self.state == "running" and learner is not None and learner.finished:
            self.state, self.reason = state_of(learner), learner.fault

    def plan_next(self, learner: Learner) -> None:
        """Build the next round's message. A run whose round has none fails, or each client would see the error."""
        try:
            plan = learner.plan()
            self._round = None if plan is None else round_message(self.config, self.run_digest, plan, self._keys)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client can play this round
            self._round = None
            learner.fail(f"round {learner.rounds[-1].number}", error)

    def round(self) -> Round | None:
        """Return the open round with the cohorts that have no outcome; None when there is none."""
        learner = self.learner if self.state == "running" else None  # reading it again may show that the run is over
        plan = learner.plan() if learner is not None and self.state == "running" else None
        if plan is not None and self._round is None:
            self._round = round_message(self.config, self.run_digest, plan, self._keys)
        return self._round if plan is not None else None

    @property
    def in_memory(self) -> bool:
        """Return whether the open round and its cohorts are in memory, so that looking at them takes no time."""
        learner = self._learner
        if learner is None or self._stale or self._rows is None or self._rows[0] != len(learner.rounds):
            return False
        return self.state != "running" or self._round is not None

    def rows(self) -> dict[str, CohortRow]:
        """Return a copy of the open round's cohorts as they were opened, by name. Their states may be out of date.

        Only this process writes them, so they are read once a round, and kept by `keep_rows`.
        """
        number = len(self.learner.rounds)
        if self._rows is None or self._rows[0] != number:
            self._rows = number, self._store.with_taken(self._store.cohorts(self.config.run, number))
        return dict(self._rows[1])

    def keep_rows(self, rows: dict[str, CohortRow]) -> None:
        """Note the open round's cohorts after a commit."""
        self._rows = len(self.learner.rounds), rows

    def forget_rows(self) -> None:
        """Read the open round's cohorts again: a commit failed, or only its confirmation was lost."""
        self._rows = None

    def view(self) -> RoundView:
        """Return the answer to GET /round."""
        round_ = self.round()  # first: reading the learner again may show that the run is over
        return RoundView(
            run=self.config.run,
            state=ROUND_STATES[self.state],
            config=self.digest,
            run_id=self.identity.run_id,
            round=round_,
        )

    def pending(self) -> list[Cohort]:
        """Return the open round's cohorts without an outcome, in cohort order."""
        round_ = self.round()
        return [] if round_ is None else [assignment.cohort for assignment in round_.assignments]

    def cohort(self, cohort: str) -> Cohort:
        """Return a pending cohort. Raises WrongCohort."""
        for one in self.pending():
            if one.cohort == cohort:
                return one
        raise WrongCohort(f"cohort {cohort} is not waited for in run {self.config.run}")


def _replayed(config: RunConfig, store: Store) -> tuple[Learner | None, str | None]:
    """Return the learner after its committed outcomes, or why this version of the code does not make one."""
    try:
        return Learner.replay(config, store.outcomes(config.run)), None
    except Unavailable:  # the database does not answer: that says nothing of the run
        raise
    except Exception as error:  # noqa: BLE001 - whatever one stored run does, the server starts for the others
        why = error.detail if isinstance(error, ProtocolError) else describe_error(error)
        return None, f"its stored configuration is refused: {why}"


def state_of(learner: Learner) -> RunState:
    """Return the state of a run that was not cancelled."""
    if not learner.finished:
        return "running"
    return "failed" if learner.fault else "finished"
