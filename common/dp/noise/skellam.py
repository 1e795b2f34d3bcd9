"""Defines symmetric Skellam noise: the difference of two equal Poisson variables."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats
from distrust.common.dp.noise.law import SymmetricLaw, Table, check_length, tabulate, tail_reach
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream

LARGEST_RATE = 1e8
"""Rate above which a sampling table of ± 15 standard deviations would grow towards LIMIT entries."""

LARGE = 3000.0
"""Variance from which the law is expanded instead of computed step by step."""

FORGOTTEN = 24.0
"""Half the logarithm by which the error of a Bessel ratio is to shrink: to e^-48 of itself."""


@lru_cache(maxsize=64)
def poisson_table(rate: float) -> Table:
    """Return the table that samples Pr[x] = e^(-rate) rateˣ / x!; weight(x + 1) / weight(x) = rate / (x + 1)."""
    if not 0 < rate <= LARGEST_RATE:
        raise BadParameter("rate of the noise", rate, f"must lie in (0, {LARGEST_RATE:g}]")
    numerator, denominator = Fraction(rate).as_integer_ratio()
    return tabulate(math.floor(rate), lambda x: (numerator, denominator * (x + 1)))


DEBYE = (
    (3 / 24, -5 / 24),
    (81 / 1152, -462 / 1152, 385 / 1152),
    (30375 / 414720, -369603 / 414720, 765765 / 414720, -425425 / 414720),
    (
        4465125 / 39813120,
        -94121676 / 39813120,
        349922430 / 39813120,
        -446185740 / 39813120,
        185910725 / 39813120,
    ),
)
"""Coefficients of U_1 … U_4, from the lowest power of p on; only every second power occurs."""


@dataclass(frozen=True, slots=True)
class Skellam(SymmetricLaw):
    """Sk(0, variance): Pr[k] = e^(-v) I_|k|(v) with v the variance. Sums add the variances.

    Where the support would pass LIMIT entries `quantile` is Chernoff's bound and `pmf` refuses.
    """

    variance: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.variance) and self.variance > 0):
            raise BadParameter("variance", self.variance, "must be positive and finite")

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        """Return v (cosh z - 1) = 2v sinh² z/2."""
        half = np.sinh(s / 2) * np.cos(t / 2) + 1j * np.cosh(s / 2) * np.sin(t / 2)
        return np.asarray(2 * self.variance * half**2)

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        half = poisson_table(self.variance / 2)
        plus = half.draw(stream, count)
        plus -= half.draw(stream, count)
        return plus

    def _logs(self, last: int) -> Floats:
        return skellam_logs(self.variance, last)

    def _reach(self, lost: float) -> int:
        def log_tail(k: int) -> float:
            s = math.asinh(k / self.variance)
            return 2 * self.variance * math.sinh(s / 2) ** 2 - s * k  # v (cosh s - 1) - sk

        return tail_reach(log_tail, lost / 2)


@lru_cache(maxsize=32)
def skellam_logs(variance: float, last: int) -> NDArray[np.float64]:
    """Return the log-probabilities of 0 … last, to relative error 1e-12; read-only."""
    check_length(last, "support of the noise")
    logs = _expanded(variance, last) if variance >= LARGE else _by_ratios(variance, last)
    logs.setflags(write=False)
    return logs


def _by_ratios(variance: float, last: int) -> NDArray[np.float64]:
    """Return the logarithms of the law by the continued fraction of Bessel ratios.

    ρ(k) = I_k/I_(k-1) = 1 / (2k/v + ρ(k+1)). Only positive terms are added, and errors shrink by ρ² a step.
    """
    near = min(last, math.ceil(2 * variance))
    ratios = np.concatenate((_near(variance, near), _far(variance, near, last)))
    logs = np.concatenate(([0.0], np.cumsum(np.log(ratios))))
    logs -= math.log(2 * float(np.sum(np.exp(logs))) - 1)
    return np.asarray(logs, dtype=np.float64)


def _near(variance: float, last: int) -> NDArray[np.float64]:
    """Return the Bessel ratios ρ(1) … ρ(last), one by one."""
    beyond = int(30 * math.sqrt(variance)) + 30
    steps, ratio, double = [0.0] * last, 0.0, 2 / variance
    for k in range(last + beyond, 0, -1):
        ratio = 1 / (double * k + ratio)
        if k <= last:
            steps[k - 1] = ratio
    return np.array(steps)


def _far(variance: float, first: int, last: int) -> NDArray[np.float64]:
    """Return ρ(first + 1) … ρ(last), first ≥ 2v, many at once."""
    # From a k on, ρ < v/2k, so that a step takes an error to (v/2k)² of it. The range is cut where k doubles: each part
    # takes the steps that leave nothing of an error, and has the last bits of single steps.
    parts = [np.empty(0)]
    while first < last:
        end = min(last, 2 * first)
        steps = math.ceil(FORGOTTEN / math.log(2 * first / variance))
        linear = 2 / variance * np.arange(first + 1, end + steps + 1)
        ratios = np.zeros_like(linear)
        for _ in range(steps):
            ratios[:-1] = ratios[1:]
            ratios[-1] = 0.0
            np.divide(1.0, linear + ratios, out=ratios)
        parts.append(ratios[: end - first])
        first = end
    return np.concatenate(parts)


def _expanded(variance: float, last: int) -> NDArray[np.float64]:
    """Return ln e^(-v) I_k(v) by Debye's expansion, uniform in k, in powers of 1/w, w = √(k² + v²) ≥ v.

    Source     DLMF 10.41.3 and 10.41.10.
    Exactness  the first term that is left out is below 1e-14 from LARGE on.
    """
    # The law is e^(w-v) (v/(k+w))^k / √(2πw) times Σ U_j(p)/k^j, p = k/w; U_j(p)/k^j is a polynomial in p² over w^j.
    k = np.arange(last + 1, dtype=np.float64)
    w = np.hypot(k, variance)
    p = (k / w) ** 2
    series = np.zeros_like(k)
    for coefficients in reversed(DEBYE):
        series = (series + np.polynomial.polynomial.polyval(p, coefficients)) / w
    logs = k * k / (w + variance) - k * np.arcsinh(k / variance) - np.log(2 * math.pi * w) / 2 + np.log1p(series)
    return np.asarray(logs, dtype=np.float64)
