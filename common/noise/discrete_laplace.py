"""Discrete Laplace noise: the two-sided geometric law."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from distrust.common.noise.law import LOST, Pmf, check_length, check_probability
from distrust.common.noise.polya import check_shape_and_scale
from distrust.common.noise.polya_difference import PolyaDifference
from distrust.common.randomness import Stream


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """Lap_Z(scale): Pr[k] = tanh(1/(2 scale)) e^(-|k|/scale). Everything in closed form.

    Sampling  the difference of two geometric variables, which is this law exactly.
    """

    scale: float

    def __post_init__(self) -> None:
        check_shape_and_scale(Fraction(1), self.scale)

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def std(self) -> float:
        return math.sqrt(2) / (2 * math.sinh(0.5 / self.scale))

    def pmf(self) -> Pmf:
        last = check_length(int(self.quantile_of_log(math.log(LOST))) + 1, "support of the noise")
        logs = math.log(math.tanh(0.5 / self.scale)) - np.arange(last + 1) / self.scale
        return Pmf.mirrored(logs, LOST)

    def quantile(self, p: float) -> float:
        check_probability(p)
        return self.quantile_of_log(math.log(p))

    def quantile_of_log(self, log_p: float) -> float:
        """The least q ≥ 0 with P(|X| > q) = 2 β^(q+1) / (1 + β) ≤ p."""
        above = math.log(2) - math.log1p(math.exp(-1 / self.scale)) - log_p
        return float(max(0, math.ceil(self.scale * above * (1 - 1e-13)) - 1))

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        return PolyaDifference(Fraction(1), self.scale).sample(stream, count)
