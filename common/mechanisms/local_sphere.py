"""A random point on a sphere instead of the vector: pure local privacy for ℓ₂ balls."""

import math
from functools import lru_cache
from typing import ClassVar, Literal, Self

import mpmath
import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from common.error_law import ErrorLaw
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec, Norm
from common.mechanisms.checks import EPSILON_RULE, epsilon_allowed, require
from common.mechanisms.frame import Frame, needed
from common.mechanisms.lattice import Lattice
from common.mechanisms.real_noise import FINE
from common.mechanisms.scaled import Scaled
from common.mechanisms.sphere_noise import SphereSum, directions, radius
from common.messages.cohort import Via
from common.profile import SHOWN_DELTA, Profile, of_pure
from common.randomness import Stream

WORD = 2**64


class LocalSphere(Lattice):
    """Ψ_{ε,R}: x or -x by its length, then a point of that half of the sphere of radius r, or of the other.

    Guarantee  (ε, 0) for every single message: ε of the coin as it is drawn, ⌊2⁶⁴ e^ε/(1 + e^ε)⌋ of 2⁶⁴ cases.
    Exactness  a pair ±u is drawn from a law that is symmetric to the last bit, whatever x; then the coin says which of
               the two is sent. So floating point touches how uniform the directions are, and no likelihood ratio.
    Grid       g steps between -r and r, to which the answer is rounded at random: a hundredth of its variance at most.
               One coordinate has the answers ±r, both on the grid; messages are then 0 or g, and g is 1.
    Utility    unbiased; variance per client and coordinate at most r²/D, r about R √(πD/2) (e^ε + 1)/(e^ε - 1). Error
               quantiles hold for the worst data: exactly for one coordinate, else as a bound.
    Source     GLB Lemma 2.2; Duchi, Jordan & Wainwright 2018. The theorem is tight: `paper` and `exact` are the same.
    """

    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-sphere"] = "local-sphere"
    epsilon: float

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        epsilon = needed(spec)
        fine = 1 if frame.dimension == 1 else math.ceil(math.sqrt(frame.dimension / FINE))
        precision = spec.precision or fine
        return cls.model_validate({**frame.shared(precision, frame.room(precision, None)), "epsilon": epsilon})

    @property
    def reach(self) -> float:
        """R, the ℓ₂ radius of the data."""
        return ball((self.high - self.low) / 2, self.dimension, self.norm)

    @property
    def radius(self) -> float:
        """The radius r of the answers, in data units."""
        return radius(self.reach, self.dimension, coin_epsilon(coin(self.epsilon)))

    @property
    def step(self) -> float:
        return 2 * self.radius / self.precision

    @property
    def origin(self) -> float:
        return (self.low + self.high) / 2 - self.radius

    @property
    def rounding(self) -> float:
        return 0.0 if self.dimension == 1 else self.step / 2

    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        n = vectors.shape[0]
        unit = directions(stream, n, self.dimension)
        signs, coins = stream.words(n), stream.words(n)
        chances = stream.words(n * self.dimension).reshape(n, self.dimension)
        centred = (self.on_grid(vectors) / self.precision - 0.5) * (self.high - self.low)
        lengths = np.linalg.norm(centred, axis=1)
        keep = (signs >> np.uint64(11)) * 2.0**-53 < 0.5 + lengths / (2 * self.reach)
        ahead = np.einsum("ij,ij->i", unit, centred) > 0  # the same for u and -u but for the sign
        flip = (ahead == keep) != (coins < np.uint64(coin(self.epsilon)))
        answer = (np.clip(np.where(flip[:, None], -unit, unit), -1, 1) + 1) * (self.precision / 2)
        whole = np.floor(answer)
        return (whole + ((chances >> np.uint64(11)) * 2.0**-53 < answer - whole)).astype(np.uint64)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - each on its own
        return Guarantee(
            kind="pure",
            epsilon=coin_epsilon(coin(self.epsilon)),
            claimed=self.epsilon,
            model="local",
            calibration=self.calibration,
            assumptions=(
                "each client's own device draws its answer",
                "directions are uniform up to floating point, on which accuracy rests and privacy does not",
            ),
        )

    def profile(
        self,
        survivors: int | None = None,  # noqa: ARG002 - each on its own
        colluders: int = 0,  # noqa: ARG002 - the same
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        """Two opposite longest vectors give randomized response; rounding to the grid may blur which half it was."""
        return of_pure(coin_epsilon(coin(self.epsilon)), delta, "exact" if self.dimension == 1 else "bound")

    def error(self, survivors: int) -> ErrorLaw:
        law = SphereSum(survivors, self.dimension, self.precision / 2, self.reach / self.step)
        return Scaled(law, self.step, (math.sqrt(2 * survivors) * self.radius, 0.0))


def ball(half: float, dimension: int, norm: Norm) -> float:
    """ℓ₂ radius of the ball of `norm` with radius `half`."""
    return half * math.sqrt(dimension) if norm == "linf" else half


@lru_cache(maxsize=256)
def coin(epsilon: float) -> int:
    """Cases of 2⁶⁴ in which the point is from x's own half: e^ε/(1 + e^ε), rounded down, and never all of them."""
    with mpmath.workprec(192):
        chance = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        return min(WORD - 1, int(mpmath.floor(chance * WORD)))


@lru_cache(maxsize=256)
def coin_epsilon(cases: int) -> float:
    """ε of the coin: the log of its odds."""
    with mpmath.workprec(192):
        return float(mpmath.log(mpmath.mpf(cases) / (WORD - cases)))
