"""How far one client can move the integer vector of a grid: rounding inflates ℓ₁ and ℓ₂, and ε must pay for it.

Two vectors w, w' on the grid differ by at most g in their norm before they are rounded. Both are rounded with the same
uniform numbers (joint convexity lets us choose how), so that coordinate i moves by ⌊d_i⌋ or ⌈d_i⌉, d_i = |w_i - w'_i|.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.optimize import brentq

from common.mechanisms.base import Norm

INFLATION = 0.1
"""Share that rounding may add to a vector's sensitivity where the grid is ours to choose."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What one client can move: a vector of `dimension` coordinates, at most `precision` steps in `norm`.

    rounded  False: noise is added to the values themselves.
    """

    precision: int
    dimension: int
    norm: Norm
    rounded: bool = True

    @property
    def squared_l2(self) -> int:
        """Bound on the squared ℓ₂ sensitivity, rounding included where there is one."""
        if self.rounded:
            return squared_l2(self.precision, self.dimension, self.norm)
        return self.precision**2 * (self.dimension if self.norm == "linf" else 1)

    @property
    def is_box(self) -> bool:
        """Every coordinate may move by `precision`, whatever the others do: from a grid point to a grid point."""
        return self.norm == "linf" or self.dimension == 1


def squared_l2(precision: int, dimension: int, norm: Norm) -> int:
    """Bound on Σ ⌈d_i⌉², the squared ℓ₂ sensitivity in grid steps.

    With ⌈d_i⌉ = j_i + 1 it is D + Σj_i² + 2Σj_i, where Σj_i² < g². l2: Σj_i ≤ √(D Σj_i²). l1: Σj_i < g as well, and all
    of it in one coordinate is the worst. linf, and an upper bound for the others: every coordinate moves by g.
    """
    g, box = precision, precision * precision * dimension
    if norm == "linf":
        return box
    if norm == "l1":
        return min(box, dimension + g * g - 1)
    return min(box, dimension + g * g - 1 + 2 * math.isqrt(dimension * (g * g - 1)))


def grid_for(dimension: int, norm: Norm, inflation: float = INFLATION) -> int:
    """The least g for which rounding adds at most a tenth to the ℓ₂ sensitivity: about 10√D in an ℓ₂ ball."""
    if norm == "linf" or dimension == 1:
        return 1
    most = (1 + inflation) ** 2
    g = max(1, math.floor(math.sqrt(dimension)))
    while squared_l2(g, dimension, norm) > most * g * g:
        g += 1
    return g


def l1(precision: int, dimension: int, norm: Norm) -> float:
    """Bound on Σ d_i, the ℓ₁ sensitivity in grid steps before rounding."""
    return precision * {"linf": dimension, "l2": math.sqrt(dimension), "l1": 1}[norm]


def laplace_loss(scale: float, precision: int, dimension: int, norm: Norm) -> float:
    """ε of Lap_Z(scale) on every coordinate, rounding included.

    A coordinate that moves by d loses ⌊d⌋/a + h(d - ⌊d⌋) at most, a = scale, h(f) = ln(1 + f(e^(1/a) - 1)): the worst
    outcome lies beyond both, the worst start on a grid point. h is concave and exceeds f/a most at
    f = a - 1/(e^(1/a) - 1); all coordinates may stand there at once. The box's corners are grid points: nothing is
    lost there by rounding.
    """
    budget = l1(precision, dimension, norm)
    if norm == "linf" or dimension == 1:
        return budget / scale
    jump = math.expm1(1 / scale)
    fraction = min(scale - 1 / jump, budget / dimension)
    excess = math.log1p(fraction * jump) - fraction / scale
    return min(budget / scale + dimension * max(excess, 0.0), dimension * precision / scale)


@lru_cache(maxsize=1024)
def laplace_scale(epsilon: float, precision: int, dimension: int, norm: Norm = "linf") -> float:
    """The least scale whose loss is ε, rounded up, so that the noise is never smaller than the theorem's."""
    if norm == "linf" or dimension == 1:
        return math.nextafter(precision * dimension / epsilon, math.inf)
    low, high = l1(precision, dimension, norm) / epsilon, precision * dimension / epsilon

    def excess(scale: float) -> float:
        return laplace_loss(scale, precision, dimension, norm) / epsilon - 1

    if high <= low or excess(high) > 0:
        return math.nextafter(high, math.inf)
    found = low if excess(low) <= 0 else float(brentq(excess, low, high, xtol=1e-13 * low))
    while excess(found) > 0:
        found *= 1 + 1e-13
    return found


def drawn_scale(epsilon: float, precision: int, dimension: int, norm: Norm = "linf") -> float:
    """The scale Δ₁/ε of continuous noise on values that are not rounded before, rounded up."""
    return math.nextafter(l1(precision, dimension, norm) / epsilon, math.inf)
