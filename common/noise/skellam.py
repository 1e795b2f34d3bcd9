"""Symmetric Skellam noise: the difference of two equal Poisson variables."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.error_law import How
from common.errors import BadParameter
from common.noise.law import LIMIT, LOST, Pmf, check_length, check_probability, reach, symmetric_quantile
from common.noise.poisson import Poisson
from common.randomness import Stream


@dataclass(frozen=True, slots=True)
class Skellam:
    """Sk(0, variance): Pr[k] = e^(-v) I_|k|(v) with v the variance. Sums add the variances.

    Where the support would pass LIMIT entries `quantile` is Chernoff's bound and `pmf` refuses.
    """

    variance: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.variance) and self.variance > 0):
            raise BadParameter("variance", self.variance, "must be positive and finite")

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    def pmf(self, lost: float = LOST, least: int = 0) -> Pmf:
        """The law up to `lost`, and at least on [-least, least]."""
        return Pmf.mirrored(half_logs(self.variance, max(self._reach(lost), least)), lost)

    def quantile(self, p: float) -> float:
        check_probability(p)
        last = self._reach(LOST)
        if last > LIMIT:
            return float(self._reach(p) - 1)
        return float(symmetric_quantile(half_logs(self.variance, last), LOST, p))

    @property
    def quantile_how(self) -> How:
        """Whether `quantile` is exact."""
        return "bound" if self._reach(LOST) > LIMIT else "exact"

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        half = Poisson(self.variance / 2)
        plus = half.sample(stream, count)
        plus -= half.sample(stream, count)
        return plus

    def _reach(self, lost: float) -> int:
        """The least k that Chernoff's bound allows for P(|X| ≥ k) ≤ lost."""

        def log_tail(k: int) -> float:
            s = math.asinh(k / self.variance)
            return 2 * self.variance * math.sinh(s / 2) ** 2 - s * k  # v (cosh s - 1) - sk

        return reach(log_tail, lost / 2)


@lru_cache(maxsize=32)
def half_logs(variance: float, last: int) -> NDArray[np.float64]:
    """Log-probabilities of 0 … last, by the continued fraction of Bessel ratios.

    ρ(k) = I_k/I_(k-1) = 1 / (2k/v + ρ(k+1)): only additions of positive terms, and errors shrink by ρ² a step.
    """
    check_length(last, "support of the noise")
    beyond = int(30 * math.sqrt(variance)) + 30
    steps, ratio, double = [0.0] * last, 0.0, 2 / variance
    for k in range(last + beyond, 0, -1):
        ratio = 1 / (double * k + ratio)
        if k <= last:
            steps[k - 1] = ratio
    logs = np.concatenate(([0.0], np.cumsum(np.log(steps))))
    logs -= math.log(2 * float(np.sum(np.exp(logs))) - 1)
    logs.setflags(write=False)
    return logs
