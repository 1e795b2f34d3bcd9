"""Privacy of discrete Gaussian noise on a grid, computed from the law of the sum; and the least noise for a target."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from scipy.optimize import brentq

from common.accounting import hockey_stick, law_epsilon, rdp
from common.gaussian_accounting import largest_ratio, zcdp_epsilon, zcdp_rho
from common.mechanisms import sensitivity
from common.mechanisms.base import Norm
from common.mechanisms.frame import ROUNDING
from common.mechanisms.moments import whole
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


def approximate(variance: float, terms: int, grid: Grid, delta: float) -> float:
    """The least ε at δ. One coordinate: exactly, from the law. A vector: what ρ gives, or else the law."""
    law = DiscreteGaussianSum(variance, terms)
    if grid.dimension == 1:
        return law_epsilon(law, grid.precision, delta)
    if is_gaussian(variance, terms):
        return zcdp_epsilon(grid.squared_l2 / (2 * terms * variance), delta)[0]
    tails = math.ceil(10 * law.std) + 40
    return vector_epsilon(law.pmf(least=tails + grid.precision), grid, delta)


@lru_cache(maxsize=256)
def least_variance(target: Target, grid: Grid) -> float:
    """The least total parameter, `terms` times a share's, that meets the target: to nine digits and rounded up."""
    guess = _continuous(target, grid)
    if target.delta is None and is_gaussian(guess / target.terms, target.terms):
        return math.nextafter(guess, math.inf)
    slack = SLACK if target.delta is None or grid.dimension == 1 else VECTOR_SLACK
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


def least_root(excess: Callable[[float], float], guess: float, slack: float = SLACK) -> float:
    """The least variance with excess ≤ 0, to a relative accuracy and rounded up; excess falls."""

    def at(log_variance: float) -> float:
        return excess(math.exp(log_variance))

    low, high = math.log(guess) - 0.02, math.log(guess) + 0.02
    while at(low) <= 0:
        low -= 0.2
    while at(high) > 0:
        high += 0.2
    found = float(brentq(at, low, high, xtol=slack / 4))
    while at(found) > 0:
        found += slack / 4
    return math.exp(found)


def coarsest(noise: Callable[[int], float], wanted: float, about: float) -> int:
    """The least g with noise(g) ≥ wanted, for a variance that grows about as g².

    about  noise(1), roughly: on a coarse grid with little noise the law itself is slow to compute.
    """
    g = max(1, math.ceil(math.sqrt(wanted / about)))
    g = max(1, math.ceil(g * math.sqrt(wanted / noise(g))))
    while noise(g) < wanted:
        g += 1
    while g > 1 and noise(g - 1) >= wanted:
        g -= 1
    return g


def _continuous(target: Target, grid: Grid) -> float:
    """What continuous noise would need; exact for CDP, a first guess otherwise."""
    if target.delta is None:
        return grid.squared_l2 / target.epsilon**2
    if grid.dimension == 1:
        return grid.squared_l2 / largest_ratio(target.epsilon, target.delta) ** 2
    return grid.squared_l2 / (2 * zcdp_rho(target.epsilon, target.delta))


def _excess(target: Target, grid: Grid, variance: float) -> float:
    """Above 0 where the target is missed; falls as the variance grows."""
    share = variance / target.terms
    if target.delta is None:
        pairs = divergences(share, target.terms, grid)
        return math.log(max(2 * spent / (order * target.epsilon**2) for order, spent in pairs))
    if grid.dimension == 1:
        pmf = DiscreteGaussianSum(share, target.terms).pmf()
        return math.log(hockey_stick(pmf, grid.precision, target.epsilon) / target.delta)
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
