"""Laws of noise that tests can work out by hand."""

import math
from dataclasses import dataclass

from scipy.stats import norm


@dataclass(frozen=True)
class Laplace:
    """Continuous Laplace noise of a scale, whose quantiles are exact: P(|X| > q) = e^(-q/scale)."""

    scale: float

    @property
    def std(self) -> float:
        return math.sqrt(2) * self.scale

    def quantile(self, p: float) -> float:
        return self.scale * math.log(1 / p)

    @property
    def sub_exponential(self) -> tuple[float, float]:
        return math.sqrt(2) * self.scale, self.scale


@dataclass(frozen=True)
class Normal:
    """Gaussian noise."""

    std: float

    def quantile(self, p: float) -> float:
        return float(self.std * norm.isf(p / 2))

    @property
    def sub_exponential(self) -> tuple[float, float]:
        return math.sqrt(2) * self.std, 0.0
