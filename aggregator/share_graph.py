"""Which client holds a share of which other, as arrays over the neighbour graph."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from distrust.common.crypto.graph import Roster
from distrust.common.crypto.share import SHARE
from distrust.common.errors import BadMessage

Flags = NDArray[np.bool_]


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
        """Return what holders sent, seen from the owners of the shares.

        bodies   by slot of the holder: 17 bytes for each of its neighbours among the members, in neighbour order.
        Raises BadMessage for a body of a slot that is no member, or of another size.
        """
        slots = sorted(bodies)
        if not set(slots) <= set(self.members):
            raise BadMessage("an answer comes from a client that does not take part in the stage")
        for slot in slots:
            if len(bodies[slot]) != SHARE * self.shares_of(slot):
                raise BadMessage(f"slot {slot} answered {len(bodies[slot])} bytes for {self.shares_of(slot)} shares")
        shape, reverse = self.near.shape, self.roster.reverse
        sent = (self.roster.flags(slots)[:, np.newaxis] & self.near).ravel()  # edges, seen from the holder
        place = (np.cumsum(sent) - 1)[reverse].reshape(shape)
        return Entries(sent[reverse].reshape(shape), place, b"".join([bodies[slot] for slot in slots]))


class Entries:
    """17-byte entries by owner and neighbour: row i, column j is what neighbour j of row i sent about row i.

    given   whether there is one, shape (roster, degree).
    """

    def __init__(self, given: Flags, place: NDArray[np.int64], joined: bytes) -> None:
        self.given = given
        self._place, self._joined = place, joined

    def of(self, row: int) -> tuple[list[int], list[int]]:
        """Return the columns of a row that have an entry, ascending, and the entries as integers."""
        columns = np.flatnonzero(self.given[row])
        starts = (SHARE * self._place[row, columns]).tolist()
        return columns.tolist(), [int.from_bytes(self._joined[i : i + SHARE], "big") for i in starts]
