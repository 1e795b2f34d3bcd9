"""Pólya noise: the negative binomial law with a real shape, the share of one client in a geometric variable."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import mpmath
import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.noise.law import LOST, Pmf, check_length, check_probability, reach
from distrust.common.noise.table import PRECISION, Table, tabulate
from distrust.common.randomness import Stream

LONGEST_SCALE = 10_000.0
"""Scale above which the sampling table would pass LIMIT entries: it holds about 100 of them per unit of scale."""


@dataclass(frozen=True, slots=True)
class Polya:
    """Pr[x] = Γ(x + r) / (x! Γ(r)) · βˣ (1 - β)ʳ for x = 0, 1, …, with β = e^(-1/scale).

    shape   r > 0, exact: 1/t for the share of one of t clients. Sums of one scale add the shapes; r = 1 is geometric.
    Source  Goryczka & Xiong 2015, Theorem 5.1.
    """

    shape: Fraction
    scale: float

    def __post_init__(self) -> None:
        check_shape_and_scale(self.shape, self.scale)

    @property
    def mean(self) -> float:
        return float(self.shape) / math.expm1(1 / self.scale)

    @property
    def std(self) -> float:
        return math.sqrt(float(self.shape)) / (2 * math.sinh(0.5 / self.scale))

    def pmf(self) -> Pmf:
        logs = _logs(self.shape, self.scale)
        return Pmf.normalized(0, logs, LOST)

    def quantile(self, p: float) -> float:
        check_probability(p)
        return self.pmf().quantile(self.mean, p)

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        return table(self.shape, self.scale).draw(stream, count)


def check_shape_and_scale(shape: Fraction, scale: float) -> None:
    """Refuse what is no Pólya law."""
    if shape <= 0:
        raise BadParameter("shape", str(shape), "must be positive")
    if not (math.isfinite(scale) and scale > 0):
        raise BadParameter("scale", scale, "must be positive and finite")


@lru_cache(maxsize=64)
def table(shape: Fraction, scale: float) -> Table:
    """The sampling table; weight(x + 1) / weight(x) = β (x + r) / (x + 1), with β to 2⁻²⁵⁶."""
    if scale > LONGEST_SCALE:
        allowed = f"at most {LONGEST_SCALE:g}: raise epsilon or lower the precision or dimension"
        raise BadParameter("scale of the noise", scale, allowed)
    with mpmath.workprec(PRECISION + 64):
        beta = int(mpmath.floor(mpmath.exp(-1 / mpmath.mpf(scale)) * mpmath.mpf(2) ** PRECISION))
    r, unit = shape.numerator, shape.denominator
    mode = max(0, math.floor((float(shape) - 1) / math.expm1(1 / scale)))

    def ratio(x: int) -> tuple[int, int]:
        return beta * (x * unit + r), ((x + 1) * unit) << PRECISION

    return tabulate(mode, ratio)


def _logs(shape: Fraction, scale: float) -> NDArray[np.float64]:
    """Logs of the weights of 0, 1, … up to a constant."""
    r = float(shape)
    loss = -math.expm1(-1 / scale)  # 1 - β

    def log_tail(k: int) -> float:
        """Chernoff's bound of ln P(X ≥ k)."""
        if k * loss <= r * (1 - loss):
            return 0.0
        return r * math.log(loss * (k + r) / r) + k * (math.log1p(r / k) - 1 / scale)

    x = np.arange(check_length(reach(log_tail, LOST), "support of the noise"), dtype=np.float64)
    return np.concatenate(([0.0], np.cumsum(np.log((x + r) / (x + 1)) - 1 / scale)))
