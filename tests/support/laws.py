"""Laws of noise that tests can work out by hand, and a χ² test of draws against any law."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from distrust.common.dp.noise.law import Law


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


def chi_square(law: Law, draws: NDArray[np.int64]) -> float:
    """Return the p-value of a χ² test. Neighbouring values are pooled until each cell expects at least 20 draws."""
    pmf = law.pmf()
    expected = pmf.masses * draws.size
    cells = np.minimum((np.cumsum(expected) // 20).astype(int), int(expected.sum() // 20) - 1)
    inside = np.clip(draws - pmf.first, 0, pmf.logs.size - 1)
    observed = np.bincount(cells[inside], minlength=cells[-1] + 1)
    wanted = np.bincount(cells, weights=expected, minlength=cells[-1] + 1)
    used = wanted > 0
    statistic = ((observed[used] - wanted[used]) ** 2 / wanted[used]).sum()
    return float(chi2.sf(statistic, used.sum() - 1))
