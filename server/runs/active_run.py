"""Holds an active run: its learner and state, and its round as a message.

Learner and state are changed under one lock, together with the store.
"""

import threading
from dataclasses import dataclass

import structlog

from distrust.common.dp.mechanisms.families.base import StreamCounter
from distrust.common.errors import (
    ProtocolError,
    RunFailed,
    Unavailable,
    describe_error,
)
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import RunState, Snapshot
from distrust.common.protocol.run.round import Assignment, Round, RoundView, cohort_channel, cohort_terms
from distrust.common.protocol.storage.database_faults import repeated
from distrust.common.wire import Via
from distrust.server.learner.learner import Learner, blank_snapshot
from distrust.server.learner.rounds import RoundPlan
from distrust.server.policies.base import ArmKey
from distrust.server.storage.keys import KeyFolder, Keys, PublicKeys, RunIdentity, new_keys, new_run_id
from distrust.server.storage.rows import CohortRow, RunRow
from distrust.server.storage.store import EndState, Store

_log = structlog.get_logger("distrust.server")


@dataclass(frozen=True, slots=True)
class CountedStream:
    """A mechanism's stream after the committed outcomes.

    arm   that its cohorts play; None where their clients choose.
    past  32 bytes: digest of all its batches, cohort by cohort. The noise of the next batch follows from it, too.
    """

    arm: ArmKey
    counter: StreamCounter
    past: bytes


class ActiveRun:
    """One run in memory. Callers hold `lock`. Whatever is visible here is committed in the store."""

    def __init__(
        self, config: RunConfig, identity: RunIdentity, learner: Learner | None, store: Store, folder: KeyFolder
    ) -> None:
        self.lock = threading.RLock()
        self.config, self.digest, self.identity = config, config.digest(), identity
        self.run_digest = run_digest(self.digest, identity.run_id)
        self.state: RunState = "running"
        self.reason: str | None = None
        self.keys: Keys | None = None  # until the run is over
        self._learner, self._store, self._folder = learner, store, folder
        self._stale = False
        self._round: Round | None = None
        self._rows: tuple[int, dict[str, CohortRow]] | None = None
        self.delivered: dict[Via, list[bytes]] = {}  # see server.runs.deliveries
        self.ungranted: dict[str, None] = {}  # requests for tickets that have got none, the newest last
        self.streams: dict[
            ArmKey, CountedStream
        ] = {}  # by arm; one that is not there has no batch, or is to be restored

    @classmethod
    def begin(cls, config: RunConfig, learner: Learner, store: Store, folder: KeyFolder) -> "ActiveRun":
        """Commit a new run and return it. Its keys are on the disk before: no committed run is without keys.

        A commit that fails leaves a key file of no run, which the next start destroys: only its confirmation may be
        lost.
        """
        keys = new_keys()
        active = cls(config, RunIdentity(new_run_id(), keys.public), learner, store, folder)
        active.keys, active.delivered = keys, {"shuffler": [], "aggregator": []}  # no intermediary has seen this run
        active.round()  # a graph that cannot be built is refused here, before a client meets it
        folder.write(active.run_digest, keys)
        with store.writing() as writing:
            writing.run(config, active.identity)
            writing.event(config.run, kind="round-opened", round=1)
        return active

    @classmethod
    def from_store(cls, row: RunRow, store: Store, folder: KeyFolder) -> "ActiveRun":
        """Return the run after all its committed outcomes, in its committed state.

        A running run that fails when it is replayed, or whose keys are lost, is committed as failed, once. A run that
        this version of the code refuses counts as failed and has no learner, so that the server still serves the
        others. Raises Unavailable for a key file that may not be read, or that others may read.
        """
        learner, refusal = _replayed(row.config, store)
        active = cls(row.config, row.identity, learner, store, folder)
        active.state, active.reason = row.state, row.reason
        if refusal is not None:
            active.state, active.reason = "failed", row.reason if row.state == "failed" else refusal
            _log.error("run_refused", run=row.config.run, was=row.state, why=refusal)
            if row.state == "running":
                active._commit_end("failed", refusal)
        elif row.state == "failed" and not active.learner.finished:  # the outcomes do not hold the reason
            active.learner.stop(row.reason or "no reason was kept")
        elif row.state == "running":
            active._go_on(active.learner)
        return active

    def _go_on(self, learner: Learner) -> None:
        """Take up an open run after a start. One that cannot go on is committed as failed."""
        try:
            self.keys = self._folder.read(self.run_digest, self.identity.keys)
            self.plan_next(learner)
        except RunFailed as error:
            _log.error("run_failed", run=self.config.run, why=error.detail)
            learner.stop(error.detail)
        if learner.finished:
            self._commit_end(_end_of(learner), learner.fault)

    @repeated
    def _commit_end(self, state: EndState, reason: str | None) -> None:
        with self._store.writing() as writing:
            writing.end(self.config.run, self.config.intermediary.keep_seconds, state, reason)
        self.end(state, reason)

    def end(self, state: RunState, reason: str | None) -> None:
        """Take over the run's end, which is committed, and destroy its keys."""
        self.state, self.reason, self.keys = state, reason, None
        self._folder.destroy(self.run_digest)

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
                    self.end(state, reason)
                self.changed()
            return self._learner

    def forget_cached(self) -> None:
        """Read learner and state again before they are used: a commit failed, or only its confirmation was lost."""
        self._stale, self._rows, self.streams = True, None, {}

    def changed(self) -> None:
        """Take over the learner's end. Call after each committed change, once the next round is planned."""
        learner = self._learner
        if self.state == "running" and learner is not None and learner.finished:
            self.end(_end_of(learner), learner.fault)

    def plan_next(self, learner: Learner) -> None:
        """Build the next round's message. A run whose round has none fails, or each client would see the error."""
        try:
            plan = learner.plan()
            self._round = None if plan is None else self._message(plan)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client can play this round
            self._round = None
            learner.fail(f"round {learner.rounds[-1].number}", error)

    def round(self) -> Round | None:
        """Return the open round with the cohorts that have no outcome; None when there is none."""
        learner = self.learner if self.state == "running" else None  # reading it again may show that the run is over
        plan = learner.plan() if learner is not None and self.state == "running" else None
        if plan is not None and self._round is None:
            self._round = self._message(plan)
        return self._round if plan is not None else None

    def _message(self, plan: RoundPlan) -> Round:
        return round_message(self.config, self.run_digest, plan, self.identity.keys)

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
            state="open" if self.state == "running" else self.state,
            config=self.digest,
            run_id=self.identity.run_id,
            round=round_,
        )

    def pending(self) -> list[Cohort]:
        """Return the open round's cohorts without an outcome, in cohort order."""
        round_ = self.round()
        return [] if round_ is None else [assignment.cohort for assignment in round_.assignments]


def round_message(config: RunConfig, run_digest: bytes, plan: RoundPlan, keys: PublicKeys) -> Round:
    """Return a round of the run with digest R, with all that is public of its cohorts that have no outcome."""
    round_ = Round(
        run=config.run,
        number=plan.number,
        decision=plan.decision,
        statistic=plan.statistic,
        mechanism=plan.mechanism,
        dropout=config.intermediary.dropout,
        corrupt=config.intermediary.corrupt,
        assignments=[],
    )
    for cohort in plan.cohorts:
        message = Cohort(
            run=config.run,
            round=plan.number,
            cohort=cohort.cohort,
            clients=cohort.clients,
            minimum=cohort.minimum,
            stage_seconds=config.intermediary.stage_seconds,
            keep_seconds=config.intermediary.keep_seconds,
            run_digest=run_digest,
            ticket_key=keys.ticket,
            channel=cohort_channel(config, round_, cohort.mechanism, cohort.minimum, keys.seal),
            terms=cohort_terms(round_, cohort.arm, cohort.mechanism),
        )
        own = None if cohort.mechanism == plan.mechanism else cohort.mechanism
        round_.assignments.append(Assignment(arm=cohort.arm, cohort=message, mechanism=own))
    return round_


def _replayed(config: RunConfig, store: Store) -> tuple[Learner | None, str | None]:
    """Return the learner after its committed outcomes, or why this version of the code does not make one."""
    try:
        return Learner.replay(config, store.outcomes(config.run)), None
    except Unavailable:  # the database does not answer: that says nothing of the run
        raise
    except Exception as error:  # noqa: BLE001 - whatever one stored run does, the server starts for the others
        why = error.detail if isinstance(error, ProtocolError) else describe_error(error)
        return None, f"its stored configuration is refused: {why}"


def _end_of(learner: Learner) -> EndState:
    """Return the state of a finished run that was not cancelled."""
    return "failed" if learner.fault else "finished"
