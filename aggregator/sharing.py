"""Who shared with whom, as arrays over the neighbour graph."""

from collections.abc import Iterable

import numpy as np

from common.crypto.graph import Roster


class Sharing:
    """The members of stage `masked`, on the roster's graph.

    shared   their slots, ascending; `rows` are their rows in the roster's table.
    flags    for each member whether it shared, shape (members,).
    near     for each member which of its neighbours shared, shape (members, degree).
    """

    def __init__(self, roster: Roster, shared: Iterable[int]) -> None:
        self.roster = roster
        self.flags = roster.flags(shared)
        self.rows = np.flatnonzero(self.flags)
        self.shared: tuple[int, ...] = tuple(roster.slots[self.rows].tolist())
        self.near = self.flags[roster.table]
        self._counts: list[int] = self.near.sum(axis=1).tolist()

    def shares_of(self, slot: int) -> int:
        """How many shares the slot was given: its neighbours that shared."""
        return self._counts[self.roster.index(slot)]
