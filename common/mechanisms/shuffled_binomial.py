"""Random bits at each client, permuted by a trusted shuffler: binomial noise in the count of ones."""

import math
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from common.accounting import epsilon_at, hockey_stick
from common.error_law import ErrorLaw
from common.errors import BadParameter
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.checks import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed, require
from common.mechanisms.distributed import nothing, of_the_bits
from common.mechanisms.frame import ROUNDING, Frame, least, needed
from common.mechanisms.laplace import SAMPLER
from common.mechanisms.lattice import Lattice
from common.mechanisms.scaled import Scaled
from common.messages.cohort import Via
from common.noise import Binomial
from common.noise.law import LIMIT
from common.randomness import Stream


class ShuffledBinomial(Lattice):
    """Each client sends g + b bits, of which x̂ + Bin(b, p) are ones; after the permutation only their sum tells.

    coins, chance  b and p. paper: DLB (60) with ln(2/δ), t for n, g = max(2, ⌈(high - low)√t⌉). exact: p = 1/2 and the
                   least b whose (ε, δ), computed on Bin(tb, 1/2), holds; g the least that needs b ≥ 10, so that the
                   rounding variance n/4 is at most a tenth of the noise's nb/4.
    Guarantee      (ε, δ) over at least t honest clients: hockey-stick divergence of the binomial and its shift by g,
                   both ways. The support is bounded, so that δ is at least P(Bin < g).
    Raises         BadParameter for vectors: one label has one sum, and a split of ε over D labels is not offered yet.
    Source         DLB (Li, Zhou & Ji) Algorithm 4, Lemma C.5, after Cheu et al. 2021.
    """

    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)

    name: Literal["shuffled-binomial"] = "shuffled-binomial"
    epsilon: float
    delta: float
    coins: Annotated[int, Field(ge=1, le=LIMIT, description="b: random bits a client")]
    chance: Annotated[float, Field(gt=0, lt=1, description="p: probability that a random bit is 1")] = 0.5

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        require(delta_allowed(self.delta), "delta", self.delta, DELTA_RULE)
        require(self.dimension == 1, "dimension", self.dimension, "must be 1")
        most = self.clients * self.width
        require(self.modulus > most, "modulus", self.modulus, f"must be above clients * width = {most}")
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        if spec.delta is None:
            raise BadParameter("mechanism.delta", None, DELTA_RULE)
        calibrate = _paper if spec.calibration == "paper" else _exact
        g, b, p = calibrate(needed(spec), spec.delta, spec.precision, frame)
        if b > LIMIT:
            raise BadParameter("mechanism.epsilon", spec.epsilon, f"would take {b} bits a client, at most {LIMIT}")
        own = {"epsilon": spec.epsilon, "delta": spec.delta, "coins": b, "chance": p}
        return cls.model_validate({**frame.shared(g, frame.clients * (g + b) + 1), **own})

    @property
    def bits(self) -> int:
        return self.width

    @property
    def width(self) -> int:
        """Bits g + b under the one label."""
        return self.precision + self.coins

    def client_law(self) -> Binomial:
        return Binomial(self.coins, self.chance)

    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:  # noqa: ARG002
        self.check_release(total, survivors)
        ones = total.astype(np.float64) - survivors * self.coins * self.chance
        return ones * self.step + survivors * self.low

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = self.honest(survivors, colluders)
        epsilon = math.inf if honest < 1 else _epsilon(honest * self.coins, self.chance, self.precision, self.delta)
        if math.isinf(epsilon):
            return nothing(self)
        return Guarantee(
            kind="approximate",
            epsilon=epsilon,
            delta=self.delta,
            claimed=self.epsilon,
            model="shuffle",
            calibration=self.calibration,
            assumptions=(*of_the_bits(honest), SAMPLER),
        )

    def error(self, survivors: int) -> ErrorLaw:
        """Hoeffding gives the (σ, h): |X - mean| ≤ √(n'b ln(2/p) / 2)."""
        law = Binomial(survivors * self.coins, self.chance)
        return Scaled(law, self.step, (math.sqrt(survivors * self.coins / 2) * self.step, 0.0))


@lru_cache(maxsize=256)
def _epsilon(trials: int, chance: float, shift: int, delta: float) -> float:
    return epsilon_at(Binomial(trials, chance).pmf(), shift, delta)


def _paper(epsilon: float, delta: float, precision: int | None, frame: Frame) -> tuple[int, int, float]:
    """g, b and p of DLB (60), with the corrections of its Lemma C.5: range 2B = high - low."""
    fewest = max(2, math.ceil((frame.high - frame.low) * math.sqrt(frame.floor)))
    g = precision or fewest
    if g < fewest:
        raise BadParameter("mechanism.precision", g, f"the theorem needs at least {fewest}")
    ones = 90 * g * g * math.log(2 / delta) / ((epsilon / 2) ** 2 * frame.floor)
    coins = math.ceil(2 * ones)
    return g, coins, ones / coins


def _exact(epsilon: float, delta: float, precision: int | None, frame: Frame) -> tuple[int, int, float]:
    """Fewest bits at p = 1/2."""
    if precision is not None:
        return precision, _fewest_coins(epsilon, delta, precision, frame.floor), 0.5
    enough = math.ceil(1 / ROUNDING)
    g = least(lambda g: not _hides(epsilon, delta, g, frame.floor * (enough - 1)), 1)
    return g, _fewest_coins(epsilon, delta, g, frame.floor), 0.5


def _fewest_coins(epsilon: float, delta: float, g: int, floor: int) -> int:
    return least(lambda b: b > LIMIT or _hides(epsilon, delta, g, floor * b), 8)


@lru_cache(maxsize=4096)
def _hides(epsilon: float, delta: float, g: int, trials: int) -> bool:
    """Bin(trials, 1/2) and its shift by g are (ε, δ)-close."""
    return hockey_stick(Binomial(trials).pmf(), g, epsilon) <= delta
