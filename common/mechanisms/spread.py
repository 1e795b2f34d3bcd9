"""The worst spread of one client's move over the coordinates: privacy of vectors that are bounded in a norm.

A client moves coordinate i of the grid by d_i ≤ g, Σ d_i ≤ g (l1), Σ d_i² ≤ g² (l2) or anything (linf). Both ends are
rounded with the same uniform numbers, one for each coordinate, so that the sum moves by ⌈d_i⌉ with probability
f_i = d_i - ⌊d_i⌋, else by ⌊d_i⌋, independently. With M(s) the moment E[(p(x)/p(x - s))^(α-1)] of one coordinate, joint
convexity bounds the moment of the whole vector by Π (1 - f_i) M(⌊d_i⌋) + f_i M(⌈d_i⌉). Its logarithm Σ φ(d_i) has its
maximum somewhere in the ball; Lagrange's dual λ g^q + D max_d (φ(d) - λ d^q), q = 1 or 2, is above it for every λ ≥ 0,
and the least over λ is the bound. ln M is convex in s, so that shifts between two computed ones lie below their chord.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from common.gaussian_accounting import largest_ratio, zcdp_rho
from common.mechanisms.base import Norm
from common.mechanisms.frame import least
from common.mechanisms.moments import Losses, central
from common.mechanisms.sensitivity import INFLATION, Grid
from common.mechanisms.tops import Intervals
from common.noise.law import Pmf
from common.product_accounting import product_epsilon

SINGLE = 16
"""Shifts up to here are computed one by one, larger ones an eighth apart: their chords are less than 0.4 % too high."""

LEAST_VARIANCE = 1e-9
"""Share of g² below which noise that is nearly always 0 is taken for none: orders so near 1 have no digits left."""

SPARED = 0.01
"""Share of δ for what lies beside the middle of the law."""


@lru_cache(maxsize=1024)
def grid_for(dimension: int, norm: Norm, moment: float) -> int:
    """The least g, about, for which rounding adds at most a tenth to a ball's ℓ₂ sensitivity.

    moment  ln E[e^((α-1) loss)] of Gaussian noise without rounding at the order α that will decide: about ln(1/δ) for
            (ε, δ). The larger it is, the more it is the larger of the two roundings that counts, not their mean.
    """
    if norm == "linf" or dimension == 1:
        return 1

    def little(precision: int) -> bool:
        shifts = _shifts(precision)
        return _worst(shifts, moment * (shifts / precision) ** 2, dimension, norm) <= (1 + INFLATION) ** 2 * moment

    return least(little, 1)


def about_variance(epsilon: float, delta: float, dimension: int, norm: Norm) -> float:
    """What Gaussian noise would need at g = 1, without rounding: where searches begin."""
    if norm == "linf" or dimension == 1:
        return dimension / largest_ratio(epsilon, delta) ** 2
    return 1 / (2 * zcdp_rho(epsilon, delta))


def log_moment(losses: Losses, order: float, grid: Grid) -> float:
    """Bound on ln E[e^((α-1) loss)], α = `order` > 1, of a vector's worst move: (α - 1) times the Rényi divergence."""
    if grid.is_box:
        return grid.dimension * losses.at(grid.precision, order)
    shifts = _shifts(grid.precision)
    logs = np.array([losses.at(int(shift), order) for shift in shifts])
    return _worst(shifts, logs, grid.dimension, grid.norm) if np.isfinite(logs).all() else math.inf


def vector_rdp(losses: Losses, order: float, grid: Grid) -> float:
    """Bound on the Rényi divergence of `order` of a vector's worst move; for the box, exact."""
    return log_moment(losses, order, grid) / (order - 1)


def vector_epsilon(pmf: Pmf, grid: Grid, delta: float, *, both: bool = False) -> float:
    """The least ε at `delta` that is proven for noise `pmf` on every coordinate; inf where there is none.

    Domain  a log-concave law; `both` if it is not symmetric. A box, the norm being linf, moves from corner to corner:
            composed exactly. The others: Rényi moments, or the box that they lie in where that is better.
    """
    boxed = math.inf if both else product_epsilon(pmf, grid.precision, grid.dimension, delta)
    if grid.is_box and math.isfinite(boxed):
        return boxed
    return min(boxed, _by_moments(pmf, grid, delta, both=both))


def _by_moments(pmf: Pmf, grid: Grid, delta: float, *, both: bool) -> float:
    """δ ≤ what lies beside the middle in any coordinate + M e^(-(α-1)ε) (1 - 1/α)^(α-1) / α, for every α."""
    losses, beside = central(pmf, grid.precision, SPARED * delta / grid.dimension, both=both)
    left = delta - grid.dimension * beside
    if left <= 0:
        return math.inf

    def spent(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        moment = log_moment(losses, order, grid)
        return moment / (order - 1) + math.log1p(-1 / order) - math.log(left * order) / (order - 1)

    variance = float(pmf.masses @ (pmf.support - pmf.support @ pmf.masses) ** 2)
    if variance < LEAST_VARIANCE * grid.precision**2:
        return math.inf
    guess = _gaussian_order(variance, grid, left)
    best = minimize_scalar(spent, bounds=(guess - 1.5, guess + 1.5), method="bounded", options={"xatol": 1e-3})
    return max(0.0, float(best.fun))


def _gaussian_order(variance: float, grid: Grid, delta: float) -> float:
    """About ln(α - 1) of the best order, which is where a Gaussian of that variance has it."""
    squared = grid.precision**2 * (grid.dimension if grid.norm == "linf" else 1)
    return math.log(2 * math.log(1 / delta) * variance / squared) / 2


def _shifts(precision: int) -> NDArray[np.int64]:
    """0, 1, …, and above SINGLE about an eighth apart, up to g - 1 and g, the worst of which is not to be blurred."""
    shifts = list(range(min(SINGLE, precision) + 1))
    while shifts[-1] < precision - 1:
        shifts.append(min(precision - 1, shifts[-1] + shifts[-1] // 8))
    return np.array(shifts if shifts[-1] == precision else [*shifts, precision])


def _worst(shifts: NDArray[np.int64], logs: NDArray[np.float64], dimension: int, norm: Norm) -> float:
    """The least of the dual, from ln M at the shifts up to g."""
    intervals, power = Intervals.of(shifts, logs), 1 if norm == "l1" else 2
    budget = float(shifts[-1]) ** power
    unit = max(float(logs[-1]), 1e-300) / budget

    def dual(log_price: float) -> float:
        price = unit * math.exp(log_price)
        return price * budget + dimension * max(0.0, intervals.highest(price, power))

    far = 1 + math.log1p(dimension) / 2 + math.log(shifts[-1])
    found = minimize_scalar(dual, bounds=(-3.0, far), method="bounded", options={"xatol": 1e-4})
    return min(float(found.fun), dual(0.0))
