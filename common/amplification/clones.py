"""The clones bound, evaluated: what shuffling makes of any ε₀-LDP randomizer that all n users share.

Write p = e^ε₀, R₀ and R₁ for the two laws of the one user, Q₀ ∝ (R₀ - R₁)₊ and Q₁ ∝ (R₁ - R₀)₊. With TV their distance
and α = TV/(p - 1), R₀ = pα Q₀ + α Q₁ + rest, R₁ = α Q₀ + pα Q₁ + the same rest, and every other user's law is at least
α (Q₀ + Q₁), because R(x) ≥ R₀/p and R(x) ≥ R₁/p. So what is released is made from two counts: of Q₀ and of Q₁ among all
users. Deleting each with one probability makes the counts of a smaller α from those of a larger one, so the largest,
α = 1/(p + 1), is the worst: with C ~ Bin(n - 1, 2/(p + 1)), A ~ Bin(C, 1/2), Δ ~ Ber(p/(p + 1)),

    (A + Δ, C - A + 1 - Δ) against (A + 1 - Δ, C - A + Δ).

For binary randomized response it gives away C and nothing else.
Source     Feldman, McMillan & Talwar, "Hiding among the clones" (FOCS 2021; there C ~ Bin(n - 1, 1/p)) and "Stronger
           privacy amplification by shuffling" (SODA 2023), whose C this is.
Holds      for every n ≥ 1, ε₀ > 0; one message a user, one randomizer, chosen before any message is seen. δ > 0 only.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from common.amplification.ranges import (
    check_delta,
    check_epsilon,
    check_users,
    greatest_met,
    least_met,
)
from common.noise import Binomial

DIGITS = 1e-9  # relative, of every ε that is searched, towards more privacy
ROUNDING = 1e-12  # relative, of the two terms whose difference is δ
MASSES = 1e-10  # relative, of the law of C


def clones_delta(epsilon: float, local_epsilon: float, users: int) -> float:
    """δ(ε) of the shuffled messages of `users` with an ε₀-LDP randomizer: above it by truncation and rounding."""
    check_epsilon(epsilon)
    check_epsilon(local_epsilon, "local_epsilon")
    check_users(users)
    return _delta(epsilon, local_epsilon, users)


def clones_epsilon(delta: float, local_epsilon: float, users: int) -> float:
    """The least ε with δ(ε) ≤ delta, at most ε₀, rounded up."""
    check_delta(delta)
    check_epsilon(local_epsilon, "local_epsilon")
    check_users(users)
    return least_met(lambda epsilon: _delta(epsilon, local_epsilon, users) <= delta, 0.0, local_epsilon, DIGITS)


def clones_local_epsilon(epsilon: float, delta: float, users: int) -> float:
    """The greatest ε₀ whose shuffled messages are (ε, δ)-DP, rounded down; at least ε."""
    check_epsilon(epsilon)
    check_delta(delta)
    check_users(users)
    high = max(epsilon, min(50.0, math.log(users) + epsilon + 1))
    return greatest_met(lambda local: _delta(epsilon, local, users) <= delta, epsilon, high, DIGITS)


def _delta(epsilon: float, local_epsilon: float, users: int) -> float:
    if epsilon >= local_epsilon:
        return 0.0
    return excess(epsilon, local_epsilon, users, 2 / (math.exp(local_epsilon) + 1))


@lru_cache(maxsize=4096)
def excess(epsilon: float, local_epsilon: float, users: int, chance: float) -> float:
    """E over C ~ Bin(users - 1, chance) of the hockey stick of the two laws given C; needs ε < ε₀.

    Given C = c both laws of the first count are mixtures of b = Bin(c, 1/2) and of b moved by 1; the quotient
    b(a-1)/b(a) = a/(c-a+1) grows with a, so that the positive part is a tail.
    """
    p, e = math.exp(local_epsilon), math.exp(epsilon)
    counts, masses, lost = _clones(users, chance)
    start = math.expm1(local_epsilon + epsilon) / (math.expm1(local_epsilon) * (e + 1))
    before = np.floor((counts + 1) * start)  # the last a that does not count; at most c as ε < ε₀
    gain = (p - e) / (p + 1) * stats.binom.pmf(before, counts, 0.5)
    loss = math.expm1(epsilon) * stats.binom.sf(before, counts, 0.5)
    sizes = np.maximum(gain - loss, 0) + ROUNDING * (gain + loss)
    return min(1.0, float(masses @ sizes) * (1 + MASSES) + lost)


def _clones(users: int, chance: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """The values of C, their masses, and the mass left out."""
    if users == 1:
        return np.zeros(1), np.ones(1), 0.0
    pmf = Binomial(users - 1, math.nextafter(chance, 0)).pmf()
    return pmf.support.astype(np.float64), pmf.masses, pmf.lost
