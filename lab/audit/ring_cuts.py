"""Computes how large a share of a cohort an aggregator with tickets of its own needs to open a part of it.

The aggregator lies, and its own clients, the colluders, tell it all that they know. They are a random set: the ring
follows from all keys, and keys that are tried until the ring suits the aggregator (grinding) are no part of this.
There are two attacks.

cut    Two disjoint runs of k/2 places hold nothing but colluders and clients that the aggregator calls lost. No mask
       joins the survivors on the one side to those on the other, so that the sum of each side is opened by itself. The
       aggregator chooses members and survivors as it likes, within all that clients check: at most ⌊dn⌋ clients are
       lost, every member has t neighbours among the survivors, and no k/2 consecutive places hold more than w lost
       clients (`Roster.fault`). It does best to call a lost client no member, because t is then asked for the survivors
       alone.
taken  t neighbours of a client collude. They hold t shares of both of its secrets: its own vector is opened.

The search for cuts is complete. A survivor is joined to the survivors within k/2 places, so that a ring comes apart
only between two runs of k/2 places without honest survivors. Whatever else is lost, these must be: for each pair of
runs, the aggregator that calls no other client lost keeps the most of what clients check.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster, keyed_permutation, members_to_bitmap
from distrust.common.protocol.crypto.parameters import window
from distrust.lab.secagg_simulation import make_cohort

COLLUDING_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of the cohort that are tried where none is asked for."""

LARGEST_RING, MOST_RINGS = 10_000, 1000


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of one ring, by slots.

    lost   those that are called lost.
    held   the colluders among which they lie, in two runs of k/2 places.
    part   the honest ones of the smaller side, whose sum is opened by itself.
    """

    lost: tuple[int, ...]
    held: tuple[int, ...]
    part: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RingAttacks:
    """What an aggregator with `colluders` of n clients does to so many random rings.

    cut       rings that it can cut.
    smallest  fewest honest clients whose sum a cut opens, in any of these rings; None without a cut.
    taken     rings of which a client has t colluding neighbours.
    """

    share: float
    colluders: int
    rings: int
    cut: int
    smallest: int | None
    taken: int


def ring_attacks(
    n: int, *, dropout: float, corrupt: float, shares: Sequence[float], rings: int, seed: int
) -> list[RingAttacks]:
    """Return for each share of the cohort what an aggregator with so many colluders can do.

    n, dropout, corrupt  of the cohort, from which k, t and w follow.
    rings                random rings and sets of colluders for each share; ring i is the same for all shares.
    Raises               BadParameter, naming the argument.
    """
    for field, value, least, most in (("n", n, 2, LARGEST_RING), ("rings", rings, 1, MOST_RINGS)):
        if not least <= value <= most:
            raise BadParameter(field, value, f"must lie in [{least}, {most}]")
    for share in shares:
        if not 0 <= share < 1:
            raise BadParameter("share", share, "must lie in [0, 1)")
    most, w = floor(dropout * n), window(n, dropout, corrupt)  # which refuses rates that no t serves
    drawn = [random_ring(n, dropout, corrupt, f"{seed}.{ring}") for ring in range(rings)]
    return [
        _attacks([(roster, order[: floor(share * n)]) for roster, order in drawn], share, most, w) for share in shares
    ]


def random_ring(n: int, dropout: float, corrupt: float, seed: str) -> tuple[Roster, list[int]]:
    """Return a roster with keys from a seed, whose ring is random, and its slots in random order, colluders first."""
    cohort = make_cohort(n, 97, 1, dropout=dropout, corrupt=corrupt)
    keys = hashlib.shake_256(f"keys {seed}".encode()).digest(KEYS_SIZE * n)
    order = keyed_permutation(hashlib.sha256(f"colluders {seed}".encode()).digest(), n)
    return Roster(cohort, members_to_bitmap(range(n), n), keys), order.tolist()


def _attacks(rings: Sequence[tuple[Roster, Sequence[int]]], share: float, most: int, w: int) -> RingAttacks:
    cuts = [cut for roster, colluders in rings if (cut := best_cut(roster, colluders, most, w)) is not None]
    taken = sum(bool(taken_clients(roster, colluders)) for roster, colluders in rings)
    smallest = min((len(cut.part) for cut in cuts), default=None)
    return RingAttacks(share, len(rings[0][1]), len(rings), len(cuts), smallest, taken)


def taken_clients(roster: Roster, colluders: Sequence[int]) -> list[int]:
    """Return the honest slots of which t neighbours collude."""
    flags = roster.flags(colluders)
    opened = (roster.around(flags) >= masking(roster.cohort).threshold) & ~flags
    return [int(slot) for slot in roster.slots[opened]]


def best_cut(roster: Roster, colluders: Sequence[int], most: int, w: int) -> Cut | None:
    """Return the cut that clients accept and that opens the sum of the fewest honest clients; None without any.

    most  clients that may be lost in all.
    w     lost clients that k/2 consecutive places may hold.
    """
    n, half = len(roster), masking(roster.cohort).neighbours // 2
    if roster.degree >= n - 1:  # everyone shares with everyone: no run of places parts the others
        return None
    places = roster.slots[roster.ring]
    honest = ~roster.flags(colluders)[roster.ring]
    for first, second in _pairs(honest, half, most, w):
        runs = [(start + np.arange(half)) % n for start in (first, second)]
        emptied = np.zeros(n, dtype=np.bool_)
        emptied[np.concatenate(runs)] = True
        survivors = sum(1 << int(slot) for slot in places[~(emptied & honest)])
        if roster.fault(survivors, survivors, w) is None:
            sides = [_between(first + half, second, n), _between(second + half, first, n)]
            part = min((side[honest[side]] for side in sides), key=len)
            lost, held = places[emptied & honest], places[emptied & ~honest]
            return Cut(tuple(lost.tolist()), tuple(held.tolist()), tuple(places[part].tolist()))
    return None


def _pairs(honest: NDArray[np.bool_], half: int, most: int, w: int) -> list[tuple[int, int]]:
    """Return the starts of two disjoint runs of `half` places that may be emptied, those with the smallest part first.

    Each run holds at most `w` honest clients, both at most `most`, and there are honest clients on either side.
    """
    n = len(honest)
    sums = np.concatenate([[0], np.cumsum(np.concatenate([honest, honest]))])
    held = sums[np.arange(n) + half] - sums[:n]
    starts = np.flatnonzero(held <= w)
    first, second = (grid.ravel() for grid in np.meshgrid(starts, starts, indexing="ij"))
    fits = (second - first >= half) & (first + n - second >= half) & (held[first] + held[second] <= most)
    first, second = first[fits], second[fits]
    inner = sums[second] - sums[first + half]
    outer = sums[first + n] - sums[second + half]
    parts = np.minimum(inner, outer)
    order = np.argsort(parts, kind="stable")
    order = order[parts[order] > 0]
    return list(zip(first[order].tolist(), second[order].tolist(), strict=True))


def _between(start: int, end: int, n: int) -> NDArray[np.int64]:
    """Return the places from `start` to before `end`, around a ring of n."""
    return (start + np.arange((end - start) % n)) % n
