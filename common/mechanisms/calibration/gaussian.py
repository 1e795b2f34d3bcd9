"""Privacy of discrete Gaussian noise on a grid, computed from the law of the sum; and the least noise for a target."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from distrust.common.mechanisms.base import Norm
from distrust.common.mechanisms.calibration import sensitivity
from distrust.common.mechanisms.calibration.gaussian_vectors import (
    box_epsilon,
    fits,
    lattice_epsilon,
    lattice_variance,
    log_delta,
    renyi,
)
from distrust.common.mechanisms.calibration.roots import coarsest, least_root, snap_up
from distrust.common.mechanisms.calibration.sensitivity import grid_for
from distrust.common.mechanisms.calibration.skellam import ORDERS
from distrust.common.mechanisms.calibration.vector_bounds import vector_epsilon, vector_rdp, vector_variance, whole
from distrust.common.mechanisms.cohort_params import ROUNDING
from distrust.common.noise.discrete_gaussian import DiscreteGaussianSum, is_gaussian
from distrust.common.noise.law import LIMIT
from distrust.common.privacy.gaussian import largest_ratio, log_gaussian_slope
from distrust.common.privacy.hockey_stick import law_delta, law_epsilon, rdp, stretched

Pairs = tuple[tuple[float, float], ...]


Grid: TypeAlias = sensitivity.Grid
"""What one client can move."""


@dataclass(frozen=True, slots=True)
class Target:
    """(ε, δ), or ½ε²-CDP when δ is absent, out of `terms` equal shares."""

    epsilon: float
    delta: float | None
    terms: int


def divergences(variance: float, terms: int, grid: Grid) -> Pairs:
    """Return (α, RDP(α)) of a sum of `terms` N_Z(0, variance) on every coordinate: αρ, or of the convolved law."""
    if is_gaussian(variance, terms):
        return tuple((order, renyi(grid, terms * variance, order)) for order in ORDERS)
    return _convolved(variance, terms, grid)


def is_exact(variance: float, terms: int, grid: Grid) -> bool:
    """Return whether `approximate` is what the law gives: for one coordinate, and for a box of shares not too small."""
    return grid.dimension == 1 or _is_one_sum(variance, terms, grid)


def approximate(variance: float, terms: int, grid: Grid, delta: float) -> float:
    """Return an ε at δ. One coordinate, and the box: the law's, exactly. Else as continuous noise."""
    law = DiscreteGaussianSum(variance, terms)
    if grid.dimension == 1:
        return law_epsilon(law, grid.precision, delta)
    if _is_one_sum(variance, terms, grid):
        return box_epsilon(terms * variance, grid, delta)
    if is_gaussian(variance, terms):
        return lattice_epsilon(grid, terms * variance, delta)
    return vector_epsilon(stretched(law, grid.precision), grid, delta, gaussian=True)


@lru_cache(maxsize=256)
def least_variance(target: Target, grid: Grid) -> float:
    """Return the least total parameter, `terms` times a share's, that meets the target; snapped upwards.

    In a ball, and in a box whose sum is too long to be stored, ROUNDED more than that at most.
    """
    guess = _continuous(target, grid)
    gaussian = is_gaussian(guess / target.terms, target.terms)
    if gaussian and target.delta is None and grid.is_box:
        return math.nextafter(guess, math.inf)  # a quotient: the same on every machine
    if gaussian and target.delta is not None and not is_exact(guess / target.terms, target.terms, grid):
        return snap_up(lattice_variance(grid, target.epsilon, target.delta))
    if target.delta is None or is_exact(guess / target.terms, target.terms, grid):
        return snap_up(least_root(lambda variance: _excess(target, grid, variance), guess))

    def law(variance: float) -> DiscreteGaussianSum:
        return DiscreteGaussianSum(variance / target.terms, target.terms)

    found = snap_up(vector_variance(law, grid, target.epsilon, target.delta))
    while approximate(found / target.terms, target.terms, grid, target.delta) > target.epsilon:  # rough digits
        found = snap_up(found)
    return found


@lru_cache(maxsize=256)
def best_precision(target: Target, dimension: int, norm: Norm, clients: int, share: float = ROUNDING) -> int:
    """Return the least g whose rounding variance, `clients`/4, is at most `share` of the least noise's.

    In a ball also the least where rounding takes at most INFLATION more noise. For vectors the least noise is taken to
    be that of continuous noise, which the search for it begins with.
    """
    wanted = clients / (4 * share)

    def noise(g: int) -> float:
        grid = Grid(g, dimension, norm)
        return least_variance(target, grid) if dimension == 1 else snap_up(_continuous(target, grid))

    about = _continuous(target, Grid(1, dimension, norm))
    return max(coarsest(noise, wanted, about), grid_for(dimension, norm, sharpness(target)))


def sharpness(target: Target) -> float:
    """Return how much rounding counts, for `grid_for`: of (ε, δ), or of the largest Rényi order."""
    if target.delta is None:
        return ORDERS[-1] * (ORDERS[-1] - 1) * target.epsilon**2 / 2
    ratio = largest_ratio(target.epsilon, target.delta)
    return log_gaussian_slope(ratio, target.epsilon) / 2


def _is_one_sum(variance: float, terms: int, grid: Grid) -> bool:
    """Return whether the coordinates are discrete Gaussians of a box, whose sum can be computed with."""
    return grid.is_box and is_gaussian(variance, terms) and fits(terms * variance, grid)


def _continuous(target: Target, grid: Grid) -> float:
    """Return what continuous noise would need without rounding; exact for CDP in a box, a first guess otherwise."""
    if target.delta is None:
        return grid.unrounded / target.epsilon**2
    return grid.unrounded / largest_ratio(target.epsilon, target.delta) ** 2


def _excess(target: Target, grid: Grid, variance: float) -> float:
    """Return a number above 0 where the target is missed; it falls as the variance grows."""
    share = variance / target.terms
    if target.delta is None:
        pairs = divergences(share, target.terms, grid)
        return math.log(max(2 * spent / (order * target.epsilon**2) for order, spent in pairs))
    if grid.dimension == 1:
        law = DiscreteGaussianSum(share, target.terms)
        return math.log(law_delta(law, grid.precision, target.epsilon) / target.delta)
    return log_delta(variance, grid, target.epsilon) - math.log(target.delta)


@lru_cache(maxsize=64)
def _convolved(variance: float, terms: int, grid: Grid) -> Pairs:
    """Every coordinate by g for the box; else the bound of `spread` on the worst move."""
    margin = math.ceil(15 * math.sqrt(terms * variance)) + 30
    orders = [order for order in ORDERS if order * grid.precision + margin <= LIMIT // 2] or [ORDERS[0]]
    pmf = DiscreteGaussianSum(variance, terms).pmf(least=math.ceil(orders[-1] * grid.precision) + margin)
    if not grid.is_box:
        losses = whole(pmf, margin)
        return tuple((order, vector_rdp(losses, order, grid)) for order in orders)
    spent = rdp(pmf, grid.precision, orders)
    return tuple((order, grid.dimension * one) for order, one in zip(orders, spent, strict=True))
