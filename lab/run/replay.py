"""A run over services, played again from what its server published: who knows the true means sees the failures then."""

import math
from collections.abc import Iterable, Mapping
from functools import partial

from distrust.common.errors import BadMessage, ProtocolError, WrongCohort
from distrust.common.messages.progress import CohortView, RoundReport, Snapshot
from distrust.common.threads import one_thread
from distrust.lab.run.failures import FailureTracker, PolicyFailures
from distrust.lab.run.run_file import RunFile
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, LostCohort, ReleasedCohort, RoundPlan

DIGITS = 1e-9  # two machines may add in another order
ARM = ("active", "pulls", "batch", "eliminated", "mean", "lower", "upper")
LEARNED = ("round", "pulls", "aborted", "unfinished", "finished", "chosen")
PROMISED = ("kind", "epsilon", "delta")


class ReplayDiffers(ProtocolError):
    """The published rounds lead our learner elsewhere than the server's: its failures are not those of the run."""

    code, status = "replay-differs", 409

    def __init__(self, run: str, what: str) -> None:
        advice = "do the server and this command have the same release?"
        super().__init__(f"run {run}, played again from its published rounds: {what}; {advice}")


def replayed(file: RunFile, reports: Iterable[RoundReport], snapshot: Snapshot) -> PolicyFailures:
    """The failures of a finished run, from all of its rounds, in the order in which the learner plans cohorts.

    snapshot  what the server says it learned.
    Raises    ReplayDiffers when this is not what the rounds come to, or when a cohort that must have ended has not.
    """
    ended = {cohort.cohort: cohort for report in reports for cohort in report.cohorts}
    try:
        with one_thread():  # the first round is planned when a learner is made
            witness, learner = FailureTracker(file), Learner(file.config)
            learner.play(partial(_outcome, file.config.run, ended), witness)
    except (BadMessage, WrongCohort) as error:  # an outcome that cannot be
        raise ReplayDiffers(file.config.run, error.detail) from error
    _compare(file.config.run, learner.snapshot(), snapshot)
    return witness.events(learner)


def _outcome(
    run: str, ended: Mapping[str, CohortView], _plan: RoundPlan, cohort: CohortPlan
) -> ReleasedCohort | LostCohort:
    """How a cohort ended, as the server published it."""
    seen = ended.get(cohort.cohort)
    if seen is None or seen.clients != cohort.clients:
        raise ReplayDiffers(run, f"the server had no cohort {cohort.cohort} of {cohort.clients} clients")
    if seen.state == "aborted":
        return LostCohort(cohort=seen.cohort, reason=seen.reason or "the server gave no reason")
    if seen.estimate is None or seen.survivors is None:
        raise ReplayDiffers(run, f"cohort {cohort.cohort} is {seen.state}, without a sum")
    return ReleasedCohort(cohort=seen.cohort, sum=seen.estimate, survivors=seen.survivors, counts=seen.counts)


def _compare(run: str, ours: Snapshot, theirs: Snapshot) -> None:
    """Raise ReplayDiffers unless whole numbers are the server's, and all others to DIGITS."""
    for field in LEARNED:
        _same(run, field, getattr(ours, field), getattr(theirs, field))
    for field in PROMISED:
        _same(run, f"guarantee: {field}", getattr(ours.guarantee, field), getattr(theirs.guarantee, field))
    for one, other in zip(ours.arms, theirs.arms, strict=True):
        for field in ARM:
            _same(run, f"arm {one.arm}: {field}", getattr(one, field), getattr(other, field))


def _same(run: str, field: str, ours: float | str | None, theirs: float | str | None) -> None:
    equal = ours == theirs
    if isinstance(ours, float) and isinstance(theirs, float):
        equal = math.isclose(ours, theirs, rel_tol=DIGITS, abs_tol=DIGITS)
    if not equal:
        raise ReplayDiffers(run, f"{field} is {ours}, and {theirs} at the server")
