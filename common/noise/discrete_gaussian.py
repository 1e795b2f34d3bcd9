"""Discrete Gaussian noise: one client's share, or the whole of it."""

import math
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import How
from distrust.common.errors import BadParameter
from distrust.common.noise.law import LIMIT, LOST, Pmf, check_length, check_probability, symmetric_quantile
from distrust.common.noise.table import CUT, PRECISION, Table, tabulate
from distrust.common.randomness import Stream

LARGEST_VARIANCE = (LIMIT / 2 - 2) ** 2 / (2 * CUT * math.log(2))
"""Variance above which the sampling table would pass LIMIT entries: a deviation of about 37,000 steps."""


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """N_Z(0, variance): Pr[k] = e^(-k²/(2 variance)) / Σ_j e^(-j²/(2 variance)).

    variance  the parameter; the law's own variance is smaller, much so below 1/4.
    Source    Canonne, Kamath & Steinke 2020.
    """

    variance: float

    def __post_init__(self) -> None:
        check_variance(self.variance)

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def std(self) -> float:
        return _std(self.variance)

    def pmf(self, lost: float = LOST, least: int = 0) -> Pmf:
        """The law up to `lost`, and at least on [-least, least]."""
        last = check_length(max(gaussian_reach(self.variance, lost), least), "support of the noise")
        return Pmf.mirrored(half_logs(self.variance, last), lost)

    def quantile(self, p: float) -> float:
        """Where the support would pass LIMIT entries, the sub-Gaussian bound."""
        check_probability(p)
        last = gaussian_reach(self.variance, LOST)
        if last > LIMIT:
            return float(gaussian_reach(self.variance, p) - 1)
        return float(symmetric_quantile(half_logs(self.variance, last), LOST, p))

    @property
    def quantile_how(self) -> How:
        """Whether `quantile` is exact."""
        return "bound" if gaussian_reach(self.variance, LOST) > LIMIT else "exact"

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        return table(self.variance).draw(stream, count)


def check_variance(variance: float) -> None:
    """Refuse what is no discrete Gaussian law."""
    if not (math.isfinite(variance) and variance > 0):
        raise BadParameter("variance", variance, "must be positive and finite")


def gaussian_reach(variance: float, lost: float) -> int:
    """The least k that the sub-Gaussian bound P(|X| ≥ k) ≤ 2 e^(-k²/(2 variance)) allows for `lost`."""
    return max(1, math.ceil(math.sqrt(2 * variance * math.log(2 / lost))))


def half_logs(variance: float, last: int) -> NDArray[np.float64]:
    """Log-probabilities of 0 … last."""
    logs = -(np.arange(last + 1, dtype=np.float64) ** 2) / (2 * variance)
    logs -= math.log(normalizer(variance))
    return logs


def normalizer(variance: float) -> float:
    """Σ_j e^(-j²/(2v)): added up where v is small, and √(2πv) (1 + 2 Σ_j e^(-2π²vj²)) by Poisson where it is not."""
    if variance < 1:
        return 1 + 2 * math.fsum(math.exp(-j * j / (2 * variance)) for j in range(1, 12))
    return math.sqrt(2 * math.pi * variance) * (1 + 2 * math.exp(-2 * math.pi**2 * variance))


@lru_cache(maxsize=256)
def _std(variance: float) -> float:
    """Above 4 the law's variance is the parameter up to 8π² v² e^(-2π²v), below one unit in the last place."""
    if variance > 4:
        return math.sqrt(variance)
    masses = [(j, math.exp(-j * j / (2 * variance))) for j in range(1, 20)]
    return math.sqrt(2 * math.fsum(j * j * mass for j, mass in masses) / normalizer(variance))


@lru_cache(maxsize=64)
def table(variance: float) -> Table:
    """The sampling table; weight(x + 1) / weight(x) = a^(2x+1), a = e^(-1/(2 variance)), to 2⁻³²⁰ absolutely."""
    if variance > LARGEST_VARIANCE:
        allowed = f"at most {LARGEST_VARIANCE:.4g}: raise epsilon or lower the precision or dimension"
        raise BadParameter("variance of the noise", variance, allowed)
    bits = PRECISION + 64
    with mpmath.workprec(bits + 64):
        a = mpmath.exp(-1 / (2 * mpmath.mpf(variance)))
        first, square = (int(mpmath.floor(power * mpmath.mpf(2) ** bits)) for power in (a, a * a))
    powers = [first]  # a, a³, a⁵, …

    def falls(step: int) -> tuple[int, int]:
        """weight(step + 1) / weight(step) for step ≥ 0."""
        while len(powers) <= step:
            powers.append(powers[-1] * square >> bits)
        return powers[step], 1 << bits

    return tabulate(0, lambda x: falls(x) if x >= 0 else falls(-x - 1)[::-1], least=None)
