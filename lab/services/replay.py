"""Makes the result of a run over services, from what the server published of it.

The server does not know the true means. So the run is replayed here, from its published rounds, with the means of its
run file: the replay counts regret and failures, and must lead to the server's own snapshot.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial

from pydantic import ValidationError

from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.errors import BadMessage, ProtocolError, RunFailed, WrongCohort
from distrust.common.explain import first
from distrust.common.protocol.messages.status import CohortView
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.progress import LedgerView, RoundList, RoundReport, Snapshot
from distrust.common.protocol.web.client import Peer
from distrust.lab.play.failures import summarize, tracker_of
from distrust.lab.play.result import CohortResult, Result, RoundResult, Truth, Wire
from distrust.lab.play.run_file import RunFile
from distrust.lab.services.parties import next_page
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, LostCohort, ReleasedCohort, RoundPlan

ROUNDS = 50  # of one page
TOLERANCE = 1e-9  # two machines may add in another order
ARM_FIELDS = ("active", "pulls", "batch", "eliminated", "mean", "lower", "upper")
LEARNED_FIELDS = ("round", "pulls", "aborted", "unfinished", "finished", "chosen")
GUARANTEE_FIELDS = ("kind", "epsilon", "delta")


async def all_rounds(server: Peer, run: str) -> list[RoundReport]:
    """Return every round of a run, read page by page. Raises BadMessage as `next_page`.

    A page that is longer than a reader takes is asked for again with fewer rounds, as decisions may be long.
    """
    rounds: list[RoundReport] = []
    after: int | None = 0
    asked = ROUNDS
    while after is not None:
        try:
            page = await server.get(f"/v1/runs/{run}/rounds", RoundList, {"after": after, "limit": asked})
        except BadMessage:
            if asked == 1:
                raise
            asked = max(1, asked // 8)
            continue
        rounds += page.rounds
        after = next_page(page, len(page.rounds), after, asked)
    return rounds


async def result_of(
    server: Peer, file: RunFile, view: RunView, *, seconds: float | None = None, wire: Wire | None = None
) -> Result:
    """Return the result of a finished run, with regret and failures counted in the world of its run file."""
    reports = await all_rounds(server, view.run)
    rounds = [from_report(report) for report in reports]
    truth = replay_failures(file, reports, view.snapshot)
    spent = (await server.get(f"/v1/runs/{view.run}/ledger", LedgerView)).classes
    return summarize(file, "http", view.snapshot, rounds, truth, spent=spent, seconds=seconds, wire=wire)


def finished(view: RunView) -> RunView:
    """Return the view of a finished run. Raises RunFailed for one that failed or was cancelled."""
    if view.state == "finished":
        return view
    how = "was cancelled" if view.state == "cancelled" else "failed"
    raise RunFailed(f"run {view.run} {how}: {view.reason}")


def from_report(report: RoundReport) -> RoundResult:
    """Return the result of a round from the server's report of it."""
    return RoundResult(
        number=report.number,
        batch=report.batch,
        arms=report.arms,
        decision=report.decision,
        eliminated=report.eliminated,
        modulus=report.mechanism.modulus,
        payload_bits=report.mechanism.bits,
        guarantee=report.guarantee,
        cohorts=[
            CohortResult(**{name: getattr(cohort, name) for name in CohortResult.model_fields})
            for cohort in report.cohorts
        ],
    )


class ReplayDiffers(ProtocolError):
    """The published rounds lead our learner to another state than the server's: its failures are not the run's."""

    code, status = "replay-differs", 409

    def __init__(self, run: str, what: str) -> None:
        advice = "do the server and this command have the same release?"
        super().__init__(f"run {run}, played again from its published rounds: {what}; {advice}")


def replay_failures(file: RunFile, reports: Iterable[RoundReport], snapshot: Snapshot) -> Truth:
    """Return the regret and the failures of a finished run, replayed from all its rounds.

    snapshot  what the server says it learned.
    Raises    ReplayDiffers when the rounds lead to another snapshot, or when a cohort has no outcome that needs one.
    """
    ended = {cohort.cohort: cohort for report in reports for cohort in report.cohorts}
    try:
        with one_thread():  # the first round is planned when a learner is made
            tracker, learner = tracker_of(file), Learner(file.config)
            learner.run_cohorts(partial(_published_outcome, file.config.run, ended), tracker)
    except (BadMessage, WrongCohort) as error:  # an outcome that cannot be
        raise ReplayDiffers(file.config.run, error.detail) from error
    _require_same_snapshot(file.config.run, learner.snapshot(), snapshot)
    return tracker.truth(learner)


def _published_outcome(
    run: str, ended: Mapping[str, CohortView], _plan: RoundPlan, cohort: CohortPlan
) -> ReleasedCohort | LostCohort:
    """Return a cohort's outcome, as the server published it."""
    view = ended.get(cohort.cohort)
    if view is None or view.clients != cohort.clients:
        raise ReplayDiffers(run, f"the server had no cohort {cohort.cohort} of {cohort.clients} clients")
    if view.state == "aborted":
        return LostCohort(cohort=view.cohort, reason=view.reason or "the server gave no reason")
    if view.estimate is None or view.survivors is None:
        raise ReplayDiffers(run, f"cohort {cohort.cohort} is {view.state}, without a sum")
    try:
        return ReleasedCohort(cohort=view.cohort, sum=view.estimate, survivors=view.survivors, counts=view.counts)
    except ValidationError as error:
        raise ReplayDiffers(run, f"cohort {cohort.cohort} cannot be: {first(error, ReleasedCohort)}") from error


def _require_same_snapshot(run: str, ours: Snapshot, theirs: Snapshot) -> None:
    """Raise ReplayDiffers unless whole numbers are the server's, and all others agree to TOLERANCE."""
    for field in LEARNED_FIELDS:
        _require_same(run, field, getattr(ours, field), getattr(theirs, field))
    for field in GUARANTEE_FIELDS:
        _require_same(run, f"guarantee: {field}", getattr(ours.guarantee, field), getattr(theirs.guarantee, field))
    for one, other in zip(ours.arms, theirs.arms, strict=True):
        for field in ARM_FIELDS:
            _require_same(run, f"arm {one.arm}: {field}", getattr(one, field), getattr(other, field))


def _require_same(run: str, field: str, ours: float | str | None, theirs: float | str | None) -> None:
    equal = ours == theirs
    if isinstance(ours, float) and isinstance(theirs, float):
        equal = math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if not equal:
        raise ReplayDiffers(run, f"{field} is {ours}, and {theirs} at the server")
