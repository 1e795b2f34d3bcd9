"""Random bits at each client, permuted by a trusted shuffler: binomial noise in the count of ones."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.bandit.statistics import Statistic
from distrust.common.errors import BadParameter
from distrust.common.mechanisms.assumptions import mixed, of_the_bits
from distrust.common.mechanisms.base import MechanismSpec, Need
from distrust.common.mechanisms.calibration.binomial import (
    MOST_COINS,
    PAPER_EPSILON,
    Target,
    fewest_bits,
    paper_bits,
    released_epsilon,
)
from distrust.common.mechanisms.calibration.sensitivity import Grid
from distrust.common.mechanisms.cohort_params import (
    DELTA_RULE,
    EPSILON_RULE,
    CohortParams,
    delta_allowed,
    epsilon_allowed,
    needed,
    require,
)
from distrust.common.mechanisms.families.laplace import SAMPLER
from distrust.common.mechanisms.grid import GridMechanism
from distrust.common.messages.cohort import Via
from distrust.common.noise.binomial import Binomial
from distrust.common.noise.law import ScaledErrorLaw
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, spent, unprotected
from distrust.common.randomness import Stream


class ShuffledBinomial(GridMechanism):
    """A client sends g + b bits under each of D labels, x̂ + Bin(b, p) of them ones; permuted, only their sums tell.

    coins, chance  b and p. paper: for one coordinate DLB (60) with ln(2/δ), t for n, g = max(2, ⌈(high - low)√t⌉); for
                   vectors DLB (22), a box being the ℓ₂ ball around it. exact: the least b whose (ε, δ), computed on
                   Bin(tb, 1/2), holds, then the least p for which that of Bin(tb, p) does, a fraction of 22 bits, if it
                   saves a hundredth of the deviation; g the least that needs b ≥ 10, so that the rounding variance n/4
                   is about a tenth of the noise's, and for which rounding adds a tenth at most to an ℓ₂ ball.
    Guarantee      (ε, δ) over at least t honest clients, for the whole vector. One coordinate: hockey-stick divergence
                   of the binomial and its shift by g, both ways. The box: that of D coordinates, all shifted by g,
                   composed. ℓ₁ and ℓ₂ balls: Rényi moments of the worst spread of the shift (`spread`). The support is
                   bounded: δ is at least P(Bin < g).
    Source         DLB (Li, Zhou & Ji) Algorithm 4, Lemma C.5, and Algorithm 2, after Cheu et al. 2021.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    takes_delta: ClassVar[Need | None] = "needed"
    letters: ClassVar[Mapping[str, str]] = {"coins": "b", "chance": "p"}
    has_room: ClassVar[bool] = False

    name: Literal["shuffled-binomial"] = "shuffled-binomial"
    epsilon: float
    delta: float
    coins: Annotated[int, Field(ge=1, le=MOST_COINS, description="b: random bits a client")]
    chance: Annotated[float, Field(gt=0, lt=1, description="p: probability that a random bit is 1")] = 0.5

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        require(delta_allowed(self.delta), "delta", self.delta, DELTA_RULE)
        most = self.clients * self.width
        require(self.modulus > most, "modulus", self.modulus, f"must be above clients * width = {most}")
        return self

    @classmethod
    def check(cls, spec: MechanismSpec, statistic: Statistic) -> None:
        vectors = spec.calibration == "paper" and statistic.dimension > 1
        if vectors and (spec.epsilon or 0.0) >= PAPER_EPSILON:
            allowed = f"must be below {PAPER_EPSILON:g} for vectors (DLB Theorem 4.6)"
            raise BadParameter("mechanism.epsilon", spec.epsilon, allowed)

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        if spec.delta is None:
            raise BadParameter("mechanism.delta", None, DELTA_RULE)
        target = Target(needed(spec), spec.delta, frame.floor, frame.dimension, frame.norm)
        paper = spec.calibration == "paper"
        g, b, p = paper_bits(target, spec.precision, frame) if paper else fewest_bits(target, spec.precision)
        if b > MOST_COINS:
            limit = f"would take {b} bits a client and coordinate, at most {MOST_COINS}"
            raise BadParameter("mechanism.epsilon", spec.epsilon, limit)
        own = {"epsilon": spec.epsilon, "delta": spec.delta, "coins": b, "chance": p}
        return cls.model_validate({**frame.shared(g, frame.clients * (g + b) + 1), **own})

    @property
    def bits(self) -> int:
        return self.dimension * self.width

    @property
    def width(self) -> int:
        """Bits g + b under each label."""
        return self.precision + self.coins

    def client_law(self) -> Binomial:
        return Binomial(self.coins, self.chance)

    @override
    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:
        self.check_release(total, survivors)
        ones = total.astype(np.float64) - survivors * self.coins * self.chance
        return ones * self.step + survivors * self.low

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = self.honest(survivors, colluders)
        grid = Grid(self.precision, self.dimension, self.norm)
        epsilon = math.inf if honest < 1 else released_epsilon(honest * self.coins, self.chance, grid, self.delta)
        return mixed(self, self.epsilon, epsilon, self.delta, (*of_the_bits(honest), SAMPLER))

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        """The support is bounded: the count that only one neighbour can give makes pure ε and all RDP infinite."""
        found = self.model_copy(update={"delta": delta}).guarantee(survivors, colluders)
        at_delta = spent(found.epsilon, "exact" if self.dimension == 1 else "bound")
        ends = "the number of ones is bounded: some counts are possible for one neighbour only, whatever epsilon"
        return unprotected(delta, ends).model_copy(update={"approximate": at_delta})

    def released_law(self, honest: int) -> Binomial | None:
        return Binomial(honest * self.coins, self.chance) if honest > 0 else None

    def error(self, survivors: int) -> ErrorLaw:
        """Hoeffding gives the (σ, h): |X - mean| ≤ √(n'b ln(2/p) / 2)."""
        law = Binomial(survivors * self.coins, self.chance)
        return ScaledErrorLaw(law, self.step, (math.sqrt(survivors * self.coins / 2) * self.step, 0.0))
