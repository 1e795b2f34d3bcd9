"""The least Skellam noise, and the coarsest grid, that meet a target: searches over exactly computed privacy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.base import Norm
from distrust.common.mechanisms.calibration import vector_bounds
from distrust.common.mechanisms.calibration.roots import coarsest, least_root, snap_up
from distrust.common.mechanisms.calibration.sensitivity import Grid, grid_for
from distrust.common.mechanisms.calibration.vector_bounds import vector_epsilon, vector_rdp, vector_variance, whole
from distrust.common.mechanisms.cohort_params import ROUNDING
from distrust.common.noise.law import LIMIT
from distrust.common.noise.skellam import Skellam
from distrust.common.privacy.gaussian import largest_ratio, log_gaussian_slope
from distrust.common.privacy.hockey_stick import law_delta, law_epsilon, rdp, stretched

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Rényi orders that are computed; the larger ones are left out where their support would pass LIMIT entries."""

Pairs = tuple[tuple[float, float], ...]


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
        squared = self.dimension if self.norm == "linf" else 1
        if self.delta is None:
            return squared / self.epsilon**2
        return squared / largest_ratio(self.epsilon, self.delta) ** 2

    @property
    def moment(self) -> float:
        """The moment of the order that decides how fine a grid `spread.grid_for` takes."""
        if self.delta is None:
            return ORDERS[-1] * (ORDERS[-1] - 1) * self.epsilon**2 / 2
        return math.log(1 / self.delta)

    @property
    def sharpness(self) -> float:
        """How much rounding counts, for `grid_for`: of (ε, δ), or of the largest Rényi order."""
        if self.delta is None:
            return self.moment
        return log_gaussian_slope(largest_ratio(self.epsilon, self.delta), self.epsilon) / 2


@lru_cache(maxsize=256)
def divergences(
    variance: float, shift: int, dimension: int, norm: Norm = "linf", orders: tuple[float, ...] = ORDERS
) -> Pairs:
    """Return (α, RDP(α)) of Sk(0, variance) in `dimension` coordinates: computed, for the box, whose corners move by g.

    For l1 and l2 the bound of `spread` on the worst move, from the same computed moments. Empty where the support that
    the lowest order needs would pass LIMIT entries.
    """
    margin = math.ceil(15 * math.sqrt(variance)) + 30
    known = [order for order in orders if order * shift + margin <= LIMIT]
    if not known:
        return ()
    pmf = Skellam(variance).pmf(least=math.ceil(known[-1] * shift) + margin)
    grid = Grid(shift, dimension, norm)
    if not grid.is_box:
        losses = whole(pmf, margin)
        return tuple((order, vector_rdp(losses, order, grid)) for order in known)
    return tuple((order, dimension * one) for order, one in zip(known, rdp(pmf, shift, known), strict=True))


@lru_cache(maxsize=1024)
def released_epsilon(variance: float, grid: Grid, delta: float) -> float:
    """Return the least proven ε at `delta` of Sk(0, variance) on every coordinate; exact for one; inf where none is."""
    law = Skellam(variance)
    if grid.dimension == 1:
        return law_epsilon(law, grid.precision, delta)
    return vector_epsilon(stretched(law, grid.precision), grid, delta, gaussian=True)


@lru_cache(maxsize=256)
def least_variance(target: Target, shift: int) -> float:
    """Return the least variance that meets the target, snapped upwards."""
    grid = Grid(shift, target.dimension, target.norm)
    if target.delta is not None and target.dimension > 1:
        found = snap_up(vector_variance(Skellam, grid, target.epsilon, target.delta))
        while released_epsilon(found, grid, target.delta) > target.epsilon:  # a bound by moments has rough digits
            found = snap_up(found)
        return found
    guess = target.about * shift**2
    delta = target.delta
    if delta is None:
        return _of_renyi(target, grid, guess)
    return snap_up(least_root(lambda v: math.log(law_delta(Skellam(v), shift, target.epsilon) / delta), guess))


@lru_cache(maxsize=256)
def best_precision(target: Target, clients: int) -> int:
    """Return the least g whose rounding variance n/4 is at most a tenth of the least noise's; at least `grid_for`.

    For vectors the least noise is taken to be Gaussian noise's, and grows with g² at least. In a ball the better of two
    grids: one on which rounding takes no more than INFLATION, and a coarser one, because few steps of noise have tails
    that tell less than a Gaussian's, which helps a large ε.
    """
    wanted = clients / (4 * ROUNDING)
    if target.dimension == 1:
        return coarsest(lambda g: least_variance(target, g), wanted, target.about)
    fine = max(1, math.ceil(math.sqrt(wanted / snap_up(target.about))))
    ball = (target.dimension, target.norm)
    grids = {max(fine, grid_for(*ball, target.sharpness)), max(fine, vector_bounds.grid_for(*ball, target.moment))}
    return min(sorted(grids), key=lambda g: _error(target, g, clients)) if len(grids) > 1 else grids.pop()


def _error(target: Target, precision: int, clients: int) -> float:
    """Return the variance of a sum, rounding included, in the data's units; inf where the law is too long."""
    try:
        return snap_up((least_variance(target, precision) + clients / 4) / precision**2)
    except BadParameter:
        return math.inf


def _of_renyi(target: Target, grid: Grid, guess: float) -> float:
    """Return the least variance, snapped upwards, by searches with the one order that binds where the last one ended.

    That order is not met there, so that every search ends farther up; the last one ends where all orders are met.
    """
    found, tried, (_, order) = 0.0, set[float](), _worst(target, grid, guess)
    while order not in tried:
        tried.add(order)
        found = max(found, snap_up(least_root(_only(target, grid, order), guess)))
        guess, (_, order) = found, _worst(target, grid, found)
    return found


def _only(target: Target, grid: Grid, order: float) -> Callable[[float], float]:
    return lambda variance: _worst(target, grid, variance, (order,))[0]


def _worst(target: Target, grid: Grid, variance: float, orders: tuple[float, ...] = ORDERS) -> tuple[float, float]:
    """Return the logarithm of the largest RDP(α) / (αε²/2), which falls as the variance grows, and its α.

    orders  that are looked at; all of them where the support that these need is too long.
    """
    law = (variance, grid.precision, grid.dimension, grid.norm)
    pairs = divergences(*law, orders) or divergences(*law)
    if not pairs:
        rule = f"the law that Rényi orders need has more than {LIMIT} entries: raise epsilon or give a delta"
        raise BadParameter("mechanism.epsilon", target.epsilon, rule)
    worst, order = max((2 * spent / (order * target.epsilon**2), order) for order, spent in pairs)
    return math.log(worst), order
