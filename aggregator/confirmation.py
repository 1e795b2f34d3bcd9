"""Which shares count: the aggregator judges the answers of stage `confirm`.

A dealer v dealt three polynomials f1, f2 and r. It publishes p = γ1·f1 + γ2·f2 + r, and each holder i the same blend of
its shares. γ1 and γ2 are drawn after the shares were sent. So shares that agree with p lie on polynomials of degree
t - 1, but for a chance that docs/secure-aggregation.md bounds; a pair that does not agree has a liar in it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np

from distrust.aggregator.share_graph import Flags, Sharing
from distrust.common.crypto.context import masking
from distrust.common.crypto.parameters import holders_needed, liars_near
from distrust.common.crypto.share import PRIME, SHARE, Polynomial, read_elements

MOST_NAMED = 20
"""Slots of liars that an error's line lists."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The outcome of stage `confirm`. Arrays have the shape (roster, degree), a row for each owner of shares.

    sharing   the members of stage `masked`.
    trusted   whether the share that the neighbour in a column holds was confirmed.
    opened    whether that neighbour says that it holds a share.
    disputed  whether what the neighbour says of its share contradicts the owner: one of the two lied.
    """

    sharing: Sharing
    trusted: Flags
    opened: Flags
    disputed: Flags


def judge(sharing: Sharing, bodies: Mapping[int, bytes]) -> Verdict:
    """Return who goes on and which shares count.

    sharing   the clients that shared. bodies   of stage `confirm`, by slot.
    """
    roster = sharing.roster
    size = SHARE * masking(roster.cohort).threshold
    entries = sharing.entries({slot: body[size:] for slot, body in bodies.items()})
    agrees, opened = (np.zeros(entries.given.shape, dtype=np.bool_) for _ in range(2))
    comparison = _Comparison(masking(roster.cohort).threshold, roster.degree)
    for slot, row in zip(sharing.members, sharing.rows.tolist(), strict=True):
        columns, values = entries.of(row)
        held = [c for c, value in zip(columns, values, strict=True) if value < PRIME]
        opened[row, held] = True
        if slot in bodies:
            shown = [value for value in values if value < PRIME]
            agrees[row, held] = comparison.agreeing(read_elements(bodies[slot][:size]), held, shown)
    confirmed = roster.flags(bodies)
    disputed = entries.given & ~agrees & (confirmed[:, np.newaxis] | ~opened)
    members = roster.slots[_settle(sharing, confirmed, agrees)].tolist()
    return Verdict(Sharing(roster, members), agrees, opened, disputed)


def name_liars(sharing: Sharing, disputed: Flags) -> Flags:
    """Return for each row of the roster whether it provably lied, given the disputed pairs (rows: owners of shares).

    A client in t or more disputes of one kind lied, because fewer than t neighbours of any client are corrupted but
    with probability 2⁻⁴¹. At least two are asked for: of two clients that contradict each other neither is named.
    """
    roster = sharing.roster
    bar = max(masking(roster.cohort).threshold, 2)
    as_holder = np.bincount(roster.table[disputed], minlength=len(roster))
    return np.asarray((disputed.sum(axis=1) >= bar) | (as_holder >= bar), dtype=np.bool_)


def tell_liars(sharing: Sharing, named: Flags, disputed: Flags) -> str:
    """Return the clients that lied as the end of an error's line, at most `MOST_NAMED` slots; empty if none is proven.

    named     rows of the roster that are proven to lie. disputed   pairs of which one lied.
    """
    roster = sharing.roster
    slots = roster.slots[named].tolist()
    pairs = int((disputed & ~named[:, np.newaxis] & ~named[roster.table]).sum())
    text = f"; clients that lied: slots {', '.join(map(str, slots[:MOST_NAMED]))}" if slots else ""
    if len(slots) > MOST_NAMED:
        text += f" and {len(slots) - MOST_NAMED} more"
    return f"{text}; {pairs} disputed pairs" if pairs else text


def _settle(sharing: Sharing, confirmed: Flags, agrees: Flags) -> Flags:
    """Return for each row whether it goes on: it confirmed, and enough of those that go on hold good shares of it."""
    roster, channel = sharing.roster, masking(sharing.roster.cohort)
    cohort, table, t = roster.cohort, roster.table, channel.threshold
    liars = liars_near(cohort.clients, cohort.clients - cohort.minimum, channel.neighbours, t)
    inside = confirmed & sharing.flags
    while True:
        around = inside[table]
        holders, count = (agrees & around).sum(axis=1), int(inside.sum())
        weak = inside & (holders < t)
        if not weak.any():
            lost = count - cohort.minimum
            if lost <= 0:
                return inside  # nothing is left to lose, and to leave out a client would end the cohort
            needed = holders_needed(count - 1, lost, roster.degree, t)
            # Where there is room, the neighbours that may lie later are made up for as well. An honest dealer has all
            # the neighbours that are there, but the liars among them.
            room = np.minimum(needed + liars, around.sum(axis=1) - liars - 1)
            margin = np.where(inside, holders - np.maximum(needed, room), len(roster))
            # The weakest first: each that leaves lowers what is needed, and no more leave than may be lost.
            weakest = np.flatnonzero(margin == min(int(margin.min()), -1))[:lost]
            weak[weakest] = True
        if not weak.any():
            return inside
        inside = inside & ~weak


class _Comparison:
    """Compares holders' values with a dealer's polynomial, all of them at once where they agree.

    Σ ρ_i·e_i = Σ_j M_j·p_j with M_j = Σ ρ_i·i^j over all points i, for uniform ρ_i of 128 bits that are drawn after the
    answers are in: it holds for a wrong value with probability 2⁻¹²⁸. Points without a value count as p(i).
    """

    def __init__(self, threshold: int, degree: int) -> None:
        self._weights = [int.from_bytes(os.urandom(16), "big") for _ in range(degree)]
        powers = list(self._weights)
        self._moments: list[int] = []
        for _ in range(threshold):
            self._moments.append(sum(powers) % PRIME)
            powers = [power * point % PRIME for point, power in enumerate(powers, 1)]

    def agreeing(self, polynomial: Polynomial, columns: Sequence[int], values: Sequence[int]) -> list[bool]:
        """Return for each value whether it is the polynomial's at point column + 1."""
        absent = set(range(len(self._weights))).difference(columns)
        left = sum(self._weights[c] * value for c, value in zip(columns, values, strict=True))
        left += sum(self._weights[c] * value_at(polynomial, c + 1) for c in absent)
        if (left - sum(map(mul, self._moments, polynomial))) % PRIME == 0:
            return [True] * len(columns)
        return [value_at(polynomial, c + 1) == value for c, value in zip(columns, values, strict=True)]


def value_at(polynomial: Polynomial, point: int) -> int:
    """Return the polynomial's value, reduced."""
    value = 0
    for coefficient in reversed(polynomial):
        value = value * point + coefficient
    return value % PRIME
