"""Assigned actions in one process: S permutes what is played, and puts the reports back in order (FREE Alg. 3)."""

import numpy as np
from numpy.typing import NDArray

from client.environments import Environment
from common.decisions import AssignedAction
from common.modular import total
from common.randomness import Stream
from server.outcome import Released
from server.rounds import CohortPlan


def shuffled(decision: AssignedAction, stream: Stream) -> NDArray[np.int64]:
    """A uniform order of all the plays, shape (n,): entry i is the place in the list of what slot i plays."""
    places = np.repeat(np.arange(len(decision.times)), decision.times)
    return places[np.argsort(stream.words(len(places)), kind="stable")]


def played(
    world: Environment, decision: AssignedAction, order: NDArray[np.int64], stream: Stream
) -> NDArray[np.float64]:
    """Every slot's reward for its action, shape (n,)."""
    rewards = np.empty(len(order))
    for place, action in enumerate(decision.actions):
        mine = order == place
        rewards[mine] = world.rewards(action, int(np.count_nonzero(mine)), stream)
    return rewards


def unshuffled(
    cohort: CohortPlan, actions: int, rows: NDArray[np.uint64], order: NDArray[np.int64], stream: Stream
) -> Released:
    """The survivors' reports by action, each group analyzed for itself; which slot was in which is forgotten."""
    mechanism, counts = cohort.mechanism, np.bincount(order, minlength=actions)
    totals = np.stack([total(rows[order == place], mechanism.modulus) for place in range(actions)])
    sums = mechanism.estimate_parts(totals, counts, stream)[:, 0]
    return Released(cohort=cohort.cohort, sum=sums.tolist(), survivors=len(rows), counts=counts.tolist())
