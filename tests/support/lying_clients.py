"""Clients that lie, each at one stage: their messages are changed after they computed them honestly."""

import os
import random
from collections.abc import Collection, Iterable

from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.keys import binding
from distrust.common.protocol.crypto.seal import BOX, close_box
from distrust.common.protocol.crypto.share import MISSING, PRIME, SHARE_SIZE, polynomials
from distrust.lab.secagg_simulation import Simulation

COMMITMENT = 32


def element() -> bytes:
    return (int.from_bytes(os.urandom(SHARE_SIZE), "big") % PRIME).to_bytes(SHARE_SIZE, "big")


def replace_entries(body: bytes, places: Iterable[int], entry: bytes | None = None) -> bytes:
    """Return a body with other field elements, or with `entry`, at these places of 17 bytes."""
    parts = [body[i : i + SHARE_SIZE] for i in range(0, len(body), SHARE_SIZE)]
    for place in places:
        parts[place] = element() if entry is None else entry
    return b"".join(parts)


class Lies:
    """Lies in a simulation. The caller may tell any number before `settle`, `judge` or `release`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.threshold = masking(simulation.cohort).threshold

    def holders(self, dealer: int, count: int, chance: random.Random) -> list[int]:
        near = self.simulation.roster.neighbours(dealer)
        return chance.sample(near, min(count, len(near)))

    def send_rubbish(self, dealer: int, holders: Collection[int]) -> None:
        """Send these holders boxes that do not open."""
        for holder in holders:
            self._box(dealer, holder, os.urandom(BOX))

    def deal_rubbish(self, dealer: int, holders: Collection[int]) -> None:
        """Send these holders boxes that open, with random field elements for shares."""
        for holder in holders:
            self._close(dealer, holder, element() + element() + element())

    def deal_two_polynomials(self, dealer: int, holders: Collection[int]) -> None:
        """Send these holders shares of other polynomials. Their shares agree with one another, not with the rest."""
        others = polynomials(os.urandom(16), os.urandom(16), self.threshold)
        for holder in holders:
            point = 1 + self.simulation.roster.neighbours(dealer).index(holder)
            values = [sum(c * pow(point, i, PRIME) for i, c in enumerate(poly)) % PRIME for poly in others]
            self._close(dealer, holder, b"".join(value.to_bytes(SHARE_SIZE, "big") for value in values))

    def show_another_polynomial(self, dealer: int) -> None:
        body = self.simulation.confirmed[dealer]
        self.simulation.confirmed[dealer] = replace_entries(body, range(self.threshold))

    def accuse(self, holder: int, dealers: Collection[int], entry: bytes | None = None) -> None:
        """Replace a holder's values of good shares at `confirm` by other elements, or by `entry`, such as `MISSING`."""
        places = [self.threshold + self._shared(holder).index(dealer) for dealer in dealers]
        self.simulation.confirmed[holder] = replace_entries(self.simulation.confirmed[holder], places, entry)

    def return_false_shares(self, holder: int, dealers: Collection[int], entry: bytes | None = None) -> None:
        """Replace the shares that a holder returns at `unmask` by other elements, or by `entry`, such as `MISSING`."""
        near = self._members(holder)
        places = [near.index(dealer) for dealer in dealers if dealer in near]
        self.simulation.answers[holder] = replace_entries(self.simulation.answers[holder], places, entry)

    def _shared(self, slot: int) -> list[int]:
        return [v for v in self.simulation.roster.neighbours(slot) if v in self.simulation.shared]

    def _members(self, slot: int) -> list[int]:
        return [v for v in self.simulation.roster.neighbours(slot) if v in self.simulation.members]

    def _close(self, dealer: int, holder: int, triple: bytes) -> None:
        secrets = self.simulation.clients[dealer]._secrets
        assert secrets is not None
        box = binding(self.simulation.cohort).box
        self._box(dealer, holder, close_box(secrets.channel_keys[holder], dealer, holder, box, triple))

    def _box(self, dealer: int, holder: int, box: bytes) -> None:
        start = COMMITMENT + BOX * self.simulation.roster.neighbours(dealer).index(holder)
        body = self.simulation.shares[dealer]
        self.simulation.shares[dealer] = body[:start] + box + body[start + BOX :]


__all__ = ["MISSING", "Lies", "element", "replace_entries"]
