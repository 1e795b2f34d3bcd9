"""The least noise for a target, and the coarsest grid that needs enough of it: searches through monotone functions."""

import math
from collections.abc import Callable

from scipy.optimize import brentq

from common.mechanisms.skellam_search import SLACK


def least_root(excess: Callable[[float], float], guess: float, slack: float = SLACK) -> float:
    """The least positive number with excess ≤ 0, to a relative accuracy and rounded up; excess falls."""

    def at(log_value: float) -> float:
        return excess(math.exp(log_value))

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
