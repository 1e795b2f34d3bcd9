"""Discrete Gaussian noise on every coordinate of a box, exactly: all its coordinates tell no more than their sum.

The loss ln P(x)/P(x + g) of a coordinate with law N_Z(0, v) is (2gx + g²)/(2v), linear in x, so that the D losses add
up to a function of Σ x_i: the likelihood ratio of that sum, D terms of N_Z(0, v), and its shift by Dg.
"""

import math
from functools import lru_cache

import numpy as np

from common.accounting import LARGEST_EPSILON
from common.gaussian_accounting import gaussian_epsilon
from common.mechanisms.roots import least_root
from common.mechanisms.sensitivity import Grid
from common.noise import DiscreteGaussianSum
from common.noise.discrete_gaussian import gaussian_reach
from common.noise.law import LIMIT, LOST, Pmf

LEAST_EPSILON = 1e-9  # where the search for a small ε begins
NOT_ZERO = 1e-300  # of a mass whose logarithm is taken
SLACK = 1e-11  # relative, of ε, upwards


def fits(variance: float, grid: Grid) -> bool:
    """Whether the box's sum, and its shift, have a support that is worth its memory."""
    return _last(variance, grid) <= LIMIT


def log_delta(variance: float, grid: Grid, epsilon: float) -> float:
    """Logarithm of δ(ε) of N_Z(0, variance) on every coordinate of a box that `fits`."""
    return _log_delta(_pmf(variance, grid), grid.dimension * grid.precision, epsilon)


@lru_cache(maxsize=256)
def box_epsilon(variance: float, grid: Grid, delta: float) -> float:
    """The least ε at `delta`, to ten digits and rounded up; inf where no ε below 10⁴ will do. The box must fit."""
    pmf, shift = _pmf(variance, grid), grid.dimension * grid.precision

    def excess(epsilon: float) -> float:
        return _log_delta(pmf, shift, epsilon) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    if excess(LARGEST_EPSILON) > 0:
        return math.inf
    guess = gaussian_epsilon(math.sqrt(grid.squared_l2 / variance), delta)
    return least_root(excess, min(max(guess, LEAST_EPSILON), LARGEST_EPSILON), SLACK)


def _last(variance: float, grid: Grid) -> int:
    """So far out that e^ε times what lies beyond is nothing, next to any δ that ε is asked at."""
    return gaussian_reach(grid.dimension * variance, LOST) + grid.dimension * grid.precision


def _pmf(variance: float, grid: Grid) -> Pmf:
    return DiscreteGaussianSum(variance, grid.dimension).pmf(least=_last(variance, grid))


def _log_delta(pmf: Pmf, shift: int, epsilon: float) -> float:
    """Logarithm of Σ (P(y) - e^ε P(y + shift))₊ and the mass left out.

    The losses grow, so that one tail is looked at; the law is symmetric, so that one direction is.
    """
    logs, common = pmf.logs, pmf.logs.size - shift
    low, high = 0, common  # where the first loss above ε is
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if logs[middle] - logs[middle + shift] > epsilon else (middle + 1, high)
    here, there = logs[low:common], logs[low + shift :]
    gained = float(np.exp(here) @ -np.expm1(there - here + epsilon)) + float(np.exp(logs[common:]).sum())
    return math.log(max(gained + pmf.lost, NOT_ZERO))
