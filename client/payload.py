"""A randomized row as the bytes that S takes: packed in Z_m, or as labelled bits."""

import numpy as np
from numpy.typing import NDArray

from common.errors import BadParameter
from common.modular import pack


def record(row: NDArray[np.uint64], modulus: int) -> bytes:
    """The payload of a sealed record: `row`, shape (D,), packed at ⌈log₂ modulus⌉ bits a coordinate."""
    return pack(row, modulus)


def labelled_bits(row: NDArray[np.uint64], width: int) -> bytes:
    """`width` bits for each label, label after label, padded with zeros to whole bytes at the very end.

    Label d carries row[d] ones and then zeros: S permutes the bits of a label over all its clients, so that their order
    here tells nothing. Bit i of the message is bit i mod 8 of byte i // 8, low bit first, as everywhere on our wire.
    Raises BadParameter when a count of ones is above `width`.
    """
    if (row > width).any():
        raise BadParameter("ones", int(row.max()), f"a label has {width} bits")
    bits = np.arange(width, dtype=np.uint64) < row[:, np.newaxis]
    return np.packbits(bits, bitorder="little").tobytes()
