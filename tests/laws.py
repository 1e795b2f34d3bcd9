"""Laws of noise that tests can work out by hand."""

import math
from dataclasses import dataclass


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
