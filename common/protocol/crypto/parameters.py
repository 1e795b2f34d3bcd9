"""Computes k, t and w: neighbours of a client, shares that rebuild a secret, largest density of lost clients.

On a random Harary ring (Bell et al. 2020, section 3) with C corrupted and D lost clients the graph is good if
    1. no client has t corrupted neighbours: else the aggregator rebuilds its secrets;
    2. the honest survivors stay connected: else the aggregator learns the sum of a part of them;
    3. every secret has t surviving neighbours that are not corrupted: else the cohort is lost.
1 and 2 fail with probability at most 2⁻⁴⁰ together, half of it each; 3 with at most 2⁻²⁰. `_threshold` has the bounds.
Besides, t is more than k/2.
Losses before the roster is known shrink n, not C: at 10 % + 10 % the worst case costs 3 to 5 bits of the 40.

w is the largest number of lost clients that k/2 consecutive places of the ring may hold. Clients refuse survivors that
exceed it; D random losses exceed it with probability below 2⁻²⁰.
"""

from bisect import bisect_left
from functools import lru_cache
from math import floor, log2

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.errors import BadParameter

Tail = NDArray[np.float64]

_SECURITY = 2.0**-41  # half of 2⁻⁴⁰ for each of the two ways to lose it
_FAILURE = 2.0**-20  # largest probability of losing a cohort, of exceeding w, and of exceeding B
_SMALL = 32  # cohorts up to which everyone shares with everyone


@lru_cache(maxsize=10_000)
def neighbourhood(n: int, dropout: float, corrupt: float, min_survivors: int = 0) -> tuple[int, int]:
    """Return (k, t) for n clients, of which at most ⌊corrupt·n⌋ are corrupted and at least the survivors stay.

    The survivors are n - ⌊dropout·n⌋, or `min_survivors` where that is more.
    k is the smallest even degree that serves, and t its smallest threshold, which is more than k/2. The full graph,
    k = n - 1, is taken for n up to 32 and where no smaller k serves. Rates lie in [0, 1/2). Raises BadParameter for
    values out of range, and for rates that no threshold serves.
    """
    lost, corrupted = _counts(n, dropout, corrupt, min_survivors)
    if n > _SMALL:
        sparse = _sparse(n, lost, corrupted)
        if sparse:
            return sparse
    k = n - 1
    t = max(corrupted + 1, k // 2 + 1)
    if t > k - lost - corrupted:
        raise BadParameter(
            "corrupt", corrupt, f"{corrupted} of {n} clients are corrupted and {lost} vanish: no threshold serves both"
        )
    return k, t


def window(n: int, dropout: float, corrupt: float, min_survivors: int = 0) -> int:
    """Return w: how many lost clients k/2 consecutive places of the ring may hold. Arguments as of `neighbourhood`."""
    k, _ = neighbourhood(n, dropout, corrupt, min_survivors)
    return densest_loss(n, _counts(n, dropout, corrupt, min_survivors)[0], k)


@lru_cache(maxsize=10_000)
def densest_loss(n: int, lost: int, k: int) -> int:
    """Return w for a ring of degree k when `lost` of n clients may vanish.

    For the full graph w is `lost`: k/2 places mean nothing there. On a ring it is below k/2, so that no run of k/2
    places is empty and the survivors stay connected whichever of them the aggregator leaves out.
    """
    half = k // 2
    if k >= n - 1:
        return lost
    exceeded = n * _upper_tail(n, lost, half)[1:]  # entry w: more than w in some window
    return min(int(np.argmax(exceeded < _FAILURE)), half - 1)


@lru_cache(maxsize=10_000)
def liars_near(n: int, lost: int, k: int, t: int) -> int:
    """Return B: how many neighbours of a lying client may lie as well. Naming a liar needs it, the sum does not.

    k and t tell how many corrupted clients they were chosen for. On a ring, B is exceeded around some client with
    probability below 2⁻²⁰. In the full graph the number is known less well, so that half of the spare holders may lie:
    then B + 1 false dealers and holders in any mix leave t good shares of every secret of a member.
    """
    if k >= n - 1:
        return max((k - lost - t - 1) // 2, 0)
    chosen_for = range(1, n // 2)  # corrupted clients
    corrupted = bisect_left(chosen_for, True, key=lambda corrupt: (_threshold(n, lost, corrupt, k) or n) > t)
    return min(int(np.argmax(n * _upper_tail(n - 1, corrupted, k)[1:] < _FAILURE)), t - 1)


@lru_cache(maxsize=10_000)
def holders_needed(others: int, lost: int, k: int, t: int) -> int:
    """Return how many confirmed holders a dealer needs if `lost` of `others` members may still vanish.

    The smallest number, at least t, of which fewer than t are left with probability below 2⁻²⁰.
    """
    for holders in range(t, k + 1):
        spare = holders - t
        if lost <= spare or _upper_tail(others, lost, holders)[spare + 1] < _FAILURE:
            return holders
    return k


def _counts(n: int, dropout: float, corrupt: float, min_survivors: int) -> tuple[int, int]:
    if n < 2:
        raise BadParameter("clients", n, "secure aggregation needs at least 2")
    for field, rate in (("dropout", dropout), ("corrupt", corrupt)):
        if not 0 <= rate < 0.5:
            raise BadParameter(field, rate, "must lie in [0, 0.5)")
    fewest = n - floor(dropout * n)
    if not 0 <= min_survivors <= n:
        raise BadParameter("min_survivors", min_survivors, f"must lie in [0, {n}], the survivors of {n} clients")
    return n - max(fewest, min_survivors), floor(corrupt * n)


def _sparse(n: int, lost: int, corrupted: int) -> tuple[int, int] | None:
    """Return the smallest even degree below n - 1 that serves, with its t, by doubling and then bisection."""
    top = (n - 2) // 2  # the search is over k/2; a denser ring serves better

    def serves(half: int) -> bool:
        return _threshold(n, lost, corrupted, 2 * half) is not None

    high = 1
    while high < top and not serves(high):
        high = min(2 * high, top)
    halves = range(high // 2 + 1, high + 1)
    half = halves[bisect_left(halves[:-1], True, key=serves)]
    t = _threshold(n, lost, corrupted, 2 * half)
    return None if t is None else (2 * half, t)


def _threshold(n: int, lost: int, corrupted: int, k: int) -> int | None:
    """Return the smallest t that serves with degree k, or None."""
    removed = lost + corrupted
    # 2. The survivors stay connected.
    if split_bound(n, removed, k) > _SECURITY:
        return None
    # 1. The corrupted neighbours of a client are hypergeometric: n - 1 others, C marked, k drawn. Union bound over n.
    captured = n * _upper_tail(n - 1, corrupted, k)
    # With t above k/2, no two sets of survivors give t shares of both secrets of one client.
    t = max(k // 2 + 1, int(np.argmax(captured <= _SECURITY)))
    # 3. Corrupted clients may withhold every share, or return false ones, so they count as lost. For lost clients as in
    # the paper: n times the tail of the neighbours that are lost, too (n - 1 others, C + D - 1 marked, k drawn).
    if t > k or n * _upper_tail(n - 1, max(removed - 1, 0), k)[k - t + 1] > _FAILURE:
        return None
    # A survivor has one more lost client around it, so the union over all windows of the ring is bounded as well.
    return t if starved_bound(n, removed, k, t) <= _FAILURE else None


def split_bound(n: int, removed: int, k: int) -> float:
    """Return a bound on the probability that the ring falls apart when `removed` random clients vanish.

    It falls apart only if two disjoint runs of k/2 vanish: at most n²/2 · Π_{i<k} (removed - i)/(n - i).
    """
    if k > removed:
        return 0.0
    i = np.arange(k)
    return float(2.0 ** (2 * log2(n) - 1 + np.log2((removed - i) / (n - i)).sum()))


def starved_bound(n: int, lost: int, k: int, t: int) -> float:
    """Return a bound on the probability that a client keeps fewer than t of k neighbours when `lost` clients vanish.

    Let Aᵢ be "client i keeps fewer than t": P(∪ Aᵢ) ≤ P(A₀) + Σ P(Aᵢ without Aᵢ₋₁) (Hunter 1976, Worsley 1982).
    """
    most = k - t + 1  # losses that leave a client fewer than t neighbours
    first = float(_upper_tail(n, lost, k)[most])
    # Moving a window of k places by one exchanges two of them: "Aᵢ without Aᵢ₋₁" is counted over the k - 2 places that
    # stay, the two that enter and the two that leave.
    stay = _law(n, lost, k - 2)
    step = 0.0
    for x in range(max(0, most - 2), min(most, k - 2, lost) + 1):
        enter = _law(n - k + 2, lost - x, 2)
        for i in range(max(0, most - x), min(2, lost - x) + 1):
            leave = _law(n - k, lost - x - i, 2)
            step += float(stay[x] * enter[i] * leave[: max(0, most - x)].sum())
    return first + (n - 1) * step


def _law(total: int, marked: int, drawn: int) -> Tail:
    """Return P(X = x), x = 0 … drawn, for the marked among `drawn` of `total`."""
    law = np.zeros(drawn + 1)
    x = np.arange(max(0, drawn - (total - marked)), min(drawn, marked) + 1)
    law[x] = np.exp(_choose(marked, x) + _choose(total - marked, drawn - x) - _choose(total, np.array(drawn)))
    return law


def _upper_tail(total: int, marked: int, drawn: int) -> Tail:
    """Return P(X ≥ x), x = 0 … drawn + 1."""
    return np.append(np.cumsum(_law(total, marked, drawn)[::-1])[::-1], 0.0)


def _choose(n: int, k: NDArray[np.int64]) -> Tail:
    gammaln = scipy.special.gammaln
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), dtype=np.float64)
