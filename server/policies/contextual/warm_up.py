"""The warm-up of many parameters, and the screen that follows from it (GLB Algorithm 2).

The arms take turns in public. Afterwards a client looks only at arms that the frozen estimates do not rule out for its
context: those with μ(⟨x, θ̂_a⟩) ≥ max - h/2. Let L be the largest slope of μ, every ‖θ̂_a - θ_a‖ ≤ e and ‖x‖ ≤ 1. Then
the best arm stays from h/2 = 2Le on. Lemma D.1 has h/2 = 4Le: arms that are worse by h everywhere then go, too.
"""

from dataclasses import dataclass

import numpy as np

from distrust.common.bandit.contextual_choice import Screen, largest_slope, link_mean
from distrust.common.bandit.contextual_sum import shortened
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.specs.contextual import WARM_UP_SHARE, GreedySpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import rounds_of


@dataclass(frozen=True, slots=True)
class WarmUp:
    """`each` rounds an arm, s₀, for `arms` arms, K; no rounds at all for parameters that all arms share."""

    arms: int
    each: int

    @classmethod
    def of(cls, spec: GreedySpec, run: RunFacts) -> "WarmUp":
        """Return the warm-up of a run. Raises BadParameter where it does not fit the horizon."""
        rounds = rounds_of(spec, run)
        if spec.parameters == "single":
            return cls(run.arms, 0)
        length, (key, stated) = spec.warm_up_length(run.horizon), stated_length(spec)
        if length >= rounds:
            shown = length if stated is None else stated
            raise BadParameter(key, shown, f"must be less than all {rounds} rounds of horizon / batch")
        if length < run.arms:
            shown_length = f"1/{WARM_UP_SHARE} of {rounds} rounds" if stated is None else stated
            raise BadParameter(key, shown_length, f"each of the {run.arms} arms needs a round")
        return cls(run.arms, length // run.arms)

    @property
    def rounds(self) -> int:
        """Return K s₀, the rounds of the warm-up."""
        return self.arms * self.each

    def arm(self, number: int) -> int | None:
        """Return the arm that all clients of round `number`, from 1, play; None after the warm-up."""
        return number % self.arms if number <= self.rounds else None

    def screen(self, spec: GreedySpec, theta: Floats, errors: Floats) -> Screen | None:
        """Return the screen, None where it would leave every arm.

        theta   estimates at the end of the warm-up, shape (R, K, d). They are projected to the ball of radius S, where
                the true parameters are, which takes them no farther away.
        errors  bounds on their distances from the true ones, shape (R, K).
        """
        if spec.margin == "inf":
            return None
        most = spec.largest_theta
        if spec.margin is None:
            # In a ball of radius S no two points are farther apart than 2S.
            margin = 4 * largest_slope(spec.link) * np.minimum(errors, 2 * most).max(axis=-1)
        else:
            margin = np.full(len(theta), spec.margin)
        lowest, highest = link_mean(spec.link, np.array([-most, most]))
        if (margin >= highest - lowest).all():
            return None
        return Screen(shortened(theta, most), spec.link, margin)


def stated_length(spec: GreedySpec) -> tuple[str, float | None]:
    """Return the run file's key that the warm-up's length is from, and its value; None by default."""
    if spec.warm_up_share is not None:
        return "policy.warm_up_share", spec.warm_up_share
    return "policy.warm_up", spec.warm_up
