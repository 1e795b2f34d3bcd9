"""Defines the secrets of a contextual client, as the two worlds of an audit: its arm, or its context.

A client's vector follows from what it experienced. Here that is an `Observation` for either world, and a
`ContextualSum` turns both into vectors. The vectors are the farthest apart that such a secret allows.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from distrust.common.bandit.contextual_choice import Link, link_mean
from distrust.common.bandit.contextual_sum import ContextualSum, Observation
from distrust.common.errors import BadParameter
from distrust.common.explain import wanted

Hidden = Literal["arm", "context"]

MOST_COORDINATES = 20_000
"""Most coordinates of a vector that an audit draws again and again."""

MOST_REWARD = 1e6
"""Largest absolute value of a reward that `ContextualSum` takes."""


@dataclass(frozen=True, eq=False)
class Secret:
    """One client's experience in either world, and the statistic that it reports.

    hidden       arm: the arm differs; context and reward are the same. context: the context differs, all else is the
                 same.
    experienced  row w is what the client experiences in world w, so that n = 2.
    """

    hidden: Hidden
    statistic: ContextualSum
    experienced: Observation

    @cached_property
    def ends(self) -> NDArray[np.float64]:
        """Return the client's vector in either world, shape (2, D)."""
        return self.statistic.vectors(self.experienced)


def arm_secret(statistic: ContextualSum) -> Secret:
    """Return arm 0 in world 0 and arm 1 in world 1, with one context of length 1: √2 · radius apart.

    Raises BadParameter where all arms share their parameters, since a vector then tells nothing of the arm.
    """
    if statistic.blocks < 2:
        raise BadParameter("arms", statistic.blocks, "must be at least 2, with parameters of their own")
    contexts = np.zeros((2, statistic.features))
    contexts[:, 0] = 1
    return Secret("arm", statistic, _experienced(statistic, np.array([0, 1]), contexts))


def context_secret(statistic: ContextualSum) -> Secret:
    """Return two contexts for one arm and one reward, the worst pair: `ContextualSum.sensitivity` apart for d ≥ 2."""
    contexts = np.zeros((2, statistic.features))
    contexts[0, 0] = 1
    contexts[1] = _opposite(statistic)
    return Secret("context", statistic, _experienced(statistic, np.array([0, 0]), contexts))


def named_secret(
    hidden: str,
    *,
    features: int = 2,
    arms: int | None = None,
    residual: str | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> Secret:
    """Return a secret from the words of a command. Raises BadParameter.

    features   d.
    arms       K blocks, 1 where the arms share their parameters; None for 2 that do not, or for 1.
    residual   the link of the gradient that is reported without φφᵀ; None for the reward, with φφᵀ.
    low, high  range of a reward.
    """
    if hidden not in get_args(Hidden):
        raise BadParameter("secret", hidden, f"must be one of {', '.join(get_args(Hidden))}")
    for field, end in (("low", low), ("high", high)):
        if not abs(end) <= MOST_REWARD:
            raise BadParameter(field, end, f"must lie in [{-MOST_REWARD:g}, {MOST_REWARD:g}], as a reward's")
    if not low < high:
        raise BadParameter("high", high, f"must be above low = {low:g}")
    blocks = arms if arms is not None else 1 + (hidden == "arm")
    fields = {"features": features, "blocks": blocks, "residual": residual, "rewards": [low, high]}
    try:
        statistic = ContextualSum(
            features=features,
            blocks=blocks,
            residual=cast(Link | None, residual),
            rewards=[low, high],
            moments=residual is None,
        )
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise BadParameter("arms" if field == "blocks" else field, fields[field], wanted(error)) from error
    if statistic.dimension > MOST_COORDINATES:
        have = f"{blocks} blocks of {statistic.width} coordinates"
        raise BadParameter("features", features, f"{have} are above {MOST_COORDINATES}")
    return arm_secret(statistic) if hidden == "arm" else context_secret(statistic)


def _opposite(statistic: ContextualSum) -> NDArray[np.float64]:
    """Return the context whose vector is farthest from that of (1, 0, …, 0), with |s| = c and one sign for both."""
    c = statistic.factor
    if statistic.features == 1:
        shorter = (1 - math.sqrt(max(0.0, 1 - 2 * c * c))) / 2  # as `ContextualSum.sensitivity` finds it
        near = (1 + shorter) * math.hypot(1 - shorter, c)
        return np.array([-shorter if statistic.moments and near > 2 * c else -1.0])
    # ‖v - v'‖² = 2 + 2c² - 2p² - 2c²p is largest at p = ⟨φ, φ'⟩ = -c²/2; without φφᵀ it is 2c² (1 - p).
    p = max(-1.0, -c * c / 2) if statistic.moments else -1.0
    context = np.zeros(statistic.features)
    context[:2] = p, math.sqrt(1 - p * p)
    return context


def _experienced(statistic: ContextualSum, arms: NDArray[np.int64], contexts: NDArray[np.float64]) -> Observation:
    """Return both worlds' observations with one reward and one predictor, chosen so that |s| = c.

    Two opposite contexts have one predictor where the server's θ̂ is long: clients clip ⟨φ, θ̂⟩ to [-1, 1].
    """
    low, high = statistic.rewards
    if statistic.residual is None:
        reward, predictor = max(low, high, key=abs), 0.0
    else:
        least, most = link_mean(statistic.residual, np.array([-1.0, 1.0]))
        reward, predictor = (low, 1.0) if most - low >= high - least else (high, -1.0)
    return Observation(arms, contexts, np.full(2, reward), np.full(2, predictor))
