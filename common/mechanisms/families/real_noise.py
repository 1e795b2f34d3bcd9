"""Papers' real-valued noise: on the grid by default; as floating point for those who ask, and then unsafe."""

from abc import abstractmethod
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from distrust.common.bandit.error_law import How
from distrust.common.mechanisms.base import Noise
from distrust.common.mechanisms.calibration.sensitivity import Grid
from distrust.common.mechanisms.families.laplace import SAMPLER
from distrust.common.mechanisms.grid import GridMechanism
from distrust.common.noise.law import Law, Spread
from distrust.common.randomness import Stream

FINE = 0.01
"""Share of the noise's variance that the grid's rounding may add where a paper has no grid."""

INFLATED = FINE / 2
"""Share that rounding may add to a ball's sensitivity there, and so to the noise's scale: the same of its variance."""

UNSAFE = (
    "UNSAFE: continuous noise in floating point, whose low bits can tell the data (Mironov 2012); "
    "the guarantee is that of real numbers"
)


class Draws(Spread, Protocol):
    """A continuous law with a sampler."""

    def sample(self, stream: Stream, count: int) -> NDArray[np.float64]: ...


class RealNoise(GridMechanism):
    """A mechanism whose paper draws real numbers. `noise` is "grid" (discrete, exact) or "continuous" (unsafe)."""

    takes_noise: ClassVar[bool] = True

    as_drawn: ClassVar[How] = "exact"
    """Whether continuous noise is released as it was drawn, or as less than that."""

    rounds_first: ClassVar[bool] = True
    """Whether values are on the grid before continuous noise is added."""

    noise: Noise = "grid"

    @property
    def continuous(self) -> bool:
        """Whether the noise is drawn in floating point."""
        return self.noise == "continuous"

    @property
    def grid(self) -> Grid:
        """What one client can move before the noise is added."""
        rounded = self.rounds_first or not self.continuous
        return Grid(self.precision, self.dimension, self.norm, rounded=rounded)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the guarantee has to say first."""
        return (UNSAFE,) if self.continuous else ()

    @property
    def sampled(self) -> tuple[str, ...]:
        """How exactly the noise is drawn; continuous noise is not."""
        return () if self.continuous else (SAMPLER,)

    @abstractmethod
    def real_law(self) -> Draws:
        """The continuous noise of one draw, in grid steps."""


class ServerNoise(RealNoise):
    """Noise once, on the decoded sum."""

    @override
    def released_law(self, honest: int) -> Law | None:
        return None if self.continuous else self.server_law()

    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:
        if not self.continuous:
            return super().estimate(total, survivors, stream)
        self.check_release(total, survivors)
        whole = self._decode(total, survivors) + self.real_law().sample(stream, self.dimension)
        estimate: NDArray[np.float64] = whole * self.step + survivors * self.low
        return estimate


class ClientNoise(RealNoise):
    """Noise on every message. Continuous noise is added to the value itself; the result is rounded at random to a step.

    By chance, as the nearest step would not keep the mean: ⌊y + U⌋ does, U uniform in [0, 1).
    """

    as_drawn: ClassVar[How] = "bound"
    rounds_first: ClassVar[bool] = False

    @property
    def rounding(self) -> float:
        """Of values that are rounded before their noise; afterwards the error's law counts it."""
        return 0.0 if self.continuous else super().rounding

    @override
    def released_law(self, honest: int) -> Law | None:
        return None if self.continuous else self.client_law()

    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        if not self.continuous:
            return super().randomize(vectors, stream)
        shape = (vectors.shape[0], self.dimension)
        noise = self.real_law().sample(stream, shape[0] * shape[1]).reshape(shape)
        noise += (stream.words(noise.size).reshape(shape) >> np.uint64(11)) * 2.0**-53
        noisy = np.floor(self.on_grid(vectors) + noise).astype(np.int64)
        return np.mod(noisy, self.modulus).astype(np.uint64)
