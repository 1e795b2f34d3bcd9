"""Poisson noise: half of a Skellam variable."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.noise.law import LOST, Pmf, check_length, check_probability, reach
from distrust.common.noise.table import Table, tabulate
from distrust.common.randomness import Stream

LARGEST_RATE = 1e8
"""Rate above which a sampling table of ± 15 standard deviations would grow towards LIMIT entries."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Pr[x] = e^(-rate) rateˣ / x! on the non-negative integers."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= LARGEST_RATE:
            raise BadParameter("rate of the noise", self.rate, f"must lie in (0, {LARGEST_RATE:g}]")

    @property
    def mean(self) -> float:
        return self.rate

    @property
    def std(self) -> float:
        return math.sqrt(self.rate)

    def pmf(self) -> Pmf:
        def log_tail(k: int) -> float:
            """Chernoff's bound of ln P(X ≥ k)."""
            return 0.0 if k <= self.rate else k - self.rate - k * math.log(k / self.rate)

        x = np.arange(1, check_length(reach(log_tail, LOST), "support of the noise") + 1)
        return Pmf.normalized(0, np.concatenate(([0.0], np.cumsum(np.log(self.rate / x)))), LOST)

    def quantile(self, p: float) -> float:
        check_probability(p)
        return self.pmf().quantile(self.mean, p)

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        return table(self.rate).draw(stream, count)


@lru_cache(maxsize=64)
def table(rate: float) -> Table:
    """weight(x + 1) / weight(x) = rate / (x + 1), with the rate as the exact fraction that the double is."""
    numerator, denominator = Fraction(rate).as_integer_ratio()
    return tabulate(math.floor(rate), lambda x: (numerator, denominator * (x + 1)))
