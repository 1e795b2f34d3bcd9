"""Represents a cohort's members as a bitmap and as a roster, and computes the graph of neighbours that share secrets.

In a bitmap, slot i is bit i mod 8 of byte i // 8, low bit first.
The graph is a Harary ring of degree k over a permutation of the members: each is joined to the k/2 before it and the
k/2 behind it (Bell et al. 2020, section 3). The permutation is Fisher-Yates on an AES-256-CTR stream keyed with
SHA-256(cohort ‖ members ‖ keys): every party can compute it again.
"""

import hashlib
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.crypto.context import context, masking
from distrust.common.protocol.crypto.keys import KEY
from distrust.common.protocol.messages.cohort import Cohort

KEYS_SIZE = 2 * KEY
"""Bytes of one client's keys: mask key, channel key."""


def bitmap_size(clients: int) -> int:
    """Return the bytes of a bitmap over `clients` slots."""
    return (clients + 7) // 8


def members_to_bitmap(members: Iterable[int], clients: int) -> bytes:
    """Return slots, in any order, as ⌈clients/8⌉ bytes. Raises BadMessage for a slot outside the cohort or a repeat."""
    slots = np.fromiter(members, dtype=np.int64)
    if slots.size and not 0 <= slots.min() <= slots.max() < clients:
        raise BadMessage(f"members must be slots below {clients}")
    flags = np.zeros(8 * bitmap_size(clients), dtype=np.uint8)
    flags[slots] = 1
    if int(flags.sum()) != slots.size:
        raise BadMessage("a member is listed twice")
    return np.packbits(flags, bitorder="little").tobytes()


def bitmap_to_members(bitmap: bytes, clients: int) -> tuple[int, ...]:
    """Return a bitmap's slots, ascending. Raises BadMessage for a wrong size or a bit outside the cohort."""
    return tuple(np.flatnonzero(bitmap_flags(bitmap, clients)).tolist())


def bitmap_flags(bitmap: bytes, clients: int) -> NDArray[np.bool_]:
    """Return a bitmap as booleans, shape (clients,)."""
    bitmap_integer(bitmap, clients)
    flags = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    return flags[:clients].astype(np.bool_)


def bitmap_integer(bitmap: bytes, clients: int) -> int:
    """Return a bitmap as an integer whose bit i is slot i, for `&` and `bit_count`."""
    if len(bitmap) != bitmap_size(clients):
        raise BadMessage(f"a bitmap of {clients} slots has {bitmap_size(clients)} bytes, this one {len(bitmap)}")
    members = int.from_bytes(bitmap, "little")
    if members >> clients:
        raise BadMessage(f"a bitmap names slots that the cohort of {clients} does not have")
    return members


class Roster:
    """The members of a cohort and their public keys. Nothing in it is secret, so a fleet's clients share one.

    bitmap   the members, as on the wire; `members` lists their slots, ascending, `bits` has them as an integer.
    keys     64 bytes for each member, in the order of `members`.
    Raises BadMessage when the sizes do not agree.
    """

    def __init__(self, cohort: Cohort, bitmap: bytes, keys: bytes) -> None:
        self.bitmap, self.keys = bitmap, keys
        self.members = bitmap_to_members(bitmap, cohort.clients)
        self.bits = bitmap_integer(bitmap, cohort.clients)
        if len(keys) != KEYS_SIZE * len(self.members):
            raise BadMessage(
                f"a roster of {len(self.members)} members has {KEYS_SIZE * len(self.members)} bytes, not {len(keys)}"
            )
        self.digest = hashlib.sha256(context("distrust graph v3", cohort) + bitmap + keys).digest()
        self.cohort = cohort
        self._index = {slot: i for i, slot in enumerate(self.members)}
        self._judged: tuple[tuple[int, int, int], str | None] | None = None

    def __contains__(self, slot: int) -> bool:
        return slot in self._index

    def __len__(self) -> int:
        return len(self.members)

    def keys_of(self, slot: int) -> bytes:
        """Return the mask key and channel key of a member, 64 bytes."""
        start = KEYS_SIZE * self._index[slot]
        return self.keys[start : start + KEYS_SIZE]

    def mask_key(self, slot: int) -> bytes:
        return self.keys_of(slot)[:KEY]

    def channel_key(self, slot: int) -> bytes:
        return self.keys_of(slot)[KEY:]

    def index(self, slot: int) -> int:
        """Return a member's row in `table`."""
        return self._index[slot]

    def neighbours(self, slot: int) -> tuple[int, ...]:
        """Return the slots of a member's neighbours, ascending."""
        return self._neighbours[self._index[slot]]

    @property
    def degree(self) -> int:
        """Return the number of neighbours of each member."""
        return min(masking(self.cohort).neighbours, len(self.members) - 1)

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """Return the members' slots as an array."""
        return np.array(self.members, dtype=np.int64)

    def flags(self, members: Iterable[int]) -> NDArray[np.bool_]:
        """Return for each member whether it is listed, shape (members,). Raises BadMessage for other slots."""
        flags = np.zeros(len(self.members), dtype=np.bool_)
        try:
            flags[[self._index[slot] for slot in members]] = True
        except KeyError as error:
            raise BadMessage(f"slot {error.args[0]} is not in the roster") from error
        return flags

    def fault(self, members: int, survivors: int, densest: int) -> str | None:
        """Return why these survivors must not be unmasked, or None. Caches the last answer.

        members     the clients whose shares were confirmed, survivors those of them whose vectors arrived; as bits.
        densest     w, see `common.protocol.crypto.parameters.window`.
        Every member, alive or lost, needs t neighbours among the survivors, and no k/2 consecutive places of the ring
        may hold more than w clients that are not among them.
        """
        question = (members, survivors, densest)
        if self._judged is None or self._judged[0] != question:
            self._judged = question, self._find_fault(members, survivors, densest)
        return self._judged[1]

    def _find_fault(self, members: int, survivors: int, densest: int) -> str | None:
        alive, present = (self.flags(_slots(bits)) for bits in (survivors, members))
        around = np.where(present, self.around(alive), len(self))
        worst, t = int(around.argmin()), masking(self.cohort).threshold
        if around[worst] < t:
            return f"{around[worst]} neighbours of slot {self.members[worst]} are left, and t = {t}"
        lost = self.densest(~alive)
        if lost > densest:
            return f"{lost} lost clients lie in consecutive places of the ring, and {densest} may"
        return None

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """Return the rows of each member's neighbours, ascending, shape (members, degree): row i is member i's."""
        return harary(self.ring, masking(self.cohort).neighbours)

    @cached_property
    def ring(self) -> NDArray[np.int64]:
        """Return the rows of the members in the order of the ring, shape (members,)."""
        return keyed_permutation(self.digest, len(self.members))

    def around(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return for each member how many of its neighbours have a flag, shape (members,). `flags` has that shape."""
        if self.degree == len(self.members) - 1:
            return int(flags.sum()) - flags.astype(np.int64)
        counts = np.empty(len(self.members), dtype=np.int64)
        counts[self.ring] = _windows(flags[self.ring], self.degree + 1, self.degree // 2) - flags[self.ring]
        return counts

    def densest(self, flags: NDArray[np.bool_]) -> int:
        """Return the most flags in k/2 consecutive places of the ring; in a cohort with the full graph, all flags."""
        half = masking(self.cohort).neighbours // 2
        if masking(self.cohort).neighbours >= self.cohort.clients - 1 or half >= len(self.members):
            return int(flags.sum())
        return int(_windows(flags[self.ring], half, 0).max())

    @cached_property
    def reverse(self) -> NDArray[np.int64]:
        """Return for each edge, numbered along `table`, the number of the same edge seen from its other end."""
        sources = np.repeat(np.arange(self.table.shape[0]), self.table.shape[1])
        return np.lexsort((sources, self.table.ravel()))

    @cached_property
    def _neighbours(self) -> list[tuple[int, ...]]:
        return list(map(tuple, self.slots[self.table].tolist()))


def _slots(bits: int) -> list[int]:
    raw = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    slots: list[int] = np.flatnonzero(np.unpackbits(raw, bitorder="little")).tolist()
    return slots


def _windows(flags: NDArray[np.bool_], size: int, before: int) -> NDArray[np.int64]:
    """Return for each place of a ring the flags in the `size` places that begin `before` places before it."""
    places = len(flags)
    sums = np.concatenate([[0], np.cumsum(np.concatenate([flags, flags, flags]))])
    starts = places - before + np.arange(places)
    return np.asarray(sums[starts + size] - sums[starts], dtype=np.int64)


def harary(order: NDArray[np.int64], degree: int) -> NDArray[np.int64]:
    """Return the neighbours of each vertex on the ring `order`, ascending: shape (vertices, min(degree, vertices - 1)).

    The graph is complete when the degree reaches vertices - 1. Raises BadParameter for an odd degree below that.
    """
    size = len(order)
    if degree >= size - 1:
        others = np.arange(size - 1)
        return others + (others >= np.arange(size)[:, np.newaxis])
    if degree % 2:
        raise BadParameter("neighbours", degree, "must be even, or reach every other member")
    steps = np.concatenate([np.arange(-(degree // 2), 0), np.arange(1, degree // 2 + 1)])
    table = np.empty((size, degree), dtype=np.int64)
    table[order] = order[(np.arange(size)[:, np.newaxis] + steps) % size]
    table.sort(axis=1)
    return table


def keyed_permutation(key: bytes, size: int) -> NDArray[np.int64]:
    """Return a permutation of range(size), uniform for a uniform key (32 bytes): Fisher-Yates with rejection."""
    stream = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    words: list[int] = []
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        limit = 2**64 - 2**64 % (last + 1)
        word = limit
        while word >= limit:
            if not words:
                words = np.frombuffer(stream.update(bytes(8 * 1024)), dtype="<u8")[::-1].tolist()
            word = words.pop()
        other = word % (last + 1)
        order[last], order[other] = order[other], order[last]
    return np.array(order, dtype=np.int64)
