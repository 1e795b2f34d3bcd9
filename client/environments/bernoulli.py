"""Rewards of zero or one."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments.base import EnvironmentSpec, Seed
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream, generator


class BernoulliSpec(EnvironmentSpec):
    """`[environment] name = "bernoulli"`: the means, one an arm."""

    name: Literal["bernoulli"]
    seed: Seed = None
    means: list[float]

    def build(self) -> "Bernoulli":
        return Bernoulli(np.array(self.means, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Bernoulli:
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

    @property
    def arms(self) -> int:
        return len(self.means)

    @property
    def best(self) -> int:
        return int(np.argmax(self.means))

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Zeros and ones, shape (count,)."""
        return np.asarray(generator(stream).random(count) < self.means[arm], dtype=np.float64)
