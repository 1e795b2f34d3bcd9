"""Numbers modulo m as bytes, their sums without overflow, and what they stand for in a window of length m.

On the wire a vector of Z_m takes ⌈log₂ m⌉ bits a coordinate, big endian, one coordinate after another over the whole
vector; the last byte is filled with zeros. In memory it is an array of uint64, and every m lies below 2⁶³, so that
a + (m - b) fits.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadMessage, BadParameter

Vector = NDArray[np.uint64]

_SMALL = 16  # coordinates up to which Python's integers beat numpy's set-up
_BLOCK = 1 << 19  # coordinates packed or unpacked at once: up to 64 bytes each while their bits lie open


def width(modulus: int) -> int:
    """Return ⌈log₂ m⌉: bits of one coordinate."""
    if not 2 <= modulus < 2**63:
        raise BadParameter("modulus", modulus, "must lie in [2, 2⁶³)")
    return (modulus - 1).bit_length()


def packed_size(modulus: int, dimension: int) -> int:
    """Return the bytes of one packed vector."""
    return (width(modulus) * dimension + 7) // 8


def pack(vector: Vector, modulus: int) -> bytes:
    """Return one vector, shape (dimension,), as `packed_size` bytes. Raises BadMessage for a value of m or more."""
    if vector.size > _SMALL:
        return pack_rows(vector[np.newaxis, :], modulus)
    bits, word = width(modulus), 0
    for value in vector.tolist():
        _check_below(value, modulus)
        word = word << bits | value
    size = packed_size(modulus, vector.size)
    return (word << (8 * size - bits * vector.size)).to_bytes(size, "big")


def unpack(body: bytes, modulus: int, dimension: int) -> Vector:
    """Return the packed vector as uint64, shape (dimension,).

    Raises BadMessage for a wrong size, a value of m or more, or padding that is not zero.
    """
    if dimension > _SMALL:
        return unpack_rows(_sized(body, packed_size(modulus, dimension)), modulus, dimension).reshape(dimension)
    bits, size = width(modulus), packed_size(modulus, dimension)
    word, spare = int.from_bytes(_sized(body, size), "big"), 8 * size - bits * dimension
    if word & ((1 << spare) - 1):
        raise BadMessage("a packed vector must end in zero bits")
    word >>= spare
    values = [word >> (bits * i) & ((1 << bits) - 1) for i in reversed(range(dimension))]
    _check_below(max(values), modulus)
    return np.array(values, dtype=np.uint64)


def pack_rows(matrix: Vector, modulus: int) -> bytes:
    """Return vectors, shape (n, dimension), packed one after another, each padded to whole bytes."""
    bits, step = width(modulus), max(1, _BLOCK // max(1, matrix.shape[1]))
    if matrix.size:
        _check_below(int(matrix.max()), modulus)
    return b"".join(_pack_block(matrix[i : i + step], bits) for i in range(0, matrix.shape[0], step))


def unpack_rows(body: bytes, modulus: int, dimension: int) -> Vector:
    """Return packed vectors as uint64, shape (n, dimension). Raises BadMessage like `unpack`."""
    bits, size = width(modulus), packed_size(modulus, dimension)
    if len(body) % size:
        raise BadMessage(f"packed vectors of {size} bytes each cannot fill {len(body)} bytes")
    rows = np.frombuffer(body, dtype=np.uint8).reshape(-1, size)
    matrix = np.empty((rows.shape[0], dimension), dtype=np.uint64)
    step = max(1, _BLOCK // dimension)
    for i in range(0, rows.shape[0], step):
        matrix[i : i + step] = _unpack_block(rows[i : i + step], bits, dimension)
    if matrix.size:
        _check_below(int(matrix.max()), modulus)
    return matrix


def add(a: Vector, b: Vector, modulus: int) -> Vector:
    """Return a + b mod m, for operands below m."""
    return (a + b) % np.uint64(modulus)


def subtract(a: Vector, b: Vector, modulus: int) -> Vector:
    """Return a - b mod m, for operands below m: a + (m - b) stays below 2⁶⁴."""
    return (a + (np.uint64(modulus) - b)) % np.uint64(modulus)


def in_window(numbers: NDArray[Any], least: int | NDArray[np.int64], modulus: int) -> NDArray[Any]:
    """Return the numbers of [least, least + m) that equal `numbers` modulo m, of the same shape.

    numbers  integers in signed words, or reals, which then stay as they are to the last bit where they lie in there.
    least    the window's lower end, for all numbers or for each of them.
    """
    result: NDArray[Any] = numbers - modulus * np.floor_divide(numbers - least, modulus)
    return result


def sum_rows(matrix: Vector, modulus: int) -> Vector:
    """Return the sum mod m of n rows below m, shape (…, n, dimension) to (…, dimension); zeros for no rows."""
    rows = matrix.shape[-2]
    if not rows:
        return np.zeros((*matrix.shape[:-2], matrix.shape[-1]), dtype=np.uint64)
    while rows > 1:
        starts = np.arange(0, rows, min(rows_per_word(modulus), rows))
        matrix = np.add.reduceat(matrix, starts, axis=-2) % np.uint64(modulus)
        rows = matrix.shape[-2]
    return matrix[..., 0, :]


def rows_per_word(modulus: int) -> int:
    """Return how many values below m add up without leaving 64 bits; at least two."""
    return int((2**64 - 1) // (modulus - 1))


def _check_below(value: int, modulus: int) -> None:
    if value >= modulus:
        raise BadMessage(f"a coordinate is {value}, and must be below the modulus {modulus}")


def _sized(body: bytes, size: int) -> bytes:
    if len(body) != size:
        raise BadMessage(f"a packed vector has {len(body)} bytes, and must have {size}")
    return body


def _pack_block(matrix: Vector, bits: int) -> bytes:
    octets = np.ascontiguousarray(matrix, dtype=">u8").view(np.uint8).reshape(*matrix.shape, 8)
    used = (bits + 7) // 8
    opened = np.unpackbits(octets[:, :, 8 - used :], axis=2)[:, :, 8 * used - bits :]
    return np.packbits(opened.reshape(matrix.shape[0], -1), axis=1).tobytes()


def _unpack_block(rows: NDArray[np.uint8], bits: int, dimension: int) -> Vector:
    """Return coordinates, read from the eight bytes that hold the first bit; wide ones also from the next byte."""
    starts, skip, behind = _places(bits, dimension)
    padded = np.zeros((rows.shape[0], rows.shape[1] + 8), dtype=np.uint8)
    padded[:, : rows.shape[1]] = rows
    if (rows[:, -1] & ((1 << -bits * dimension % 8) - 1)).any():
        raise BadMessage("a packed vector must end in zero bits")
    windows = np.ndarray((rows.shape[0], rows.shape[1] + 1), ">u8", padded.data, strides=(padded.shape[1], 1))
    values = windows[:, starts].astype(np.uint64) << skip
    if bits > 57:
        values |= padded[:, starts + 8].astype(np.uint64) >> behind
    return values >> np.uint64(64 - bits)


@lru_cache(maxsize=64)
def _places(bits: int, dimension: int) -> tuple[NDArray[np.int64], Vector, Vector]:
    """Return for each coordinate the byte that holds its first bit, the bits before it there, and 8 minus these."""
    first = np.arange(dimension, dtype=np.int64) * bits
    skip = (first % 8).astype(np.uint64)
    return first // 8, skip, np.uint64(8) - skip
