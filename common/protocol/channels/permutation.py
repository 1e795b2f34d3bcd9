"""Draws uniform permutations from a CSPRNG: of records, and of labelled bits. Memory is bounded."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from distrust.common.randomness import Stream

_BUCKET = 2**16  # bits that are put in order at once
_DRAWS = 2**20  # bucket numbers drawn at once
_UNPACKED = 2**24  # bits unpacked at once, one byte each


def random_order(count: int, stream: Stream) -> NDArray[np.int64]:
    """Return 0 … count - 1 in uniformly random order: sorted by random 64-bit keys, redrawn if two are equal."""
    while True:
        keys = stream.words(count)
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return order


def scatter(ones: int, size: int, stream: Stream) -> bytes:
    """Return `size` bits of which `ones` are set, uniform among all such strings; ⌈size/8⌉ bytes, low bit first.

    That is the law of a uniform permutation of any `size` bits with so many ones. Every bit draws a bucket, then each
    bucket is put in random order (Rao 1961, Sandelius 1962, doi:10.1111/j.2517-6161.1962.tb00474.x).
    """
    buckets = 1 << max(0, (size - 1) // _BUCKET).bit_length()  # a power of two: a masked word is uniform
    set_bits, clear_bits = _throw(ones, buckets, stream), _throw(size - ones, buckets, stream)
    bits = np.zeros(size, dtype=np.uint8)
    start = 0
    for here, clear in zip(set_bits.tolist(), clear_bits.tolist(), strict=True):
        bits[start + random_order(here + clear, stream)[:here]] = 1
        start += here + clear
    return np.packbits(bits, bitorder="little").tobytes()


def count_ones(bodies: Iterable[bytes], labels: int, width: int) -> tuple[int, NDArray[np.int64]]:
    """Return (clients, ones by label) of packed bits: `width` bits a label, label after label, low bit first."""
    clients, ones = 0, np.zeros(labels, dtype=np.int64)
    for chunk in _chunks(bodies, max(1, _UNPACKED // (labels * width))):
        rows = np.frombuffer(b"".join(chunk), dtype=np.uint8).reshape(len(chunk), -1)
        bits = np.unpackbits(rows, axis=1, count=labels * width, bitorder="little")
        ones += bits.reshape(-1, labels, width).sum(axis=(0, 2), dtype=np.int64)
        clients += len(chunk)
    return clients, ones


def _throw(count: int, buckets: int, stream: Stream) -> NDArray[np.int64]:
    """Return how many of `count` balls fall into each bucket if each draws a bucket uniformly."""
    fallen = np.zeros(buckets, dtype=np.int64)
    for start in range(0, count, _DRAWS):
        drawn = stream.words(min(_DRAWS, count - start)) & np.uint64(buckets - 1)
        fallen += np.bincount(drawn.astype(np.int64), minlength=buckets)
    return fallen


def _chunks(bodies: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    for body in bodies:
        chunk.append(body)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
