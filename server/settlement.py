"""Settles cohorts: analyzes a batch or records a loss, commits the outcome, and moves the learner on."""

from functools import partial
from typing import Any

import numpy as np
import structlog
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from distrust.common.crypto.seal import open_record
from distrust.common.errors import BadMessage, TooSmall, WrongCohort, describe_error
from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import Cohort, Dealt
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.common.run.config import RunConfig
from distrust.server.active_run import ActiveRun, state_of
from distrust.server.analyzer import analyze, analyze_parts
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from distrust.server.store import Store, Writing

_log = structlog.get_logger("distrust.server")


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
        outcome = self._outcome(active, cohort, answer)
        with active.lock:
            if active.state != "running" or cohort not in active.pending():
                return False
            try:
                self._commit(active, cohort, outcome, answer)
            except BaseException:
                active.doubt()
                raise
            return True

    def _outcome(self, active: ActiveRun, cohort: Cohort, answer: BatchAnswer) -> ReleasedCohort | LostCohort:
        if answer.batch is None or answer.state != "released":
            return LostCohort(cohort=cohort.cohort, reason=answer.reason or "the intermediary gave no reason")
        mechanism = active.learner.rounds[cohort.round - 1].mechanisms[cohort.clients]
        stream = analyzer_stream(active.config, cohort.cohort)
        try:
            opener = partial(open_record, self._key, cohort)
            if isinstance(cohort.channel, Dealt):
                sums, counts = analyze_parts(mechanism, cohort, answer.batch, stream, opener)
                return _released_by_action(cohort, sums, counts)
            estimate, survivors = analyze(mechanism, cohort, answer.batch, stream, opener)
            return ReleasedCohort(
                cohort=cohort.cohort,
                sum=estimate.tolist(),
                survivors=survivors,
                liars=answer.batch.liars,
                disputes=answer.batch.disputes,
            )
        except (BadMessage, TooSmall) as error:
            return LostCohort(cohort=cohort.cohort, reason=f"refused: {error.detail}")
        except Exception as error:  # noqa: BLE001 - another try would raise it again: the run ends, nothing is released
            return _faulted(cohort, "the analyzer raised", error)

    def _commit(
        self, active: ActiveRun, cohort: Cohort, outcome: ReleasedCohort | LostCohort, answer: BatchAnswer
    ) -> None:
        learner, number = active.learner, len(active.learner.rounds)
        try:
            learner.absorb(outcome)
        except (BadMessage, WrongCohort) as error:  # the analyzer has checked the same: one of the two is wrong
            outcome = _faulted(cohort, "the learner refused it", error)
            learner.absorb(outcome)
        active.plan_next(learner)
        state = state_of(learner)
        with self._store.writing() as writing:
            writing.outcome(active.config.run, outcome, answer)
            if state != "running":
                writing.state(active.config.run, state, learner.fault)
            _announce(writing, active.config.run, cohort, outcome)
            _announce_progress(writing, active.config.run, learner, number)
        if learner.error is not None:
            _log.error("run_failed", run=active.config.run, why=learner.fault, exc_info=learner.error)
        active.changed()


def _faulted(cohort: Cohort, where: str, error: Exception) -> LostCohort:
    """Return an outcome that ends the run: the server's own code failed on this cohort."""
    _log.error("cohort_faulted", cohort=cohort.cohort, why=describe_error(error), exc_info=error)
    return LostCohort(cohort=cohort.cohort, reason=f"{where}: {describe_error(error)}", fault=True)


def _released_by_action(cohort: Cohort, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> ReleasedCohort:
    survivors = int(counts.sum())
    return ReleasedCohort(cohort=cohort.cohort, sum=sums.tolist(), survivors=survivors, counts=counts.tolist())


def _announce(writing: Writing, run: str, cohort: Cohort, outcome: ReleasedCohort | LostCohort) -> None:
    where: dict[str, Any] = {"round": cohort.round, "cohort": cohort.cohort}
    if isinstance(outcome, ReleasedCohort):
        writing.event(run, kind="cohort-released", survivors=outcome.survivors, **where)
    else:
        writing.event(run, kind="cohort-aborted", detail=outcome.reason, **where)


def _announce_progress(writing: Writing, run: str, learner: Learner, number: int) -> None:
    """Record the events that this outcome caused: eliminations of round `number`, another round, the end."""
    moved = len(learner.rounds) > number or learner.finished
    for arm in learner.rounds[number - 1].eliminated if moved else ():
        writing.event(run, kind="arm-eliminated", round=number, arm=arm)
    if len(learner.rounds) > number:
        writing.event(run, kind="round-opened", round=len(learner.rounds))
    if learner.finished:
        kind = "failed" if learner.fault else "finished"
        writing.event(run, kind=kind, arm=learner.policy.chosen, detail=learner.fault)
