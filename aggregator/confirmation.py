"""Judges the answers of stage `confirm`: decides which shares count.

A dealer v deals shares of three polynomials f1, f2 and r. It publishes p = γ1·f1 + γ2·f2 + r, and each holder i
publishes the same blend of its shares. γ1 and γ2 are drawn after the shares were sent. So shares that agree with p lie
on polynomials of degree t - 1, except with a probability that aggregator.md bounds. If a holder's blend
does not agree with p, the dealer or the holder lied.
`Sharing` and `Entries` are arrays over the neighbour graph: which client holds a share of which other.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadMessage
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.parameters import holders_needed, liars_near
from distrust.common.protocol.crypto.share import PRIME, SHARE_SIZE, Polynomial, read_elements

Flags = NDArray[np.bool_]

MOST_NAMED = 20
"""Slots of liars that an error's line lists."""


class Sharing:
    """Some members of the roster, on the roster's graph.

    members  their slots, ascending; `rows` are their rows in the roster's table.
    flags    for each row of the roster whether it is one of them, shape (roster,).
    near     for each row of the roster which of its neighbours are, shape (roster, degree).
    """

    def __init__(self, roster: Roster, members: Iterable[int]) -> None:
        self.roster = roster
        self.flags = roster.flags(members)
        self.rows = np.flatnonzero(self.flags)
        self.members: tuple[int, ...] = tuple(roster.slots[self.rows].tolist())
        self.near = self.flags[roster.table]
        self._counts: list[int] = self.near.sum(axis=1).tolist()

    def shares_of(self, slot: int) -> int:
        """Return how many neighbours of the slot are among the members: it holds a share of each."""
        return self._counts[self.roster.index(slot)]

    def entries(self, bodies: Mapping[int, bytes]) -> "Entries":
        """Return the holders' entries, by owner of the shares.

        bodies   by slot of the holder: 17 bytes for each of its neighbours among the members, in neighbour order.
        Raises BadMessage for a body of a slot that is no member, or of another size.
        """
        slots = sorted(bodies)
        if not set(slots) <= set(self.members):
            raise BadMessage("an answer comes from a client that does not take part in the stage")
        for slot in slots:
            if len(bodies[slot]) != SHARE_SIZE * self.shares_of(slot):
                raise BadMessage(f"slot {slot} answered {len(bodies[slot])} bytes for {self.shares_of(slot)} shares")
        shape, reverse = self.near.shape, self.roster.reverse
        sent = (self.roster.flags(slots)[:, np.newaxis] & self.near).ravel()  # edges, seen from the holder
        place = (np.cumsum(sent) - 1)[reverse].reshape(shape)
        return Entries(sent[reverse].reshape(shape), place, b"".join([bodies[slot] for slot in slots]))


class Entries:
    """Holds 17-byte entries by owner and neighbour: row i, column j is neighbour j's entry about row i.

    present  whether there is one, shape (roster, degree).
    """

    def __init__(self, present: Flags, place: NDArray[np.int64], joined: bytes) -> None:
        self.present = present
        self._place, self._joined = place, joined

    def of(self, row: int) -> tuple[list[int], list[int]]:
        """Return the columns of a row that have an entry, ascending, and the entries as integers."""
        columns = np.flatnonzero(self.present[row])
        starts = (SHARE_SIZE * self._place[row, columns]).tolist()
        return columns.tolist(), [int.from_bytes(self._joined[i : i + SHARE_SIZE], "big") for i in starts]


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The outcome of stage `confirm`. Arrays have the shape (roster, degree), a row for each owner of shares.

    sharing   the members of stage `masked`.
    trusted   whether the share that the neighbour in a column holds was confirmed.
    opened    whether that neighbour states that it holds a share.
    disputed  whether the neighbour's entry contradicts the owner: one of the two lied.
    """

    sharing: Sharing
    trusted: Flags
    opened: Flags
    disputed: Flags


def judge_shares(sharing: Sharing, bodies: Mapping[int, bytes]) -> Verdict:
    """Return the members of stage `masked`, and which shares count.

    sharing   the clients that shared. bodies   of stage `confirm`, by slot.
    """
    roster = sharing.roster
    size = SHARE_SIZE * masking(roster.cohort).threshold
    entries = sharing.entries({slot: body[size:] for slot, body in bodies.items()})
    agrees, opened = (np.zeros(entries.present.shape, dtype=np.bool_) for _ in range(2))
    comparison = _Comparison(masking(roster.cohort).threshold, roster.degree)
    for slot, row in zip(sharing.members, sharing.rows.tolist(), strict=True):
        columns, values = entries.of(row)
        held = [c for c, value in zip(columns, values, strict=True) if value < PRIME]
        opened[row, held] = True
        if slot in bodies:
            below = [value for value in values if value < PRIME]
            agrees[row, held] = comparison.agreeing(read_elements(bodies[slot][:size]), held, below)
    confirmed = roster.flags(bodies)
    disputed = entries.present & ~agrees & (confirmed[:, np.newaxis] | ~opened)
    members = roster.slots[_settle(sharing, confirmed, agrees)].tolist()
    return Verdict(Sharing(roster, members), agrees, opened, disputed)


def name_liars(sharing: Sharing, disputed: Flags) -> Flags:
    """Return for each row of the roster whether it provably lied, from the disputed pairs (rows: owners of shares).

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
