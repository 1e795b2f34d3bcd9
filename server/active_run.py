"""Holds an active run: its learner and state, its round as a message, and the settlement of its cohorts.

Learner and state are changed under one lock, together with the store. A cohort is settled by its batch, which is
analyzed, or as a loss; the outcome is committed before the learner moves on.
"""

import threading
from functools import partial
from typing import Literal

import numpy as np
import structlog
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.crypto.parameters import neighbourhood
from distrust.common.crypto.seal import open_record
from distrust.common.errors import (
    BadMessage,
    ProtocolError,
    RunFailed,
    TooSmall,
    Unavailable,
    WrongCohort,
    describe_error,
)
from distrust.common.mechanisms import Mechanism
from distrust.common.mechanisms.families.base import StreamCounter
from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import AssignedRecords, Channel, Cohort, LabelledBits, Masking, Sealed
from distrust.common.modular import packed_size
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import EventKind, RunState, Snapshot
from distrust.common.run.round import Assignment, Round, RoundView, cohort_terms
from distrust.server.analyzer import analyze, analyze_parts, analyze_stream, content_sum
from distrust.server.keys import PublicKeys
from distrust.server.learner.learner import Learner, blank_snapshot
from distrust.server.learner.rounds import CohortPlan, LostCohort, ReleasedCohort, RoundPlan
from distrust.server.store import CohortRow, RunRow, Store, Writing

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
        self._rows: tuple[int, dict[str, CohortRow]] | None = None
        self.counter: StreamCounter | None = None  # after the committed outcomes, of a mechanism that counts a stream

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
                if state == "cancelled":  # which no outcome tells
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
            self._round = None if plan is None else round_message(self.config, plan, self._keys)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client can play this round
            self._round = None
            learner.fail(f"round {learner.rounds[-1].number}", error)

    def round(self) -> Round | None:
        """Return the open round with the cohorts that have no outcome; None when there is none."""
        learner = self.learner if self.state == "running" else None  # reading it again may show that the run is over
        plan = learner.plan() if learner is not None and self.state == "running" else None
        if plan is not None and self._round is None:
            self._round = round_message(self.config, plan, self._keys)
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
            self._rows = number, self._store.cohorts(self.config.run, number)
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

    The shuffler assigns actions, and returns their sealed records by action.
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
        return AssignedRecords(size=size, server_key=keys.seal, deal=decision, noise_seed=seed)
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


def analyzer_stream(config: RunConfig, cohort: str) -> Stream:
    """Return the analyzer's source of noise: the operating system's CSPRNG, or a seed if the run is named unsafe."""
    if config.unsafe is None:
        return SystemStream()
    return UnsafeSeededStream(config.unsafe.noise_seed, config.run, cohort, "analyzer")


class Settlement:
    """Turns the intermediaries' answers into outcomes. A cohort is settled once."""

    def __init__(self, store: Store, key: X25519PrivateKey) -> None:
        self._store, self._key = store, key

    def settle(self, active: ActiveRun, cohort: Cohort, answer: BatchAnswer) -> bool:
        """Commit an intermediary's last answer on a cohort. Return False if the cohort is no longer waited for.

        Nothing is used before it is committed. The analysis runs without the run's lock: if another call settles the
        cohort meanwhile, this estimate is dropped, and its noise with it.
        """
        outcome, counter = self._outcome(active, cohort, answer)
        with active.lock:
            if active.state != "running" or cohort not in active.pending():
                return False
            try:
                self._commit(active, cohort, outcome, answer)
            except BaseException:
                active.doubt()
                raise
            active.counter = counter or active.counter
            return True

    def _outcome(
        self, active: ActiveRun, cohort: Cohort, answer: BatchAnswer
    ) -> tuple[ReleasedCohort | LostCohort, StreamCounter | None]:
        """Return a cohort's outcome, and where the mechanism counts a stream the state after it."""
        if answer.batch is None or answer.state != "released":
            reason = answer.reason or "the intermediary gave no reason"
            return LostCohort(cohort=cohort.cohort, reason=reason), None
        record = active.learner.rounds[cohort.round - 1]
        mechanism = record.mechanisms[cohort.clients]
        stream = analyzer_stream(active.config, cohort.cohort)
        try:
            opener = partial(open_record, self._key, cohort)
            if isinstance(cohort.channel, AssignedRecords):
                sums, counts = analyze_parts(mechanism, cohort, answer.batch, stream, opener)
                survivors, parts = int(counts.sum()), counts.tolist()
                return ReleasedCohort(cohort=cohort.cohort, sum=sums.tolist(), survivors=survivors, counts=parts), None
            after = None
            if record.ask.cumulative and mechanism.takes_batches:
                before = active.counter or self._restored(active, mechanism)
                estimate, after = analyze_stream(before, cohort, answer.batch, stream, opener)
                survivors = answer.batch.survivors
            else:
                estimate, survivors = analyze(mechanism, cohort, answer.batch, stream, opener)
            released = ReleasedCohort(
                cohort=cohort.cohort,
                sum=estimate.tolist(),
                survivors=survivors,
                liars=answer.batch.liars,
                disputes=answer.batch.disputes,
            )
        except (BadMessage, TooSmall) as error:
            return LostCohort(cohort=cohort.cohort, reason=f"refused: {error.detail}"), None
        except Exception as error:  # noqa: BLE001 - another try would raise it again: the run ends, nothing is released
            return _faulted(cohort, "the analyzer raised", error), None
        return released, after

    def _restored(self, active: ActiveRun, mechanism: Mechanism) -> StreamCounter:
        """Return the stream's state after the committed outcomes, from the stored batches and what was released."""
        batches = []
        for outcome in self._store.outcomes(active.config.run):
            if isinstance(outcome, ReleasedCohort):
                cohort, answer = self._store.cohort_message(outcome.cohort), self._store.batch(outcome.cohort)
                assert cohort is not None
                assert answer is not None
                assert answer.batch is not None
                summed = content_sum(mechanism, cohort, answer.batch, partial(open_record, self._key, cohort))
                batches.append((summed, outcome.survivors, np.array(outcome.sum)))
        return mechanism.counter().restored(batches)

    def _commit(
        self, active: ActiveRun, cohort: Cohort, outcome: ReleasedCohort | LostCohort, answer: BatchAnswer
    ) -> None:
        learner, number, recorded = active.learner, len(active.learner.rounds), cohort.cohort in active.rows()
        try:
            learner.absorb(outcome)
        except (BadMessage, WrongCohort) as error:  # the analyzer has checked the same: one of the two is wrong
            outcome = _faulted(cohort, "the learner refused it", error)
            learner.absorb(outcome)
        active.plan_next(learner)
        state = state_of(learner)
        with self._store.writing() as writing:
            if not recorded:  # it ended before its first ticket
                writing.cohort(cohort)
            writing.outcome(active.config.run, outcome, answer)
            if state != "running":
                writing.state(active.config.run, state, learner.fault)
            _announce(writing, active.config.run, cohort, outcome)
            _announce_progress(writing, active.config.run, learner, number)
        if learner.error is not None:
            _log.error("run_failed", run=active.config.run, why=learner.fault, exc_info=learner.error)
        if len(learner.rounds) > number:
            active.keep_rows({})  # cohorts are opened once their round is committed
        active.changed()


def _faulted(cohort: Cohort, where: str, error: Exception) -> LostCohort:
    """Return an outcome that ends the run: the server's own code failed on this cohort."""
    _log.error("cohort_faulted", cohort=cohort.cohort, why=describe_error(error), exc_info=error)
    return LostCohort(cohort=cohort.cohort, reason=f"{where}: {describe_error(error)}", fault=True)


def _announce(writing: Writing, run: str, cohort: Cohort, outcome: ReleasedCohort | LostCohort) -> None:
    number, name = cohort.round, cohort.cohort
    if isinstance(outcome, ReleasedCohort):
        writing.event(run, "cohort-released", round=number, cohort=name, survivors=outcome.survivors)
    else:
        writing.event(run, "cohort-aborted", round=number, cohort=name, detail=outcome.reason)


def _announce_progress(writing: Writing, run: str, learner: Learner, number: int) -> None:
    """Record the events that this outcome caused: eliminations of round `number`, another round, the end."""
    moved = len(learner.rounds) > number or learner.finished
    for arm in learner.rounds[number - 1].eliminated if moved else ():
        writing.event(run, kind="arm-eliminated", round=number, arm=arm)
    if len(learner.rounds) > number:
        writing.event(run, kind="round-opened", round=len(learner.rounds))
    if learner.finished:
        kind: EventKind = "failed" if learner.fault else "finished"
        writing.event(run, kind, arm=learner.policy.chosen, detail=learner.fault)
