"""The least Skellam noise, and the coarsest grid, that meet a target: searches over exactly computed privacy."""

import math
from dataclasses import dataclass
from functools import lru_cache

from common.accounting import hockey_stick, rdp
from common.mechanisms.frame import ROUNDING
from common.noise import Skellam
from common.noise.law import LIMIT

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Rényi orders that are computed; the larger ones are left out where their support would pass LIMIT entries."""

SLACK = 1e-9  # relative: more variance than the search's own accuracy


@dataclass(frozen=True, slots=True)
class Target:
    """(ε, δ) for one coordinate, or RDP(α) ≤ αε²/2 over `dimension` coordinates when δ is absent."""

    epsilon: float
    delta: float | None
    dimension: int


def divergences(variance: float, shift: int, dimension: int) -> list[tuple[float, float]]:
    """(α, RDP(α)) of Sk(0, variance) in `dimension` coordinates that all move by `shift`."""
    margin = math.ceil(15 * math.sqrt(variance)) + 30
    orders = [order for order in ORDERS if (order - 1) * shift + margin <= LIMIT // 2] or [ORDERS[0]]
    pmf = Skellam(variance).pmf(least=math.ceil((orders[-1] - 1) * shift) + margin)
    return [(order, dimension * one) for order, one in zip(orders, rdp(pmf, shift, orders), strict=True)]


@lru_cache(maxsize=256)
def least_variance(target: Target, shift: int) -> float:
    """The least variance that meets the target, to nine digits and rounded up."""
    return _for_renyi(target, shift) if target.delta is None else _for_delta(target.epsilon, target.delta, shift)


def _for_renyi(target: Target, shift: int) -> float:
    """Fixed point of v ← v · max RDP(α)/(αε²/2): the divergence falls nearly like 1/v."""
    variance = target.dimension * (shift / target.epsilon) ** 2
    while (excess := _excess(variance, target, shift)) > 1:
        variance *= excess + SLACK
    return variance


def _excess(variance: float, target: Target, shift: int) -> float:
    pairs = divergences(variance, shift, target.dimension)
    return max(2 * spent / (order * target.epsilon**2) for order, spent in pairs)


def _for_delta(epsilon: float, delta: float, shift: int) -> float:
    """Bisection on the variance; δ falls as it grows."""

    def met(variance: float) -> bool:
        return hockey_stick(Skellam(variance).pmf(), shift, epsilon) <= delta

    high = (shift / epsilon) ** 2
    while not met(high):
        high *= 2
    low = high / 2
    while met(low):
        low, high = low / 2, low
    while high - low > SLACK * high:
        middle = (low + high) / 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


@lru_cache(maxsize=256)
def best_precision(target: Target, clients: int) -> int:
    """The least g whose rounding variance n/4 is at most a tenth of the least noise's."""
    wanted = clients / (4 * ROUNDING)
    g = max(1, math.ceil(target.epsilon * math.sqrt(wanted / target.dimension)))
    g = max(1, math.ceil(g * math.sqrt(wanted / least_variance(target, g))))
    while least_variance(target, g) < wanted:
        g += 1
    while g > 1 and least_variance(target, g - 1) >= wanted:
        g -= 1
    return g
