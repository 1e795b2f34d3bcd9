"""The least Skellam noise, and the coarsest grid, that meet a target: searches over exactly computed privacy."""

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.optimize import brentq

from common.accounting import hockey_stick, rdp
from common.mechanisms.base import Norm
from common.mechanisms.frame import ROUNDING
from common.mechanisms.sensitivity import grid_for, squared_l2
from common.noise import Skellam
from common.noise.law import LIMIT

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Rényi orders that are computed; the larger ones are left out where their support would pass LIMIT entries."""

SLACK = 1e-9  # relative accuracy of the search


@dataclass(frozen=True, slots=True)
class Target:
    """(ε, δ) for one coordinate, or RDP(α) ≤ αε²/2 over `dimension` coordinates, bounded in `norm`, without δ."""

    epsilon: float
    delta: float | None
    dimension: int
    norm: Norm = "linf"


def divergences(variance: float, shift: int, dimension: int, norm: Norm = "linf") -> list[tuple[float, float]]:
    """(α, RDP(α)) of Sk(0, variance) in `dimension` coordinates: computed, for the box, whose corners move all by g.

    For l1 and l2 the bound of Agarwal, Kairouz & Liu 2021, Theorem 3.5, at whole orders, with the norms after rounding.
    """
    if norm != "linf" and dimension > 1:
        return _theorem(variance, shift, dimension, norm)
    margin = math.ceil(15 * math.sqrt(variance)) + 30
    orders = [order for order in ORDERS if (order - 1) * shift + margin <= LIMIT // 2] or [ORDERS[0]]
    pmf = Skellam(variance).pmf(least=math.ceil((orders[-1] - 1) * shift) + margin)
    return [(order, dimension * one) for order, one in zip(orders, rdp(pmf, shift, orders), strict=True)]


@lru_cache(maxsize=256)
def least_variance(target: Target, shift: int) -> float:
    """The least variance that meets the target, to nine digits and rounded up."""

    def excess(log_variance: float) -> float:
        """Above 0 where the target is missed; falls as the variance grows."""
        variance = math.exp(log_variance)
        if target.delta is not None:
            return math.log(hockey_stick(Skellam(variance).pmf(), shift, target.epsilon) / target.delta)
        pairs = divergences(variance, shift, target.dimension, target.norm)
        return math.log(max(2 * spent / (order * target.epsilon**2) for order, spent in pairs))

    guess = math.log(squared_l2(shift, target.dimension, target.norm) / target.epsilon**2)  # the Gaussian's
    low, high = guess - 0.1, guess + 0.1
    while excess(low) <= 0:
        low -= 0.5
    while excess(high) > 0:
        high += 0.5
    found = float(brentq(excess, low, high, xtol=SLACK / 4))
    while excess(found) > 0:
        found += SLACK / 4
    return math.exp(found)


@lru_cache(maxsize=256)
def best_precision(target: Target, clients: int) -> int:
    """The least g whose rounding variance n/4 is at most a tenth of the least noise's; at least `grid_for`."""
    wanted = clients / (4 * ROUNDING)
    g = max(1, math.ceil(target.epsilon * math.sqrt(wanted / target.dimension)))
    g = max(1, math.ceil(g * math.sqrt(wanted / least_variance(target, g))))
    while least_variance(target, g) < wanted:
        g += 1
    while g > 1 and least_variance(target, g - 1) >= wanted:
        g -= 1
    return max(g, grid_for(target.dimension, target.norm))


def _theorem(variance: float, shift: int, dimension: int, norm: Norm) -> list[tuple[float, float]]:
    """αΔ₂²/(2σ²) + min{((2α - 1)Δ₂² + 6Δ₁)/(4σ⁴), 3Δ₁/(2σ²)}; Δ₁ ≤ Δ₂² on the integers."""
    square = squared_l2(shift, dimension, norm)
    size = min(shift * dimension, square, math.sqrt(dimension * square))
    return [
        (
            order,
            order * square / (2 * variance)
            + min(((2 * order - 1) * square + 6 * size) / (4 * variance**2), 3 * size / (2 * variance)),
        )
        for order in ORDERS
        if order >= 2 and order == int(order)
    ]
