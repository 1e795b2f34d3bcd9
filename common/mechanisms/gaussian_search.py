"""Privacy of discrete Gaussian noise on a grid, computed from the law of the sum; and the least noise for a target."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from common.accounting import hockey_stick, law_epsilon, rdp
from common.gaussian_accounting import ROUNDED, largest_ratio, lattice_epsilon, lattice_variance
from common.mechanisms import sensitivity
from common.mechanisms.base import Norm
from common.mechanisms.frame import ROUNDING
from common.mechanisms.gaussian_box import box_epsilon, fits, log_delta
from common.mechanisms.moments import whole
from common.mechanisms.roots import coarsest, least_root
from common.mechanisms.sensitivity import grid_for
from common.mechanisms.skellam_search import ORDERS, SLACK, VECTOR_SLACK
from common.mechanisms.spread import vector_epsilon, vector_rdp
from common.noise import DiscreteGaussianSum
from common.noise.discrete_gaussian_sum import is_gaussian
from common.noise.law import LIMIT

LARGEST = 1e30  # of a ratio that is searched through

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
    """(α, RDP(α)) of a sum of `terms` N_Z(0, variance) on every coordinate: αρ, or what the convolved law has."""
    if is_gaussian(variance, terms):
        rho = grid.squared_l2 / (2 * terms * variance)
        return tuple((order, order * rho) for order in ORDERS)
    return _convolved(variance, terms, grid)


def is_exact(variance: float, terms: int, grid: Grid) -> bool:
    """Whether `approximate` is what the law gives: for one coordinate always, for a box where shares are not small."""
    return grid.dimension == 1 or _is_one_sum(variance, terms, grid)


def approximate(variance: float, terms: int, grid: Grid, delta: float) -> float:
    """An ε at δ. One coordinate, and the box: the law's, exactly. Else as continuous noise, or by the law's moments."""
    law = DiscreteGaussianSum(variance, terms)
    if grid.dimension == 1:
        return law_epsilon(law, grid.precision, delta)
    if _is_one_sum(variance, terms, grid):
        return box_epsilon(terms * variance, grid, delta)
    if is_gaussian(variance, terms):
        return lattice_epsilon(grid.squared_l2, terms * variance, grid.dimension, delta)
    tails = math.ceil(10 * law.std) + 40
    return vector_epsilon(law.pmf(least=tails + grid.precision), grid, delta)


@lru_cache(maxsize=256)
def least_variance(target: Target, grid: Grid) -> float:
    """The least total parameter, `terms` times a share's, that meets the target: to nine digits and rounded up.

    In a ball, and in a box above 1.5 million steps squared, ROUNDED more than that at most. Small shares: six digits.
    """
    guess = _continuous(target, grid)
    one = grid.dimension == 1 or _is_one_sum(guess / target.terms, target.terms, grid)
    if is_gaussian(guess / target.terms, target.terms):
        if target.delta is None:
            return math.nextafter(guess, math.inf)
        if not one or (grid.dimension > 1 and guess * VECTOR_SLACK > ROUNDED):  # a search would leave as much
            return lattice_variance(grid.squared_l2, grid.dimension, target.epsilon, target.delta)
    slack = SLACK if target.delta is None or one else VECTOR_SLACK
    return least_root(lambda variance: _excess(target, grid, variance), guess, slack)


@lru_cache(maxsize=256)
def best_precision(target: Target, dimension: int, norm: Norm, clients: int, share: float = ROUNDING) -> int:
    """The least g whose rounding variance, `clients`/4, is at most `share` of the least noise's, and `grid_for`.

    For vectors the least noise is taken to be that of continuous noise, which the search for it begins with.
    """
    wanted = clients / (4 * share)

    def noise(g: int) -> float:
        grid = Grid(g, dimension, norm)
        return least_variance(target, grid) if dimension == 1 else _continuous(target, grid)

    return max(coarsest(noise, wanted, _continuous(target, Grid(1, dimension, norm))), grid_for(dimension, norm))


def _is_one_sum(variance: float, terms: int, grid: Grid) -> bool:
    """Whether the coordinates are discrete Gaussians of a box, whose sum can be computed with."""
    return grid.is_box and is_gaussian(variance, terms) and fits(terms * variance, grid)


def _continuous(target: Target, grid: Grid) -> float:
    """What continuous noise would need; exact for CDP, a first guess otherwise."""
    if target.delta is None:
        return grid.squared_l2 / target.epsilon**2
    return grid.squared_l2 / largest_ratio(target.epsilon, target.delta) ** 2


def _excess(target: Target, grid: Grid, variance: float) -> float:
    """Above 0 where the target is missed; falls as the variance grows."""
    share = variance / target.terms
    if target.delta is None:
        pairs = divergences(share, target.terms, grid)
        return math.log(max(2 * spent / (order * target.epsilon**2) for order, spent in pairs))
    if grid.dimension == 1:
        pmf = DiscreteGaussianSum(share, target.terms).pmf()
        return math.log(hockey_stick(pmf, grid.precision, target.epsilon) / target.delta)
    if _is_one_sum(share, target.terms, grid):
        return log_delta(variance, grid, target.epsilon) - math.log(target.delta)
    found = approximate(share, target.terms, grid, target.delta) / target.epsilon
    return math.log(min(max(found, 1 / LARGEST), LARGEST))


@lru_cache(maxsize=64)
def _convolved(variance: float, terms: int, grid: Grid) -> Pairs:
    """Every coordinate by g for the box; else the bound of `spread` on the worst move."""
    margin = math.ceil(15 * math.sqrt(terms * variance)) + 30
    orders = [order for order in ORDERS if (order - 1) * grid.precision + margin <= LIMIT // 2] or [ORDERS[0]]
    pmf = DiscreteGaussianSum(variance, terms).pmf(least=math.ceil((orders[-1] - 1) * grid.precision) + margin)
    if not grid.is_box:
        losses = whole(pmf, margin)
        return tuple((order, vector_rdp(losses, order, grid)) for order in orders)
    spent = rdp(pmf, grid.precision, orders)
    return tuple((order, grid.dimension * one) for order, one in zip(orders, spent, strict=True))
