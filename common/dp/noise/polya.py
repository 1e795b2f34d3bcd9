"""Defines Pólya noise, the negative binomial law with a real shape: a client's share of geometric and Laplace noise.

A client's share in a geometric variable is Pólya: Pr[x] = Γ(x + r) / (x! Γ(r)) · βˣ (1 - β)ʳ for x = 0, 1, …, with
β = e^(-1/scale). Its shape r > 0 is 1/t for one of t clients; sums of one scale add the shapes, and r = 1 is geometric.
`PolyaDifference` is the difference of two of them: one client's share of discrete Laplace noise, and any sum of such
shares. `DiscreteLaplace` is a whole one.

Source  Goryczka & Xiong 2015, Theorem 5.1.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats, How
from distrust.common.dp.noise.law import (
    LIMIT,
    LOST,
    PRECISION,
    TIE,
    OnLattice,
    Pmf,
    Table,
    check_length,
    check_probability,
    complex_log1p,
    symmetric_quantile,
    tabulate,
    tail_reach,
)
from distrust.common.errors import BadParameter
from distrust.common.extras import mpmath
from distrust.common.randomness import Stream

LONGEST_SCALE = 10_000.0
"""Scale above which the sampling table would pass LIMIT entries: it holds about 100 of them per unit of scale."""

NODES = 400  # of Gauss and Legendre, for `PolyaTails`
WIDTH, FAR = 14.0, 60.0  # deviations on either side of the mean; scales more above, where the law falls more slowly
LITTLE = 1e-300  # a tail that may be 0: below every p

LEAST_SHAPE = 4.0
"""Least shape for `PolyaTails`: below it there is mass next to 0, where the terms are not smooth."""


def check_shape_and_scale(shape: Fraction, scale: float) -> None:
    """Refuse a shape that is not positive, and a scale that is not positive and finite."""
    if shape <= 0:
        raise BadParameter("shape", str(shape), "must be positive")
    if not (math.isfinite(scale) and scale > 0):
        raise BadParameter("scale", scale, "must be positive and finite")


@lru_cache(maxsize=64)
def polya_table(shape: Fraction, scale: float) -> Table:
    """Return the sampling table; weight(x + 1) / weight(x) = β (x + r) / (x + 1), with β to 2⁻²⁵⁶."""
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


@dataclass(frozen=True, slots=True)
class PolyaTails:
    """Computes tails of A - B, both Pólya(shape, e^(-1/scale)), as an integral instead of a sum of a million terms.

    Domain  shape ≥ LEAST_SHAPE and a deviation of many thousands: tails to nine digits.
    """

    shape: float
    scale: float

    def quantile(self, p: float, most: int) -> int:
        """Return the least whole q with P(|A - B| > q) ≤ p; it is at most `most`."""
        places, masses = self._masses()

        def excess(q: float) -> float:
            return math.log(max(self._beyond(q, places, masses), LITTLE) / p) + TIE

        if excess(0.0) <= 0:
            return 0
        root = math.ceil(float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-3)))
        near = range(max(0, root - 2), root + 3)
        return next((q for q in near if excess(q) <= 0), most)

    def _beyond(self, q: float, places: Floats, masses: Floats) -> float:
        """Return P(|A - B| > q), steady between the integers."""
        # P(A - B > q) = Σ_b P(B = b) P(A > q + b), and the second factor is an incomplete beta function. Where the law
        # is spread over many thousands of integers, the terms lie on a smooth curve that begins and ends at 0. So the
        # sum is its integral but for one part in 24 σ² (the midpoint rule, by Euler and Maclaurin), and a few hundred
        # of Gauss and Legendre's nodes find the integral to eleven digits.
        return 2 * float(masses @ scipy.special.betaincc(self.shape, places + q + 1, -math.expm1(-1 / self.scale)))

    def _masses(self) -> tuple[Floats, Floats]:
        """Return nodes, and their masses under the law of B: a density by Stirling's formula that adds up to 1."""
        lost, kept = -math.expm1(-1 / self.scale), math.exp(-1 / self.scale)
        mean, sigma = self.shape * kept / lost, math.sqrt(self.shape * kept) / lost
        low, high = max(-0.5, mean - WIDTH * sigma), mean + WIDTH * sigma + FAR * self.scale
        nodes, weights = _rule()
        places = (low + high) / 2 + nodes * (high - low) / 2
        x = np.maximum(places, 1.0)  # next to nothing lies below
        whole = x + self.shape
        apart = _divergence(x, kept * whole) + _divergence(self.shape, lost * whole)
        masses = weights * np.exp(_stirling(whole) - _stirling(x) - apart) / np.sqrt(x * whole)
        return places, masses / masses.sum()


def _divergence(x: Floats | float, mean: Floats) -> Floats:
    """Return the sum x ln(x/mean) - x + mean, which is small, without cancellation of large numbers."""
    t = (x - mean) / mean
    return np.asarray(mean * ((1 + t) * np.log1p(t) - t), dtype=np.float64)


def _stirling(x: Floats) -> Floats:
    """Return the rest of Stirling's formula: ln Γ(x) less (x - ½) ln x - x, but for a constant."""
    return np.asarray(1 / (12 * x) - 1 / (360 * x**3), dtype=np.float64)


@cache
def _rule() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights


@dataclass(frozen=True, slots=True)
class PolyaDifference(OnLattice):
    """γ⁺ - γ⁻ with independent Pólya(shape, e^(-1/scale)); generating function [(1-β)² / ((1-βz)(1-β/z))]^shape.

    shape  r > 0, exact. 1/t: one client's noise. n/t: the sum over n clients. 1: discrete Laplace. n: n such terms.
    Where the support would pass LIMIT entries `pmf` refuses, and `quantile` is an integral of tails.
    """

    shape: Fraction
    scale: float

    def __post_init__(self) -> None:
        check_shape_and_scale(self.shape, self.scale)

    @property
    def std(self) -> float:
        return math.sqrt(2 * float(self.shape)) / (2 * math.sinh(0.5 / self.scale))

    @property
    def reach(self) -> float:
        return 1 / self.scale

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        return float(self.shape) * _laplace_log_moment(self.scale, s, t)

    def pmf(self) -> Pmf:
        return Pmf.mirrored(polya_difference_logs(self.shape, self.scale), LOST)

    def quantile(self, p: float) -> float:
        check_probability(p)
        if self._is_long:
            most, r = self._reach(p), float(self.shape)
            return float(most - 1 if r < LEAST_SHAPE else PolyaTails(r, self.scale).quantile(p, most))
        return float(symmetric_quantile(polya_difference_logs(self.shape, self.scale), LOST, p))

    @property
    def quantile_how(self) -> How:
        """Return "exact", or "bound" for scales that could not be drawn: then the quantile is Chernoff's bound."""
        return "bound" if self._is_long and self.shape < LEAST_SHAPE else "exact"

    @property
    def _is_long(self) -> bool:
        return self._reach(LOST) > LIMIT

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        one = polya_table(self.shape, self.scale)
        plus = one.draw(stream, count)
        plus -= one.draw(stream, count)
        return plus

    def _reach(self, lost: float) -> int:
        """Return the least k that Chernoff's bound allows for P(|X| ≥ k) ≤ lost."""
        return tail_reach(lambda k: polya_difference_log_tail(float(self.shape), 1 / self.scale, k), lost / 2)


def _laplace_log_moment(scale: float, s: Floats, t: Floats) -> Complexes:
    """Return ln E e^{zX} of discrete Laplace noise: -ln(1 - sinh²(z/2)/sinh²(a/2)), a = 1/scale.

    The real part of what the logarithm is taken of grows with |t| ≤ π, and is above 0: no branch is crossed.
    """
    size, turn = np.sinh(s / 2), np.sin(t / 2)
    square = turn * turn
    unit = math.sinh(0.5 / scale) ** -2
    x = unit * (square * (1 + 2 * size * size) - size * size)
    y = -unit * np.sinh(s) / 2 * np.sin(t)
    return -complex_log1p(x, y)


def polya_difference_log_tail(r: float, a: float, k: int) -> float:
    """Return Chernoff's bound of ln P(X ≥ k), with a = 1/scale = -ln β: the minimum over 0 ≤ s < a of κ(s) - sk."""
    # κ(s) = r ln[sinh²(a/2) / (sinh((a+s)/2) sinh((a-s)/2))], and κ'(s) = k reads k cosh s + r sinh s = k cosh a.
    if k > r:
        radius = math.sqrt((k - r) * (k + r))
        s = math.acosh(max(1.0, k * math.cosh(a) / radius)) - math.atanh(r / k)
    elif k < r:
        s = math.asinh(k * math.cosh(a) / math.sqrt((r - k) * (r + k))) - math.atanh(k / r)
    else:
        s = math.log(math.cosh(a))
    s = min(max(s, 0.0), a * (1 - 1e-15))  # rounding may leave the range; any s in it gives a bound
    ratio = 2 * math.log(math.sinh(a / 2)) - math.log(math.sinh((a + s) / 2)) - math.log(math.sinh((a - s) / 2))
    return r * ratio - s * k


@lru_cache(maxsize=64)
def polya_difference_logs(shape: Fraction, scale: float) -> NDArray[np.float64]:
    """Return the log-probabilities of 0, 1, … by Miller's algorithm; at most LOST is left out in all."""
    # The Laurent coefficients obey (k+1-r) p(k+1) = 2k cosh(a) p(k) - (k-1+r) p(k-1). Downwards their ratios are
    # stable: an error shrinks by about β² a step, so that a start 20 scales beyond the support forgets how it was
    # begun. The loop follows u(k) in p(k)/p(k-1) = β (1 + u(k)), where the terms that would cancel are gone: r = 1 has
    # u = 0 throughout.
    r, a = float(shape), 1 / scale
    last = check_length(tail_reach(lambda k: polya_difference_log_tail(r, a, k), LOST / 2), "support of the noise")
    steps = [0.0] * last
    square, constant, u = math.exp(-2 * a), (1 - r) * math.expm1(-2 * a), 0.0
    for k in range(last + int(20 * scale) + 20, 0, -1):
        next_term = (k + 1 - r) * square * u
        u = (constant + next_term) / (k - (1 - r) * square - next_term)
        if k <= last:
            steps[k - 1] = u
    logs: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(np.log1p(steps)))) - a * np.arange(last + 1)
    logs -= math.log(2 * float(np.sum(np.exp(logs))) - 1)
    logs.setflags(write=False)
    return logs


@dataclass(frozen=True, slots=True)
class DiscreteLaplace(OnLattice):
    """Lap_Z(scale): Pr[k] = tanh(1/(2 scale)) e^(-|k|/scale). Everything in closed form.

    Sampling  the difference of two geometric variables, which is this law exactly.
    """

    scale: float

    def __post_init__(self) -> None:
        check_shape_and_scale(Fraction(1), self.scale)

    @property
    def std(self) -> float:
        return math.sqrt(2) / (2 * math.sinh(0.5 / self.scale))

    @property
    def reach(self) -> float:
        return 1 / self.scale

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        return _laplace_log_moment(self.scale, s, t)

    def pmf(self) -> Pmf:
        last = check_length(int(self.quantile_of_log(math.log(LOST))) + 1, "support of the noise")
        logs = math.log(math.tanh(0.5 / self.scale)) - np.arange(last + 1) / self.scale
        return Pmf.mirrored(logs, LOST)

    def quantile(self, p: float) -> float:
        check_probability(p)
        return self.quantile_of_log(math.log(p))

    def quantile_of_log(self, log_p: float) -> float:
        """Return the least q ≥ 0 with P(|X| > q) = 2 β^(q+1) / (1 + β) ≤ p."""
        above = math.log(2) - math.log1p(math.exp(-1 / self.scale)) - log_p
        return float(max(0, math.ceil(self.scale * above * (1 - 1e-13)) - 1))

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        return PolyaDifference(Fraction(1), self.scale).sample(stream, count)
