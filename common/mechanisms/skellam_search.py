"""The least Skellam noise, and the coarsest grid, that meet a target: searches over exactly computed privacy."""

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.optimize import brentq

from common.accounting import hockey_stick, law_epsilon, rdp
from common.mechanisms.base import Norm
from common.mechanisms.frame import ROUNDING
from common.mechanisms.moments import whole
from common.mechanisms.sensitivity import Grid
from common.mechanisms.spread import about_variance, grid_for, vector_epsilon, vector_rdp
from common.noise import Skellam
from common.noise.law import LIMIT

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Rényi orders that are computed; the larger ones are left out where their support would pass LIMIT entries."""

Pairs = tuple[tuple[float, float], ...]

NOT_ZERO, LARGEST = 1e-30, 1e30  # of a ratio that is searched through

SLACK = 1e-9  # relative accuracy of the search
VECTOR_SLACK = 1e-6  # and where ε at δ is itself the result of a search, over orders


@dataclass(frozen=True, slots=True)
class Target:
    """(ε, δ), or RDP(α) ≤ αε²/2 without δ, for one client's vector of `dimension` coordinates, bounded in `norm`."""

    epsilon: float
    delta: float | None
    dimension: int
    norm: Norm = "linf"

    @property
    def about(self) -> float:
        """The variance that Gaussian noise would need at g = 1, without rounding."""
        if self.delta is None:
            return (self.dimension if self.norm == "linf" else 1) / self.epsilon**2
        return about_variance(self.epsilon, self.delta, self.dimension, self.norm)

    @property
    def moment(self) -> float:
        """The moment of the order that decides how fine the grid must be; without δ it is the largest one's."""
        if self.delta is None:
            return ORDERS[-1] * (ORDERS[-1] - 1) * self.epsilon**2 / 2
        return math.log(1 / self.delta)


@lru_cache(maxsize=256)
def divergences(variance: float, shift: int, dimension: int, norm: Norm = "linf") -> Pairs:
    """(α, RDP(α)) of Sk(0, variance) in `dimension` coordinates: computed, for the box, whose corners move all by g.

    For l1 and l2 the bound of `spread` on the worst move, from the same computed moments.
    """
    margin = math.ceil(15 * math.sqrt(variance)) + 30
    orders = [order for order in ORDERS if (order - 1) * shift + margin <= LIMIT // 2] or [ORDERS[0]]
    pmf = Skellam(variance).pmf(least=math.ceil((orders[-1] - 1) * shift) + margin)
    grid = Grid(shift, dimension, norm)
    if not grid.is_box:
        losses = whole(pmf, margin)
        return tuple((order, vector_rdp(losses, order, grid)) for order in orders)
    return tuple((order, dimension * one) for order, one in zip(orders, rdp(pmf, shift, orders), strict=True))


@lru_cache(maxsize=1024)
def released_epsilon(variance: float, grid: Grid, delta: float) -> float:
    """The least proven ε at `delta` of Sk(0, variance) on every coordinate; exact for one; inf where there is none."""
    if grid.dimension == 1:
        return law_epsilon(Skellam(variance), grid.precision, delta)
    tails = math.ceil(10 * math.sqrt(variance)) + 40
    return vector_epsilon(Skellam(variance).pmf(least=tails + grid.precision), grid, delta)


@lru_cache(maxsize=256)
def least_variance(target: Target, shift: int) -> float:
    """The least variance that meets the target, to nine digits, six for (ε, δ) of vectors, and rounded up."""

    def excess(log_variance: float) -> float:
        return _excess(target, shift, math.exp(log_variance))

    slack = SLACK if target.delta is None or target.dimension == 1 else VECTOR_SLACK
    guess = math.log(target.about * shift**2)
    low, high = guess - 0.1, guess + 0.1
    while excess(low) <= 0:
        low -= 0.5
    while excess(high) > 0:
        high += 0.5
    found = float(brentq(excess, low, high, xtol=slack / 4))
    while excess(found) > 0:
        found += slack / 4
    return math.exp(found)


@lru_cache(maxsize=256)
def best_precision(target: Target, clients: int) -> int:
    """The least g whose rounding variance n/4 is at most a tenth of the least noise's; at least `grid_for`.

    For vectors the least noise is taken to be Gaussian noise's, and grows with g² at least.
    """
    wanted = clients / (4 * ROUNDING)
    g = max(1, math.ceil(math.sqrt(wanted / target.about)))
    if target.dimension > 1:
        return max(g, grid_for(target.dimension, target.norm, target.moment))
    g = max(1, math.ceil(g * math.sqrt(wanted / least_variance(target, g))))
    while least_variance(target, g) < wanted:
        g += 1
    while g > 1 and least_variance(target, g - 1) >= wanted:
        g -= 1
    return g


def _excess(target: Target, shift: int, variance: float) -> float:
    """Above 0 where the target is missed; falls as the variance grows."""
    grid = Grid(shift, target.dimension, target.norm)
    if target.delta is None:
        pairs = divergences(variance, shift, target.dimension, target.norm)
        return math.log(max(2 * spent / (order * target.epsilon**2) for order, spent in pairs))
    if target.dimension == 1:
        return math.log(hockey_stick(Skellam(variance).pmf(), shift, target.epsilon) / target.delta)
    found = released_epsilon(variance, grid, target.delta) / target.epsilon
    return math.log(min(max(found, NOT_ZERO), LARGEST))
