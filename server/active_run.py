"""A run that is being served: its learner, its state, and the lock under which both change together with the store."""

import threading

import structlog

from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.crypto.parameters import neighbourhood
from distrust.common.errors import ProtocolError, RunFailed, Unavailable, WrongCohort, described
from distrust.common.mechanisms import Mechanism
from distrust.common.messages.cohort import Channel, Cohort, Dealt, LabelledBits, Masking, Sealed
from distrust.common.messages.progress import RunState, Snapshot
from distrust.common.messages.round import Assignment, Round, RoundView, cohort_terms
from distrust.common.messages.run import RunConfig
from distrust.common.modular import packed_size
from distrust.server.keys import PublicKeys
from distrust.server.learner.learner import Learner, blank_snapshot
from distrust.server.learner.rounds import CohortPlan, RoundPlan
from distrust.server.store import RunRow, Store

_log = structlog.get_logger("distrust.server")

ROUND_STATES = {"running": "open", "finished": "finished", "cancelled": "cancelled", "failed": "failed"}


class ActiveRun:
    """One run in memory. Hold `lock` around everything; the store has committed whatever can be seen here."""

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
        """The run after all the outcomes that were committed, in the state that was committed with the last of them.

        A run that was left running and that fails when it is played again is committed as failed, once. One that this
        version of the code refuses has failed and has no learner: all others are served.
        """
        learner, refusal = _replayed(row.config, store)
        active = cls(row.config, learner, store, keys)
        active.state, active.reason = row.state, row.reason
        if refusal is not None:
            active.state, active.reason = "failed", row.reason if row.state == "failed" else refusal
            _log.error("run_refused", run=row.config.run, was=row.state, why=refusal)
            if row.state == "running":
                active._commit_failure()
        elif row.state == "failed" and not active.learner.finished:  # the outcomes alone do not say why
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
        """What the learner knows; nothing of a stored run that is refused today."""
        return blank_snapshot(self.config) if self._learner is None else self.learner.snapshot()

    @property
    def learner(self) -> Learner:
        """What was committed. Raises Unavailable as long as it cannot be told: nothing else may be seen meanwhile.

        Raises RunFailed for a stored run that is refused today.
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
        """A commit failed, or only its confirmation was lost: forget the learner until it has been read again."""
        self._stale = True

    def changed(self) -> None:
        """To be called whenever the learner has moved and its next round is planned, and that is committed."""
        learner = self._learner
        if self.state == "running" and learner is not None and learner.finished:
            self.state, self.reason = state_of(learner), learner.fault

    def plan_next(self, learner: Learner) -> None:
        """Fail a run whose next round cannot be put in a message: each client that asks for it would see the error."""
        try:
            plan = learner.plan()
            self._round = None if plan is None else round_message(self.config, plan, self._keys)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client can play this round
            self._round = None
            learner.fail(f"round {learner.rounds[-1].number}", error)

    def round(self) -> Round | None:
        """The open round with the cohorts that are still to be played; None when there is none."""
        plan = self.learner.plan() if self.state == "running" else None
        if plan is not None and self._round is None:
            self._round = round_message(self.config, plan, self._keys)
        return self._round if plan is not None else None

    def view(self) -> RoundView:
        """The answer to GET /round."""
        asked = self.round()  # first, as reading the learner again may find that the run is over
        return RoundView.model_validate(
            {"run": self.config.run, "state": ROUND_STATES[self.state], "config": self.digest, "round": asked}
        )

    def pending(self) -> list[Cohort]:
        """The open round's cohorts without an outcome, in cohort order."""
        found = self.round()
        return [] if found is None else [assignment.cohort for assignment in found.assignments]

    def cohort(self, cohort: str) -> Cohort:
        """One of them. Raises WrongCohort."""
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
        why = error.detail if isinstance(error, ProtocolError) else described(error)
        return None, f"its stored configuration is refused: {why}"


def state_of(learner: Learner) -> RunState:
    """The state of a run that nobody cancelled."""
    if not learner.finished:
        return "running"
    return "failed" if learner.fault else "finished"


def cohort_channel(
    mechanism: Mechanism, decision: Decision, config: RunConfig, minimum: int, keys: PublicKeys
) -> Channel:
    """How this mechanism's messages travel: masked sums, or sealed records or labelled bits to be permuted.

    Assigned actions are dealt by the shuffler, which gives their sealed records back by action.
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


def cohort_message(config: RunConfig, asked: Round, cohort: CohortPlan, keys: PublicKeys) -> Cohort:
    """Return one cohort of a round, everything public about it."""
    return Cohort(
        run=config.run,
        round=asked.number,
        cohort=cohort.cohort,
        clients=cohort.clients,
        minimum=cohort.minimum,
        stage_seconds=config.intermediary.stage_seconds,
        config=config.digest(),
        ticket_key=keys.ticket,
        channel=cohort_channel(cohort.mechanism, asked.decision, config, cohort.minimum, keys),
        terms=cohort_terms(asked, cohort.arm, cohort.mechanism),
    )


def round_message(config: RunConfig, plan: RoundPlan, keys: PublicKeys) -> Round:
    """Return the round with the cohorts that are still to be played."""
    asked = Round(
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
            cohort=cohort_message(config, asked, cohort, keys),
            mechanism=None if cohort.mechanism == plan.mechanism else cohort.mechanism,
        )
        for cohort in plan.cohorts
    ]
    return asked.model_copy(update={"assignments": assignments})
