"""From counts in two worlds to a lower bound on ε."""

import math

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def at_least(hits: Counts, trials: int, alarm: float) -> NDArray[np.float64]:
    """Clopper–Pearson: P(the true probability lies below this) ≤ alarm, entry by entry."""
    from scipy.stats import beta  # noqa: PLC0415 - half a second of every start, for audits only

    low = beta.ppf(alarm, np.maximum(hits, 1), trials - hits + 1)
    return np.where(hits > 0, low, 0.0)


def at_most(hits: Counts, trials: int, alarm: float) -> NDArray[np.float64]:
    """Clopper–Pearson: P(the true probability lies above this) ≤ alarm, entry by entry."""
    from scipy.stats import beta  # noqa: PLC0415

    high = beta.isf(alarm, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits < trials, high, 1.0)


def epsilon_at_least(likely: Counts, rare: Counts, trials: int, delta: float, alarm: float) -> NDArray[np.float64]:
    """ln((p₀ - δ) / p₁) with p₀ at its lower end and p₁ at its upper end; at least 0.

    likely, rare  hits of one event in `trials` runs of either world.
    (ε, δ)-DP     p₀ ≤ e^ε p₁ + δ for every event, so that the ε of the mechanism is above this, but for `alarm`.
    """
    surplus = at_least(likely, trials, alarm / 2) - delta
    ceiling = at_most(rare, trials, alarm / 2)
    with np.errstate(divide="ignore"):
        found = np.log(np.maximum(surplus, 0.0)) - np.log(ceiling)
    return np.asarray(np.maximum(found, 0.0), dtype=np.float64)


def reach(trials: int, delta: float, alarm: float) -> float:
    """The largest bound that so many trials can give: the event in all runs of one world and in none of the other."""
    all_, none = np.array([trials]), np.array([0])
    return float(epsilon_at_least(all_, none, trials, delta, alarm)[0])


def fewest(delta: float, alarm: float) -> float:
    """Trials from which on `reach` is above 0: p = (alarm/2)^(1/trials) must have p - δ > 1 - p. Inf where δ = 1."""
    return math.inf if delta >= 1 else math.floor(math.log(alarm / 2) / math.log((1 + delta) / 2)) + 1
