"""Defines discrete Gaussian noise: on the integers, and in units that are finer than a step."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats
from distrust.common.dp.noise.law import (
    CUT,
    LIMIT,
    LOST,
    PRECISION,
    Pmf,
    SymmetricLaw,
    Table,
    check_length,
    check_probability,
    tabulate,
)
from distrust.common.errors import BadParameter
from distrust.common.extras import mpmath
from distrust.common.randomness import Stream

LARGEST_VARIANCE = (LIMIT / 2 - 2) ** 2 / (2 * CUT * math.log(2))
"""Variance above which the sampling table would pass LIMIT entries: a deviation of about 37,000 steps."""

FINE_BITS = 27
"""The fine deviation is between 2²⁶ and 2²⁸ fine units, however few steps it is; or more, where it is as many steps."""

COARSE = 1 << 9  # a of `FineGaussian.draw`

NOTHING = 45.0  # nats by which a term of the theta series is below the first: 3e-20
FARTHEST = 40  # terms on either side for variances below POISSON
POISSON = 0.5  # variance from which the theta series is added up on the dual side


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(SymmetricLaw):
    """N_Z(0, variance): Pr[k] = e^(-k²/(2 variance)) / Σ_j e^(-j²/(2 variance)).

    variance  the parameter; the law's own variance is smaller, much so below 1/4.
    Source    Canonne, Kamath & Steinke 2020.
    """

    variance: float

    def __post_init__(self) -> None:
        check_variance(self.variance)

    @property
    def std(self) -> float:
        return _gaussian_std(self.variance)

    @property
    def reach(self) -> float:
        return transform_reach(self.variance)

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        return gaussian_log_moment(self.variance, s, t)

    def log_size(self, s: Floats, t: Floats) -> Floats:
        return gaussian_log_size(self.variance, s, t)

    def _reach(self, lost: float) -> int:
        return gaussian_reach(self.variance, lost)

    def _logs(self, last: int) -> Floats:
        return gaussian_logs(self.variance, check_length(last, "support of the noise"))

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        return gaussian_table(self.variance).draw(stream, count)


def transform_reach(variance: float) -> float:
    """Return the |Re z| up to which `gaussian_log_moment` has terms enough: E e^{zX} itself is finite everywhere."""
    return FARTHEST / (2 * variance) if variance < POISSON else math.inf


def gaussian_log_moment(variance: float, s: Floats, t: Floats) -> Complexes:
    """Return ln E e^{zX} for |t| ≤ π: v z²/2 and a theta series by Poisson summation, or the terms for small v."""
    z = s + 1j * t
    smooth = np.asarray(variance * z**2 / 2, dtype=np.complex128)
    if variance < POISSON:
        k = np.arange(-FARTHEST, FARTHEST + 1)
        top = variance * z.real**2 / 2  # the largest exponent, at k = vs
        exponents = z[..., np.newaxis] * k - k**2 / (2 * variance) - top[..., np.newaxis]
        return np.asarray(np.log(np.exp(exponents).sum(axis=-1) / normalizer(variance)) + top, dtype=np.complex128)
    if 2 * math.pi * variance * (math.pi - float(np.abs(t).max(initial=0))) > NOTHING:
        return smooth
    turns = np.multiply.outer(2j * math.pi * variance * z, np.arange(1, 5))
    fall = 2 * math.pi**2 * variance * np.arange(1, 5) ** 2
    series = np.log1p((np.exp(turns - fall) + np.exp(-turns - fall)).sum(axis=-1)) - np.log1p(2 * np.exp(-fall).sum())
    return np.asarray(smooth + series, dtype=np.complex128)


def gaussian_log_size(variance: float, s: Floats, t: Floats) -> Floats:
    """Return v s²/2 + ln E cos tX, a bound on ln |E e^{zX}| that falls between t = 0 and π.

    By Poisson's formula E e^{zX} is Σ_j e^{v(z + 2πij)²/2} but for a factor, and each term has the size of that for s =
    0 times e^{vs²/2}. Their sum is a theta function of t, a product of factors that fall.
    """
    return np.asarray(variance * s * s / 2 + gaussian_log_moment(variance, np.zeros(()), t).real)


def check_variance(variance: float) -> None:
    """Refuse a variance that is not positive and finite."""
    if not (math.isfinite(variance) and variance > 0):
        raise BadParameter("variance", variance, "must be positive and finite")


def gaussian_reach(variance: float, lost: float) -> int:
    """Return the least k that the sub-Gaussian bound P(|X| ≥ k) ≤ 2 e^(-k²/(2 variance)) allows for `lost`."""
    return max(1, math.ceil(math.sqrt(2 * variance * math.log(2 / lost))))


def gaussian_logs(variance: float, last: int) -> NDArray[np.float64]:
    """Return the log-probabilities of 0 … last."""
    logs = -(np.arange(last + 1, dtype=np.float64) ** 2) / (2 * variance)
    logs -= math.log(normalizer(variance))
    return logs


def normalizer(variance: float) -> float:
    """Return Σ_j e^(-j²/(2v)): added up for small v, else √(2πv) (1 + 2 Σ_j e^(-2π²vj²)) by Poisson's formula."""
    if variance < 1:
        return 1 + 2 * math.fsum(math.exp(-j * j / (2 * variance)) for j in range(1, 12))
    return math.sqrt(2 * math.pi * variance) * (1 + 2 * math.exp(-2 * math.pi**2 * variance))


@lru_cache(maxsize=256)
def _gaussian_std(variance: float) -> float:
    """Return the standard deviation of N_Z(0, v).

    Above v = 4 the variance is the parameter up to 8π² v² e^(-2π²v), below one unit in the last place.
    """
    if variance > 4:
        return math.sqrt(variance)
    masses = [(j, math.exp(-j * j / (2 * variance))) for j in range(1, 20)]
    return math.sqrt(2 * math.fsum(j * j * mass for j, mass in masses) / normalizer(variance))


@lru_cache(maxsize=64)
def gaussian_table(variance: float) -> Table:
    """Return the sampling table; weight(x + 1) / weight(x) = a^(2x+1), a = e^(-1/(2 variance)), to 2⁻³²⁰ absolutely."""
    if variance > LARGEST_VARIANCE:
        allowed = f"at most {LARGEST_VARIANCE:.4g}: raise epsilon or lower the precision or dimension"
        raise BadParameter("variance of the noise", variance, allowed)
    bits = PRECISION + 64
    with mpmath.workprec(bits + 64):
        a = mpmath.exp(-1 / (2 * mpmath.mpf(variance)))
        first, square = (int(mpmath.floor(power * mpmath.mpf(2) ** bits)) for power in (a, a * a))
    powers = [first]  # a, a³, a⁵, …

    def falls(step: int) -> tuple[int, int]:
        """Return weight(step + 1) / weight(step) as numerator and denominator, for step ≥ 0."""
        while len(powers) <= step:
            powers.append(powers[-1] * square >> bits)
        return powers[step], 1 << bits

    return tabulate(0, lambda x: falls(x) if x >= 0 else falls(-x - 1)[::-1], least=None)


@dataclass(frozen=True, slots=True)
class FineGaussian:
    """N_Z(0, variance · per_step²) in fine units, of which `per_step` are one step.

    variance  in steps squared.

    As a law of noise it is that of one draw, rounded to whole steps.
    """

    mean: ClassVar[float] = 0.0

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
