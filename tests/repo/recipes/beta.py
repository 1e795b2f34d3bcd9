"""Rewards of a beta law."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.client.environments.base import EnvironmentSpec, Seed
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream, generator

Shape = Annotated[float, Field(gt=0, le=1e6)]


class BetaSpec(EnvironmentSpec):
    """`[environment] name = "beta"`: two shapes an arm."""

    name: Literal["beta"]
    seed: Seed = None
    a: Annotated[list[Shape], Field(min_length=2)]
    b: Annotated[list[Shape], Field(min_length=2)]

    def build(self) -> "Beta":
        """Build the world. Raise BadParameter if an arm has one shape only."""
        if len(self.a) != len(self.b):
            raise BadParameter("environment.b", self.b, f"must be as long as environment.a, {len(self.a)} numbers")
        return Beta(np.array(self.a), np.array(self.b))


@dataclass(frozen=True, slots=True)
class Beta:
    """Arm k pays Beta(a[k], b[k]), in [0, 1]."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    name: str = "beta"

    @property
    def arms(self) -> int:
        return len(self.a)

    @property
    def means(self) -> NDArray[np.float64]:
        return np.asarray(self.a / (self.a + self.b))

    @property
    def best(self) -> int:
        return int(np.argmax(self.means))

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Return `count` draws of the arm's law, shape (count,)."""
        return generator(stream).beta(self.a[arm], self.b[arm], count)
