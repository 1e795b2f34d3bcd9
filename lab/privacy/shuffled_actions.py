"""Assigned actions in one process: S permutes what is played, and puts the reports back in order (FREE Alg. 3)."""

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.modular import sum_rows
from distrust.common.randomness import Stream
from distrust.server.learner.rounds import CohortPlan, ReleasedCohort


def unshuffled(
    cohort: CohortPlan, deal: AssignedAction, rows: NDArray[np.uint64], plays: NDArray[np.int64], stream: Stream
) -> ReleasedCohort:
    """The survivors' reports by action, each group analyzed for itself; which slot was in which is forgotten."""
    mechanism, actions = cohort.mechanism, len(deal.actions)
    places = deal.places()[plays]
    counts = np.bincount(places, minlength=actions)
    totals = np.stack([sum_rows(rows[places == place], mechanism.modulus) for place in range(actions)])
    sums = mechanism.estimate_parts(totals, counts, stream)[:, 0]
    return ReleasedCohort(cohort=cohort.cohort, sum=sums.tolist(), survivors=len(rows), counts=counts.tolist())
