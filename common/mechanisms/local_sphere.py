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
               the two is sent. So floating point touches how uniform the directions are, and no likelihood ratio. The
               answer is rounded at random to a grid whose steps add a hundredth of its variance.
    Utility    unbiased; variance per client and coordinate at most r²/D, r about R √(πD/2) (e^ε + 1)/(e^ε - 1). Error
               quantiles are bounds: the law depends on the data.
    Source     GLB Lemma 2.2; Duchi, Jordan & Wainwright 2018. The theorem is tight: `paper` and `exact` are the same.
    """

    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-sphere"] = "local-sphere"
    epsilon: float

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        most = self.clients * self.precision + 2 * self.overshoot
        require(self.modulus > most, "modulus", self.modulus, f"must be above {most}")
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        epsilon = needed(spec)
        reach = ball((frame.high - frame.low) / 2, frame.dimension, frame.norm)
        r = radius(reach, frame.dimension, coin_epsilon(coin(epsilon)))
        fine = math.ceil((frame.high - frame.low) / (2 * r) * math.sqrt(frame.dimension / FINE))
        precision = spec.precision or max(1, fine)
        modulus = frame.room(precision, None) + 2 * _overshoot(frame.clients, precision, r, frame.high - frame.low)
        return cls.model_validate({**frame.shared(precision, modulus), "epsilon": epsilon})

    @property
    def reach(self) -> float:
        """R, the ℓ₂ radius of the data."""
        return ball((self.high - self.low) / 2, self.dimension, self.norm)

    @property
    def radius(self) -> float:
        """The radius r of the answers, in data units."""
        return radius(self.reach, self.dimension, coin_epsilon(coin(self.epsilon)))

    @property
    def overshoot(self) -> int:
        """Steps by which the answers of all clients can leave [0, ng], on either side."""
        return _overshoot(self.clients, self.precision, self.radius, self.high - self.low)

    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        n = vectors.shape[0]
        unit = directions(stream, n, self.dimension)
        signs, coins = stream.words(n), stream.words(n)
        chances = stream.words(n * self.dimension).reshape(n, self.dimension)
        centred = self.on_grid(vectors) * self.step - (self.high - self.low) / 2
        lengths = np.linalg.norm(centred, axis=1)
        keep = (signs >> np.uint64(11)) * 2.0**-53 < 0.5 + lengths / (2 * self.reach)
        ahead = np.einsum("ij,ij->i", unit, centred) > 0  # the same for u and -u but for the sign
        flip = (ahead == keep) != (coins < np.uint64(coin(self.epsilon)))
        answer = np.where(flip[:, None], -unit, unit) * (self.radius / self.step) + self.precision / 2
        whole = np.floor(answer)
        rounded = (whole + ((chances >> np.uint64(11)) * 2.0**-53 < answer - whole)).astype(np.int64)
        return np.mod(rounded, self.modulus).astype(np.uint64)

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
        sigma = math.sqrt(2 * survivors) * self.radius
        return Scaled(SphereSum(survivors, self.dimension, self.radius / self.step), self.step, (sigma, 0.0))


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


def _overshoot(clients: int, precision: int, r: float, width: float) -> int:
    return clients * max(1, math.ceil(r / width * precision - precision / 2) + 1)
