"""Randomized response: each client answers with one bit a coordinate, which is flipped with a known probability."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, How, ScaledErrorLaw
from distrust.common.dp.accounting.guarantee import Model
from distrust.common.dp.accounting.profile import Privacy, of_pure
from distrust.common.dp.mechanisms.families.base import EPSILON_RULE, MechanismSpec, epsilon_allowed, needed, require
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.dp.mechanisms.families.sphere import WORD, coin, coin_epsilon
from distrust.common.dp.noise.coins import worst_quantile
from distrust.common.randomness import Stream
from distrust.common.wire import Via


@dataclass(frozen=True, slots=True)
class FlippedBits:
    """Excess of ones over their expected number in `terms` bits, each flipped with probability `flip`.

    The standard deviation is the same for all data. The quantile is that of the worst data.
    """

    terms: int
    flip: float

    @property
    def std(self) -> float:
        return math.sqrt(self.terms * self.flip * (1 - self.flip))

    @property
    def quantile_how(self) -> How:
        return "exact" if worst_quantile(self.terms, self.flip, 0.5) > 1 else "bound"

    def quantile(self, p: float) -> float:
        """Return a q with P(|error| > q) ≤ p for all data; the least one where `quantile_how` is exact."""
        return worst_quantile(self.terms, self.flip, p)


class LocalResponse(GridMechanism):
    """A coordinate is rounded at random to one of the ends of its range; the message says which, or lies.

    Guarantee  (ε, 0) for every single message: a coordinate has ε/D, of the coin as it is drawn.
    Grid       messages are 0 or g in each coordinate; g is 1 unless a run file says otherwise.
    Utility    unbiased; the noise of n clients has variance n f (1 - f)/(1 - 2f)² in units of (high - low)², where
               f = 1/(1 + e^(ε/D)) is the probability of a lie.
    Source     Warner's randomized response. The theorem is tight: `paper` and `exact` are the same.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")
    parts: ClassVar[bool] = True

    name: Literal["local-response"] = "local-response"
    epsilon: float

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        precision = spec.precision or 1
        return cls(**cohort.shared(precision, cohort.room(precision, None)), epsilon=needed(spec))

    @property
    def _truths(self) -> int:
        """Return the number of the 2⁶⁴ cases in which a coordinate's answer is true."""
        return coin(self.epsilon / self.dimension)

    @property
    def flip(self) -> float:
        """Return f, the probability of a lie."""
        return (WORD - self._truths) / WORD

    @property
    def step(self) -> float:
        return (self.high - self.low) / (self.precision * (1 - 2 * self.flip))

    @property
    def origin(self) -> float:
        return self.low - self.flip * self.precision * self.step

    @property
    def rounding(self) -> float:
        return (self.high - self.low) / 2

    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        shape = (vectors.shape[0], self.dimension)
        coins, chances = (stream.words(shape[0] * shape[1]).reshape(shape) for _ in range(2))
        lies = coins >= np.uint64(self._truths)
        upper = (chances >> np.uint64(11)) * 2.0**-53 < self.on_grid(vectors) / self.precision
        return (upper ^ lies).astype(np.uint64) * np.uint64(self.precision)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        epsilon = self.dimension * coin_epsilon(self._truths)
        assumptions = ("each client's own device draws its answer",)
        how: How = "exact" if self.dimension == 1 else "bound"
        return Privacy(
            compute_promise=lambda: self.make_guarantee("pure", epsilon, assumptions),
            compute_profile=lambda delta: of_pure(epsilon, delta, how),
        )

    def error(self, survivors: int) -> ErrorLaw:
        step = self.precision * self.step
        return ScaledErrorLaw(FlippedBits(survivors, self.flip), step, (math.sqrt(survivors / 2) * step, 0.0))
