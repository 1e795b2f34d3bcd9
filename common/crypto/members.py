"""Members of a cohort as a bitmap: slot i is bit i mod 8 of byte i // 8, low bit first."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadMessage


def bitmap_size(clients: int) -> int:
    """Bytes of a bitmap over `clients` slots."""
    return (clients + 7) // 8


def members_to_bitmap(members: Iterable[int], clients: int) -> bytes:
    """Slots, in any order, to ⌈clients/8⌉ bytes. Raises BadMessage for a slot outside the cohort or a repeated one."""
    slots = np.fromiter(members, dtype=np.int64)
    if slots.size and not 0 <= slots.min() <= slots.max() < clients:
        raise BadMessage(f"members must be slots below {clients}")
    flags = np.zeros(8 * bitmap_size(clients), dtype=np.uint8)
    flags[slots] = 1
    if int(flags.sum()) != slots.size:
        raise BadMessage("a member is listed twice")
    return np.packbits(flags, bitorder="little").tobytes()


def bitmap_to_members(bitmap: bytes, clients: int) -> tuple[int, ...]:
    """A bitmap to its slots, ascending. Raises BadMessage for a wrong size or a bit outside the cohort."""
    return tuple(np.flatnonzero(bitmap_flags(bitmap, clients)).tolist())


def bitmap_flags(bitmap: bytes, clients: int) -> NDArray[np.bool_]:
    """A bitmap as booleans, shape (clients,)."""
    bitmap_integer(bitmap, clients)
    flags = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    return flags[:clients].astype(np.bool_)


def bitmap_integer(bitmap: bytes, clients: int) -> int:
    """A bitmap as an integer whose bit i is slot i: sets become machine words, `&` and `bit_count`."""
    if len(bitmap) != bitmap_size(clients):
        raise BadMessage(f"a bitmap of {clients} slots has {bitmap_size(clients)} bytes, this one {len(bitmap)}")
    members = int.from_bytes(bitmap, "little")
    if members >> clients:
        raise BadMessage(f"a bitmap names slots that the cohort of {clients} does not have")
    return members
