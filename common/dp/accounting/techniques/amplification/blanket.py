"""Evaluates the privacy blanket bound of shuffled messages of a given randomizer, and searches noise by it.

Each message is, with probability γ, drawn from the blanket ω, whatever its input. For the worst pair x, y of inputs

    δ(ε) ≤ E[(Σ_{i≤M} L_i)₊] / (nγ),  M ~ Bin(n, γ),  L = (μ_x - e^ε μ_y)(W)/ω(W),  W ~ ω.

With V = L/γ for a draw from the blanket, else 0, the bound is E[(V₁ + … + V_n)₊]/n. All errors are on the safe side.

Source     Balle et al. 2019, Lemma 5.3.
Holds      for every n ≥ 1 and every randomizer with a blanket, pure or not; one message a user, one randomizer. Inputs
           may differ from place to place where one pair is the worst in convex order (`laplace_on_grid`).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.accounting.techniques.amplification.randomizers import (
    LARGEST_LOCAL_EPSILON,
    LocalRandomizer,
)
from distrust.common.dp.accounting.techniques.amplification.sums import FINE_STEP, UserValue, positive_part
from distrust.common.dp.accounting.techniques.searches import least_met
from distrust.common.dp.noise.law import UNIT
from distrust.common.errors import BadParameter

MASSES = 2e-11  # relative rounding of the cells' masses, of laws as common.dp.noise computes them
GROWN = 1 / (1 - MASSES)  # less blanket, as a little less ε, makes up for whatever rounding did to the masses
SAME = 1e-10  # relative: values that differ by less differ by the rounding of their masses
LOST_SHARE = 0.03  # of a given δ: mass of extreme values to leave out
DIGITS = 1e-5  # relative, of ε, towards more privacy
EXTREME = (0.2, 0.4, 0.8)  # shares of the sum's mean that one value alone may make up for
TILTS = np.geomspace(0.1, 300, 60)  # of Chernoff's bound, in units of the largest value that is kept
WAYS = tuple((share, TILTS) for share in EXTREME)
ROUGH = 0.3  # of a sum's grid, in standard deviations: some percent of δ
LEAST_EPSILON = 1e-6  # nats; a smaller ε is stated as this one
FINEST = 32  # steps of one coordinate's range, all pairs of which the blanket bound compares
NOT_ZERO_DELTA = 1e-300  # of a δ whose logarithm is taken

Way: TypeAlias = tuple[float, Floats]
"""A share of EXTREME, and tilts."""

RandomizerOf: TypeAlias = Callable[[float, int], LocalRandomizer]
"""Returns a randomizer from the size of the noise, σ² or ε₀, and the precision."""

PairTarget: TypeAlias = tuple[float, float, int]
"""A target: ε, δ and the number of honest clients."""

Search: TypeAlias = Callable[[Callable[[float], float], float], float]
"""Returns the snapped number at which an excess ends, from the excess and a guess."""


def blanket_epsilon(randomizer: LocalRandomizer, delta: float, users: int) -> float:
    """Return the least ε with δ(ε) ≤ delta to five digits, rounded up; BadParameter where none up to 50 will do."""
    worst = LEAST_EPSILON
    for pair in randomizer.pairs():
        met = partial(_meets, randomizer, pair, delta, users)
        if met(worst):
            continue
        high = max(2 * worst, 0.01)
        while not met(min(high, LARGEST_LOCAL_EPSILON)):
            if high >= LARGEST_LOCAL_EPSILON:
                allowed = f"{users} users of this randomizer have no epsilon up to {LARGEST_LOCAL_EPSILON:g}"
                raise BadParameter("delta", delta, allowed)
            worst, high = high, 2 * high
        worst = least_met(met, worst, min(high, LARGEST_LOCAL_EPSILON), DIGITS)
    return worst


def _meets(randomizer: LocalRandomizer, pair: tuple[int, int], delta: float, users: int, epsilon: float) -> bool:
    return pair_delta(randomizer, pair, epsilon, users, LOST_SHARE * delta) <= delta


# Proof of the bound: show the others' inputs and who drew from the blanket. Then only the blanket's draws hide the one
# user, and L is what each of them tells.


def pair_delta(
    randomizer: LocalRandomizer,
    pair: tuple[int, int],
    epsilon: float,
    users: int,
    left_out: float,
    *,
    fine: float = FINE_STEP,
    enough: float = 0.0,
) -> float:
    """Return δ of one pair of inputs, rounded up: by `left_out`, mass of extreme values, and by the grid.

    fine    deviations a step of the grid.
    enough  a δ that is enough: no sum is computed where one message alone has it.
    """
    low, mean, high = _values(randomizer, pair, epsilon)
    # Values of vanishing mass under μ_x are left out, and that mass is added to δ.
    kept = _not_extreme(high, randomizer.masses[pair[0]], left_out)
    added = float(randomizer.masses[pair[0]][~kept].sum()) + randomizer.lost
    if not kept.any() or high[kept].max() <= 0:
        return min(1.0, added)
    law = UserValue(randomizer.blanket[kept] / GROWN, low[kept], mean[kept], high[kept], users)
    alone = float(law.weight @ np.where(law.low > 0, law.mean, np.maximum(law.high, 0)))  # what one message gives
    known = users == 1 or alone * (1 + 2 * MASSES) + added <= enough
    delta = alone if known else min(alone, positive_part(law, fine))
    return min(1.0, delta * (1 + 2 * MASSES) + added)


def _values(randomizer: LocalRandomizer, pair: tuple[int, int], epsilon: float) -> tuple[Floats, Floats, Floats]:
    """Return bounds of L from below in each cell, its mean there, and bounds from above."""
    one, other = pair
    factor = math.exp(epsilon - 3 * MASSES)
    low = GROWN * (randomizer.low[one] - factor * randomizer.high[other])
    high = GROWN * (randomizer.high[one] - factor * randomizer.low[other])
    mean = GROWN * (randomizer.masses[one] - factor * randomizer.masses[other]) / randomizer.blanket
    return low, np.clip(mean, low, high), high


def dominated(randomizer: LocalRandomizer, pair: tuple[int, int], other: tuple[int, int], epsilon: float) -> bool:
    """Return whether the bound of a pair is at most that of the other one and `order_slack`, for every n.

    It needs no sum of many values: False where the values of one user do not show it.
    """
    # Let π(c) = E(L - c)₊ above the common mean m of both L, E(c - L)₊ below it. Where π ≤ (1 + r)π' for all c, L is
    # smaller in convex order than m + (1 + r)(L' - m), as π' falls on both sides of m; so are the sums. That costs the
    # factor 1 + r and r |m|, and m differs between both by the rounding of their masses.
    low, mean, high = _values(randomizer, pair, epsilon)
    _, kinks, _ = _values(randomizer, other, epsilon)
    # A cell of L counts as its two ends, with its mean, which is larger in convex order; one of L' as its mean.
    up = np.divide(mean - low, high - low, out=np.ones_like(mean), where=high > low)
    ends, shares = np.concatenate((low, high)), np.concatenate((randomizer.blanket * (1 - up), randomizer.blanket * up))
    at = np.unique(np.concatenate((ends, kinks)))
    ours, theirs = _partial_means(at, ends, shares), _partial_means(at, kinks, randomizer.blanket)
    middle = -math.expm1(epsilon) / randomizer.gamma
    below, above = (one <= (1 + _rounded(randomizer)) * another for one, another in zip(ours, theirs, strict=True))
    return bool(np.where(at < middle, below, above).all())


def order_slack(randomizer: LocalRandomizer, epsilon: float) -> float:
    """Return what a `dominated` pair's bound of δ may be above that of the other pair, at most."""
    return 2 * _rounded(randomizer) * (1 + math.exp(epsilon))


def _rounded(randomizer: LocalRandomizer) -> float:
    """Return r, a bound of the relative rounding errors of `_partial_means`: sums of sums of positive numbers."""
    return 16 * UNIT * randomizer.blanket.size


def _partial_means(at: Floats, values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return E(c - L)₊ and E(L - c)₊ for every c in `at`, which is increasing and has all the values in it."""
    # They are integrals of the mass below and above c. All terms are positive, so that only their rounding is lost.
    masses = np.bincount(np.searchsorted(at, values), weights, at.size)
    steps = np.diff(at)
    below = np.concatenate(([0.0], np.cumsum(np.cumsum(masses)[:-1] * steps)))
    above = np.concatenate(([0.0], np.cumsum(np.cumsum(masses[::-1])[:-1] * steps[::-1])))[::-1]
    return below, above


def _not_extreme(values: Floats, masses: Floats, left_out: float) -> NDArray[np.bool_]:
    """Return which values stay when the largest ones, of a mass of at most `left_out` together, are left out.

    Equal ones stay or go together. Otherwise rounding, which puts them in some order, would choose among them.
    """
    order = np.argsort(-values)
    beyond = np.cumsum(masses[order]) > left_out
    if not beyond.any():
        return np.zeros(values.size, dtype=bool)
    largest = float(values[order[np.argmax(beyond)]])
    kept: NDArray[np.bool_] = values <= largest + SAME * abs(largest)
    return kept


def extreme_delta(
    randomizer: LocalRandomizer, pair: tuple[int, int], epsilon: float, users: int, ways: Sequence[Way] = WAYS
) -> float:
    """Return an upper bound of δ of one pair of inputs far in its tail, where one message decides.

    It is quick, and works down to the least doubles.

    ways  shares and tilts of which the least bound is taken.
    """
    bounds = (float(_chernoff(randomizer, pair, epsilon, users, way).min()) for way in ways)
    return min(1.0, *bounds)


def best_way(randomizer: LocalRandomizer, pair: tuple[int, int], epsilon: float, users: int) -> Way:
    """Return the one share and tilt that give `extreme_delta`."""
    bounds = [_chernoff(randomizer, pair, epsilon, users, way) for way in WAYS]
    (share, tilts), least = min(zip(WAYS, bounds, strict=True), key=lambda one: float(one[1].min()))
    best = int(least.argmin())
    return share, tilts[best : best + 1]


def _chernoff(randomizer: LocalRandomizer, pair: tuple[int, int], epsilon: float, users: int, way: Way) -> Floats:
    """Return Chernoff's bound of δ at each tilt, without the values that alone make up for a share of the sum's mean.

    Their mass is added.
    """
    (one, other), (share, tilts) = pair, way
    values = GROWN * (randomizer.high[one] - math.exp(epsilon - 3 * MASSES) * randomizer.low[other])
    most = share * users * math.expm1(epsilon)
    kept = values <= most
    added = float(randomizer.masses[one][~kept].sum()) + randomizer.lost
    # s₊ ≤ e^(λs)/(eλ).
    growth = np.expm1(np.outer(tilts / most, values[kept])) @ (randomizer.blanket[kept] / GROWN)
    logs = users * (np.log1p(growth) + 256 * UNIT) - np.log(tilts / most * users) - 1
    return np.asarray(added + np.exp(np.minimum(logs, 0.0)) * (1 + 2 * MASSES), dtype=np.float64)


def over_pairs(kind: RandomizerOf, precision: int, target: PairTarget, search: Search, guess: float) -> float:
    """Return the search's number at which the blanket hides every pair of inputs."""
    # The search is first for the farthest pair. Where another pair is not hidden there, it goes on from there, away
    # from the guess, with the worst of them.
    pairs = kind(guess, precision).pairs()
    size, pair = guess, pairs[0]
    while True:
        size = search(partial(_pair_excess, kind, precision, target, pair), size)
        told = [other for other in pairs if not _hides_pair(kind, precision, target, other, size)]
        if not told:
            return size
        _, pair = max((_pair_excess(kind, precision, target, other, size), other) for other in told)


def hides_pairs(kind: RandomizerOf, precision: int, target: PairTarget, size: float) -> bool:
    """Return whether the blanket hides every pair of inputs. What a search ended with is cached."""
    pairs = kind(size, precision).pairs()
    return all(_hides_pair(kind, precision, target, pair, size) for pair in pairs)


@lru_cache(maxsize=4096)
def _hides_pair(kind: RandomizerOf, precision: int, target: PairTarget, pair: tuple[int, int], size: float) -> bool:
    """Return whether the blanket hides a pair of inputs: by one message alone, a rough sum, or the fine one."""
    epsilon, delta, honest = target
    left_out = LOST_SHARE * delta
    rough = pair_delta(kind(size, precision), pair, epsilon, honest, left_out, fine=ROUGH, enough=delta)
    return rough <= delta or _pair_excess(kind, precision, target, pair, size) <= 0


@lru_cache(maxsize=4096)
def _pair_excess(kind: RandomizerOf, precision: int, target: PairTarget, pair: tuple[int, int], size: float) -> float:
    """Return the logarithm of a pair's δ(ε) over δ, for noise of that size."""
    epsilon, delta, honest = target
    delta_of_pair = pair_delta(kind(size, precision), pair, epsilon, honest, LOST_SHARE * delta)
    return math.log(max(delta_of_pair, NOT_ZERO_DELTA) / delta)
