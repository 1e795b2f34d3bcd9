"""Masks: uniform vectors in Z_m from a 256-bit key.

The vector is the first `dimension` accepted words of an AES-256-CTR keystream (counter from zero), read as
little-endian words of 64 bits. A word below the greatest multiple of m that is at most 2⁶⁴ is accepted, and reduced
mod m. So the vector is exactly uniform for any m, and does not depend on how many words are drawn at once. A key serves
one vector, so the counter may start at zero, and the key is zeroed as its stream is made.
"""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from distrust.common.modular import Vector, rows_per_word
from distrust.common.randomness import wipe

_START = CTR(bytes(16))
_SMALL = 8  # coordinates up to which Python's integers beat numpy's set-up
_WORD = 8  # bytes of the key stream for one try at a coordinate
_ZEROS = bytes(_WORD * _SMALL)


def sum_masks(keys: Iterable[bytearray], modulus: int, dimension: int) -> Vector:
    """Return the sum mod m of the masks under `keys` (32 bytes each), shape (dimension,); of one key its mask.

    Each key is zeroed.
    """
    if dimension == 1:
        return np.array([sum(_one(key, modulus) for key in keys) % modulus], dtype=np.uint64)
    if dimension <= _SMALL:
        rows = zip(*(_few(key, modulus, dimension) for key in keys), strict=True)
        return np.array([sum(row) % modulus for row in rows] or [0] * dimension, dtype=np.uint64)
    return _sum_many(keys, modulus, dimension)


def _sum_many(keys: Iterable[bytearray], modulus: int, dimension: int) -> Vector:
    sum_, room, m = np.zeros(dimension, dtype=np.uint64), rows_per_word(modulus) - 1, np.uint64(modulus)
    left = room
    for key in keys:
        sum_ += _many(key, modulus, dimension)
        left -= 1
        if not left:
            sum_ %= m
            left = room
    return sum_ % m


def _stream(key: bytearray) -> CipherContext:
    stream = Cipher(AES256(key), _START).encryptor()
    wipe(key)
    return stream


def _one(key: bytearray, modulus: int) -> int:
    stream, limit = _stream(key), 2**64 - 2**64 % modulus
    while True:
        word = int.from_bytes(stream.update(_ZEROS[:_WORD]), "little")
        if word < limit:
            return word % modulus


def _few(key: bytearray, modulus: int, dimension: int) -> list[int]:
    stream, limit = _stream(key), 2**64 - 2**64 % modulus
    values: list[int] = []
    while len(values) < dimension:
        drawn = stream.update(_ZEROS[: _WORD * (dimension - len(values))])
        words = [int.from_bytes(drawn[i : i + _WORD], "little") for i in range(0, len(drawn), _WORD)]
        values += [word % modulus for word in words if word < limit]
    return values


def _many(key: bytearray, modulus: int, dimension: int) -> Vector:
    stream, last = _stream(key), np.uint64(2**64 - 1 - 2**64 % modulus)
    words = _draw(stream, dimension)
    if words.max() > last:
        words = words[words <= last]
        while words.size < dimension:
            more = _draw(stream, dimension - words.size)
            words = np.concatenate([words, more[more <= last]])
    return words % np.uint64(modulus)


def _draw(stream: CipherContext, count: int) -> Vector:
    return np.frombuffer(stream.update(bytes(_WORD * count)), dtype="<u8").astype(np.uint64, copy=False)
