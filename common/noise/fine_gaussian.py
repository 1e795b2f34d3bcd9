"""Defines Gaussian noise on a grid much finer than that of the sums, and what rounding to the sums' steps makes of it.

Its whole numbers are exact. So noise may be multiplied by real numbers afterwards, and rounded, without a trace of
floating point in the privacy: `distrust.common.mechanisms.central.prefix_factorization`.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import How
from distrust.common.noise.discrete_gaussian import check_variance, gaussian_reach, gaussian_table
from distrust.common.noise.law import LOST, Pmf, check_length, check_probability
from distrust.common.randomness import Stream

FINE_BITS = 27
"""The fine deviation is between 2²⁶ and 2²⁸ fine units, however few steps it is; or more, where it is as many steps."""

COARSE = 1 << 9  # a of `FineGaussian.draw`


@dataclass(frozen=True, slots=True)
class FineGaussian:
    """N_Z(0, variance · per_step²) in fine units, of which `per_step` are one step.

    variance  in steps squared.

    As a law of noise it is that of one draw, rounded to whole steps.
    """

    variance: float

    def __post_init__(self) -> None:
        check_variance(self.variance)

    @property
    def per_step(self) -> int:
        """Return the odd number of fine units in a step. Odd, so that no number is in the middle of two steps."""
        _, exponent = math.frexp(math.sqrt(self.variance))  # the deviation is in [2^(exponent-1), 2^exponent)
        return int((1 << max(1, FINE_BITS + 1 - exponent)) - 1)

    def draw(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """Return `count` independent draws in fine units."""
        # X = a²X₂ + aX₁ + X₀, a = COARSE, with variances v₂, 4a² - 4 and 4a². Over whole y, e^(-(x-ay)²/(2u) - y²/(2v))
        # adds up to √(2πw) e^(-x²/(2(u + a²v))) (1 ± 2e^(-2π²w)), w = uv/(u + a²v), by Poisson summation. So aX₁ + X₀
        # has the law of N_Z(0, 4a⁴), and X that of N_Z(0, 4a⁴ + a⁴v₂), but for such factors, with w = 4v/(4 + v) for
        # v = 4a² - 4 and v = v₂. Both w are above 3.9997, and the factors within 2⁻¹¹² of 1.
        fine = self.variance * float(self.per_step) ** 2
        tables = [gaussian_table(one) for one in (4.0 * COARSE**2, 4.0 * COARSE**2 - 4, fine / COARSE**4 - 4)]
        low, middle, high = (table.draw(stream, count) for table in tables)
        result: NDArray[np.int64] = (high * COARSE + middle) * COARSE + low
        return result

    def in_steps(self, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return whole fine units as the nearest whole steps."""
        steps: NDArray[np.int64] = (fine + self.per_step // 2) // self.per_step
        return steps

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def std(self) -> float:
        """Return the deviation of one draw in steps, rounding included."""
        if self.variance > 1:  # rounding adds 1/12, but for e^(-2π² variance) times a few variances
            return math.sqrt(self.variance + 1 / 12)
        half = np.exp(_logs(self.variance, gaussian_reach(self.variance, LOST) + 1))
        return math.sqrt(2 * float(half @ np.arange(half.size) ** 2.0))

    def pmf(self) -> Pmf:
        """Return the law in steps on a truncated support."""
        last = check_length(gaussian_reach(self.variance, LOST) + 1, "support of the noise")
        return Pmf.mirrored(_logs(self.variance, last), LOST)

    def quantile(self, p: float) -> float:
        """Return the least q with P(|X| > q) ≤ p, X in steps."""
        check_probability(p)
        return max(0.0, math.ceil(-math.sqrt(self.variance) * float(scipy.special.ndtri(p / 2)) - 0.5))

    @property
    def quantile_how(self) -> How:
        """Return "exact"."""
        return "exact"

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        return self.in_steps(self.draw(stream, count))


def _logs(variance: float, last: int) -> NDArray[np.float64]:
    """Return the logarithms of P(X = k), X in steps, for k = 0 … last.

    Sums over the fine units of a step are integrals, to within 10⁻¹⁴ of their value or so.
    """
    tails = scipy.special.log_ndtr(-(np.arange(last + 2) - 0.5) / math.sqrt(variance))
    logs: NDArray[np.float64] = tails[:-1] + np.log(-np.expm1(np.diff(tails)))
    logs[0] = math.log1p(-2 * math.exp(tails[1]))
    return logs
