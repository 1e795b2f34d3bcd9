"""What the clients of a cohort get for playing what the round asks."""

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments import Environment, SideBySide
from distrust.common.bandit.decisions import AssignedAction, AssignedArm, Decision, PlayDesign
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream


def rewards(
    environment: Environment, decision: Decision, arm: int | None, clients: int, stream: Stream
) -> NDArray[np.float64]:
    """True rewards of a whole cohort, one row a client, in the form that the round's statistic takes.

    Of assigned actions one row a play: whose it is only S knows. Raises BadParameter for a decision that this world
    cannot play.
    """
    match decision:
        case AssignedArm() if arm is not None:
            return environment.rewards(arm, clients, stream)
        case PlayDesign() if isinstance(environment, SideBySide):
            return environment.averages(decision.actions, decision.times, clients, stream)
        case AssignedAction():
            pulls = zip(decision.actions, decision.times, strict=True)
            return np.concatenate([environment.rewards(action, times, stream) for action, times in pulls])
    raise BadParameter("decision", decision.kind, f"cannot be played by one client alone in {environment.name}")
