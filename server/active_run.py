"""An active run: its learner and state, changed under one lock together with the store, and its round as a message."""

import threading
from typing import Literal

import structlog

from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.crypto.parameters import neighbourhood
from distrust.common.errors import ProtocolError, RunFailed, Unavailable, WrongCohort, describe_error
from distrust.common.mechanisms import Mechanism
from distrust.common.messages.cohort import Channel, Cohort, Dealt, LabelledBits, Masking, Sealed
from distrust.common.modular import packed_size
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import RunState, Snapshot
from distrust.common.run.round import Assignment, Round, RoundView, cohort_terms
from distrust.server.keys import PublicKeys
from distrust.server.learner.learner import Learner, blank_snapshot
from distrust.server.learner.rounds import CohortPlan, RoundPlan
from distrust.server.store import RunRow, Store

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

    def __init__(self, config: RunConfig, learner: Learner | None, store: Store, keys: PublicKeys) -> None:
        self.lock = threading.RLock()
        self.config, self.digest = config, config.digest()
        self.state: RunState = "running"
        self.reason: str | None = None
        self._learner, self._store, self._keys = learner, store, keys
        self._stale = False
        self._round: Round | None = None

    @classmethod
    def from_store(cls, row: RunRow, store: Store, keys: PublicKeys) -> "ActiveRun":
        """Return the run after all its committed outcomes, in its committed state.

        A running run that fails when it is replayed is committed as failed, once. A run that this version of the code
        refuses counts as failed and has no learner, so that the server still serves the others.
        """
        learner, refusal = _replayed(row.config, store)
        active = cls(row.config, learner, store, keys)
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

    def _commit_failure(self) -> None:
        with self._store.writing() as writing:
            writing.state(self.config.run, self.state, self.reason)
            writing.event(self.config.run, kind="failed", detail=self.reason)

    def snapshot(self) -> Snapshot:
        """Return the learner's snapshot; a blank one for a stored run that is refused today."""
        return blank_snapshot(self.config) if self._learner is None else self.learner.snapshot()

    @property
    def learner(self) -> Learner:
        """The learner after the committed outcomes. Reads them again if a commit is in doubt.

        Raises Unavailable while the database cannot be read, RunFailed for a stored run that is refused today.
        """
        with self.lock:
            if self._learner is None:
                raise RunFailed(f"run {self.config.run} failed: {self.reason}")
            if self._stale:
                self._learner = Learner.replay(self.config, self._store.outcomes(self.config.run))
                self.plan_next(self._learner)
                self._stale = False
                self.changed()
            return self._learner

    def doubt(self) -> None:
        """Drop the learner until it is read again: a commit failed, or only its confirmation was lost."""
        self._stale = True

    def changed(self) -> None:
        """Take over the learner's end. Call after each committed change, once the next round is planned."""
        learner = self._learner
        if self.state == "running" and learner is not None and learner.finished:
            self.state, self.reason = state_of(learner), learner.fault

    def plan_next(self, learner: Learner) -> None:
        """Build the next round's message. A run whose round has none fails, or each client would see the error."""
        try:
            plan = learner.plan()
            self._round = None if plan is None else round_message(self.config, plan, self._keys)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client can play this round
            self._round = None
            learner.fail(f"round {learner.rounds[-1].number}", error)

    def round(self) -> Round | None:
        """Return the open round with the cohorts that have no outcome; None when there is none."""
        plan = self.learner.plan() if self.state == "running" else None
        if plan is not None and self._round is None:
            self._round = round_message(self.config, plan, self._keys)
        return self._round if plan is not None else None

    def view(self) -> RoundView:
        """Return the answer to GET /round."""
        round_ = self.round()  # first: reading the learner again may show that the run is over
        return RoundView(run=self.config.run, state=ROUND_STATES[self.state], config=self.digest, round=round_)

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


def cohort_channel(
    mechanism: Mechanism, decision: Decision, config: RunConfig, minimum: int, keys: PublicKeys
) -> Channel:
    """Return how the mechanism's messages travel: as masked sums, sealed records or labelled bits.

    The shuffler deals assigned actions, and returns their sealed records by action.
    """
    if mechanism.via == "aggregator":
        spec = config.intermediary
        neighbours, threshold = neighbourhood(mechanism.clients, spec.dropout, spec.corrupt, minimum)
        return Masking(
            modulus=mechanism.modulus, dimension=mechanism.dimension, neighbours=neighbours, threshold=threshold
        )
    if mechanism.width is not None:
        return LabelledBits(labels=mechanism.dimension, width=mechanism.width)
    size = packed_size(mechanism.modulus, mechanism.dimension)
    if isinstance(decision, AssignedAction):
        seed = None if config.unsafe is None else config.unsafe.noise_seed
        return Dealt(size=size, server_key=keys.seal, deal=decision, noise_seed=seed)
    return Sealed(size=size, server_key=keys.seal)


def cohort_message(config: RunConfig, round_: Round, cohort: CohortPlan, keys: PublicKeys) -> Cohort:
    """Return one cohort of a round, with everything public about it."""
    return Cohort(
        run=config.run,
        round=round_.number,
        cohort=cohort.cohort,
        clients=cohort.clients,
        minimum=cohort.minimum,
        stage_seconds=config.intermediary.stage_seconds,
        config=config.digest(),
        ticket_key=keys.ticket,
        channel=cohort_channel(cohort.mechanism, round_.decision, config, cohort.minimum, keys),
        terms=cohort_terms(round_, cohort.arm, cohort.mechanism),
    )


def round_message(config: RunConfig, plan: RoundPlan, keys: PublicKeys) -> Round:
    """Return the round with the cohorts that have no outcome."""
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
    assignments = [
        Assignment(
            arm=cohort.arm,
            cohort=cohort_message(config, round_, cohort, keys),
            mechanism=None if cohort.mechanism == plan.mechanism else cohort.mechanism,
        )
        for cohort in plan.cohorts
    ]
    return round_.model_copy(update={"assignments": assignments})
