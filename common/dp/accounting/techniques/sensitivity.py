"""Computes how far one client can move the integer vector of a grid. Rounding inflates ℓ₁ and ℓ₂, at a cost in ε.

Two vectors w, w' on the grid differ by at most g in their norm before they are rounded. Both are rounded with the same
uniform numbers, which joint convexity allows. So coordinate i moves by ⌊d_i⌋ or ⌈d_i⌉, d_i = |w_i - w'_i|.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import scipy

from distrust.common.dp.accounting.techniques.searches import SLACK, least_satisfying, snap_up
from distrust.common.wire import Norm

INFLATION = 0.01
"""Share that rounding may add to the noise in a ball, where the grid is ours to choose."""

PAPER_INFLATION = 0.1
"""Share that the worst rounding may add to the sensitivity in a ball, which papers' constants pay for."""

ROUNDING = 0.1
"""Share of the privacy noise's variance that `exact` grids leave to the rounding, whose variance is at most n/4."""


FULL_BALL = Fraction(1)
"""The reach of vectors that fill their ball: two of them may be as far apart as its diameter."""


def steps_moved(precision: int, squared_share: Fraction) -> int:
    """Return the least whole number of steps that two vectors are apart at most, of `precision` steps of a diameter.

    squared_share  the square of what two vectors can be apart in ℓ₂, over the square of the ball's diameter; in (0, 1].
    """
    square = math.ceil(squared_share * precision * precision)
    root = math.isqrt(square)
    return root if root * root == square else root + 1


@dataclass(frozen=True, slots=True)
class Copies:
    """A move that is made `count` times at once, as in all the nodes of a tree that a batch is in."""

    grid: "Grid"
    count: int

    @property
    def dimension(self) -> int:
        """Return the number of coordinates that have noise."""
        return self.count * self.grid.dimension

    @property
    def unrounded(self) -> int:
        """Return the squared ℓ₂ sensitivity before rounding."""
        return self.count * self.grid.unrounded

    @property
    def squared_l2(self) -> int:
        """Return a bound on the squared ℓ₂ sensitivity, rounding included."""
        return self.count * self.grid.squared_l2

    def log_moment(self, rate: float) -> float:
        """Return `Grid.log_moment` for all the copies, which are rounded alike."""
        return self.grid.log_moment(self.count * rate)


@dataclass(frozen=True, slots=True)
class Grid:
    """A client's range of moves: a vector of `dimension` coordinates, at most `precision` steps in `norm`.

    rounded  False: noise is added to the values themselves.
    """

    precision: int
    dimension: int
    norm: Norm
    rounded: bool = True

    @property
    def squared_l2(self) -> int:
        """Return a bound on the squared ℓ₂ sensitivity, rounding included where there is one."""
        if self.rounded:
            return squared_l2(self.precision, self.dimension, self.norm)
        return self.unrounded

    @property
    def unrounded(self) -> int:
        """Return the squared ℓ₂ sensitivity before rounding."""
        return self.precision**2 * (self.dimension if self.norm == "linf" else 1)

    def log_moment(self, rate: float) -> float:
        """Return a bound on ln E[e^(rate · S)], S the squared ℓ₂ length of a move after rounding; rate in 1/steps²."""
        mean, spread = self.rounded_moments
        most = rate * self.squared_l2
        return min(most, rate * mean + rate**2 * spread) if spread else most  # a square may be no double

    def at_most(self, chance: float, times: int = 1) -> float:
        """Return what S of `times` moves, rounded one after the other, adds up to at most, but for a probability."""
        # Whatever was released before, the next move has these moments, so that the moment of the sum is at most their
        # product. Markov's inequality, at the rate that gives the least.
        mean, spread = self.rounded_moments
        return min(times * self.squared_l2, times * mean + 2 * math.sqrt(times * spread * -math.log(chance)))

    @property
    def rounded_moments(self) -> tuple[float, float]:
        """Return m and c with ln E[e^(rate · S)] ≤ rate · m + rate² · c for every rate, S as for `log_moment`."""
        # A coordinate moved by d moves by s + B, s = ⌊d⌋, B ~ Bernoulli(f), f = d - s. Now (s + B)² - d² is
        # (2s + 1)(B - f) + f(1 - f). So by Hoeffding's lemma its moment is at most rate · f(1 - f) + rate² (2s + 1)²/8.
        # Summed up: f(1 - f) ≤ min(1/4, d) and (2s + 1)² ≤ 4 (d + 1/2)².
        if self.is_box or not self.rounded:  # from grid point to grid point
            return self.squared_l2, 0.0
        square = self.unrounded
        total = l1(self.precision, self.dimension, self.norm)
        return square + min(self.dimension / 4, total), (square + total + self.dimension / 4) / 2

    @property
    def is_box(self) -> bool:
        """Return whether every coordinate may move by `precision`, from grid point to grid point, independently."""
        return self.norm == "linf" or self.dimension == 1


def squared_l2(precision: int, dimension: int, norm: Norm) -> int:
    """Return a bound on Σ ⌈d_i⌉², the squared ℓ₂ sensitivity in grid steps."""
    # linf, and an upper bound for the others: every coordinate moves by g.
    # With ⌈d_i⌉ = j_i + 1 the sum is D + Σj_i² + 2Σj_i, where Σj_i² < g². l2: Σj_i ≤ √(D Σj_i²). l1: Σj_i < g as well,
    # and all of it in one coordinate is the worst.
    g, box = precision, precision * precision * dimension
    if norm == "linf":
        return box
    if norm == "l1":
        return min(box, dimension + g * g - 1)
    return min(box, dimension + g * g - 1 + 2 * math.isqrt(dimension * (g * g - 1)))


@lru_cache(maxsize=1024)
def grid_for(dimension: int, norm: Norm, sharpness: float = math.inf, inflation: float = INFLATION) -> int:
    """Return the least g for which rounding adds at most `inflation` of Gaussian noise's deviation.

    sharpness  λΔ₂², by which ln δ grows with the logarithm of Δ₂², or α(α-1)ρ for the moment of a Rényi order: the
               larger it is, the more the worst roundings count, not their mean. inf: only they count.
    """
    if norm == "linf" or dimension == 1:
        return 1

    def little(g: int) -> bool:
        if math.isinf(sharpness):
            return squared_l2(g, dimension, norm) <= (1 + inflation) ** 2 * g * g
        rate = sharpness / (g * g)
        return Grid(g, dimension, norm).log_moment(rate) <= (1 + inflation) ** 2 * sharpness

    return least_satisfying(little, 1)


def l1(precision: int, dimension: int, norm: Norm) -> float:
    """Return a bound on Σ d_i, the ℓ₁ sensitivity in grid steps before rounding."""
    return precision * {"linf": dimension, "l2": math.sqrt(dimension), "l1": 1}[norm]


def laplace_loss(scale: float, precision: int, dimension: int, norm: Norm) -> float:
    """Return ε of Lap_Z(scale) on every coordinate, rounding included."""
    # A coordinate that moves by d loses ⌊d⌋/a + h(d - ⌊d⌋) at most, a = scale, h(f) = ln(1 + f(e^(1/a) - 1)): the worst
    # outcome lies beyond both, the worst start on a grid point. The box's corners are grid points: rounding costs
    # nothing there. h is concave and exceeds f/a most at f = a - 1/(e^(1/a) - 1); all coordinates may stand there at
    # once.
    budget = l1(precision, dimension, norm)
    if norm == "linf" or dimension == 1:
        return budget / scale
    jump = math.expm1(1 / scale)
    fraction = min(scale - 1 / jump, budget / dimension)
    excess = math.log1p(fraction * jump) - fraction / scale
    return min(budget / scale + dimension * max(excess, 0.0), dimension * precision / scale)


@lru_cache(maxsize=1024)
def laplace_scale(epsilon: float, precision: int, dimension: int, norm: Norm = "linf") -> float:
    """Return the least scale whose loss is ε, rounded up, so that the noise is never smaller than the theorem's."""
    if norm == "linf" or dimension == 1:
        return _quotient(precision * dimension, epsilon)
    low, high = l1(precision, dimension, norm) / epsilon, precision * dimension / epsilon

    def excess(scale: float) -> float:
        return laplace_loss(scale, precision, dimension, norm) / epsilon - 1

    if high <= low or excess(high) > 0:
        return _quotient(precision * dimension, epsilon)
    root = low if excess(low) <= 0 else float(scipy.optimize.brentq(excess, low, high, xtol=SLACK * low))
    return min(snap_up(root * (1 + SLACK)), _quotient(precision * dimension, epsilon))


def drawn_scale(epsilon: float, precision: int, dimension: int, norm: Norm = "linf") -> float:
    """Return the scale Δ₁/ε of continuous noise on values that are not rounded before, rounded up."""
    if norm == "l2":
        return math.nextafter(l1(precision, dimension, norm) / epsilon, math.inf)
    return _quotient(precision * (dimension if norm == "linf" else 1), epsilon)


def _quotient(shift: int, epsilon: float) -> float:
    """Return the least double a with shift/a ≤ ε: ε itself is a double, and 1/0.0001 is 10,000 and not more."""
    scale = shift / epsilon
    while Fraction(scale) * Fraction(epsilon) < shift:
        scale = math.nextafter(scale, math.inf)
    return scale
