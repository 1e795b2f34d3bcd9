"""Worlds of independent arms, rewards in [0, 1]: Bernoulli rewards, and Gaussian rewards that are clipped.

The clipped ones are the easy and the hard instance of Chowdhury & Zhou, Distributed DP in MAB.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.client.environments.base import EnvironmentSpec, KnownMeans, Seed
from distrust.common.errors import BadParameter
from distrust.common.extras import stats
from distrust.common.randomness import Stream, UnsafeSeededStream, generator

RANGES = {"gaussian-easy": (0.25, 0.75), "gaussian-hard": (0.45, 0.55)}
"""The interval of the centres of each Gaussian instance, by name."""


class BernoulliSpec(EnvironmentSpec):
    """`[environment] name = "bernoulli"`: rewards 0 and 1.

    means  P(reward = 1), one an arm.
    """

    name: Literal["bernoulli"]
    seed: Seed = None
    means: list[float]

    def build(self) -> "Bernoulli":
        return Bernoulli(np.array(self.means, dtype=np.float64))


@dataclass(frozen=True)
class Bernoulli(KnownMeans):
    """Arm a pays 1 with probability means[a], else 0.

    Domain  2 arms or more, means in [0, 1].
    Raises  BadParameter that names the first mean out of range.
    """

    means: NDArray[np.float64]
    name: str = "bernoulli"

    def __post_init__(self) -> None:
        if len(self.means) < 2:
            raise BadParameter("environment.means", self.means.tolist(), "at least 2 arms are needed")
        for index, mean in enumerate(self.means.tolist()):
            if not 0 <= mean <= 1:
                raise BadParameter(f"environment.means[{index}]", mean, "must lie in [0, 1]")

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Return zeros and ones, shape (count,)."""
        return np.asarray(generator(stream).random(count) < self.means[arm], dtype=np.float64)


class GaussianSpec(EnvironmentSpec):
    """`[environment] name = "gaussian-easy"` or `"gaussian-hard"`: the centres are drawn from the seed.

    arms  K.
    """

    name: Literal["gaussian-easy", "gaussian-hard"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=100_000)] = 10
    deviation: Annotated[float, Field(gt=0, le=10, description="standard deviation before clipping")] = 0.1

    def build(self) -> "ClippedGaussian":
        """Return the world. Raises BadParameter without a seed: every fleet must play the same centres."""
        if self.seed is None:
            raise BadParameter(
                "environment.seed", None, f"{self.name} draws its means from a seed; give a whole number"
            )
        low, high = RANGES[self.name]
        centres = generator(UnsafeSeededStream(self.seed, "means")).uniform(low, high, self.arms)
        return ClippedGaussian(self.name, centres, self.deviation)


@dataclass(frozen=True)
class ClippedGaussian(KnownMeans):
    """Arm a pays N(centres[a], deviation²), clipped to [0, 1].

    `means` are those of the clipped law, which clipping moves away from the centres; regret counts these.
    """

    name: str
    centres: NDArray[np.float64]
    deviation: float

    @cached_property
    def means(self) -> NDArray[np.float64]:
        return clipped_mean(self.centres, self.deviation)

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Return rewards in [0, 1], shape (count,)."""
        return np.clip(generator(stream).normal(self.centres[arm], self.deviation, count), 0.0, 1.0)


def clipped_mean(centre: NDArray[np.float64], deviation: float) -> NDArray[np.float64]:
    """Return E min(1, max(0, X)) for X ~ N(centre, deviation²), exactly: ∫₀¹ P(X > x) dx in closed form."""
    normal, zero, one = stats.norm, -centre / deviation, (1 - centre) / deviation
    inside = centre * (normal.cdf(one) - normal.cdf(zero)) + deviation * (normal.pdf(zero) - normal.pdf(one))
    return np.asarray(inside + normal.sf(one), dtype=np.float64)
