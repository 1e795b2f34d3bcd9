"""Implements Shamir's secret sharing over the prime field 2¹³⁰ - 5 (Shamir 1979): 16-byte secrets, 17-byte shares.

The share at point x is f(x), f a polynomial of degree t - 1 with f(0) = the secret and uniform other coefficients.
Points are 1, 2, …: a neighbour's place in the owner's neighbour order, so most owners have the same Lagrange
coefficients. A polynomial is a list of t coefficients, the constant first.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import comb, prod
from operator import mul

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter, BadShare

SEED = 16
"""Bytes of a seed: a secret that is shared. Of the mask key pair, or of the self mask."""

PRIME = 2**130 - 5  # of the field of shares: a seed has 128 bits
SHARE_SIZE = 17
"""Bytes of a share, big endian."""
MISSING = b"\xff" * SHARE_SIZE
"""Sent in place of a share that a client does not hold. It is no field element."""

Polynomial = list[int]

_MASK = 2**130 - 1
_WORD = 2**136 - 1
_BITS, _LIMBS = 22, 6  # six limbs of 22 bits hold 132 bits
_SMALL = 2_000  # products up to which Python's integers beat numpy's set-up
_BLOCK = 512  # coefficients in one product of matrices


def polynomials(
    first: bytes | bytearray, second: bytes | bytearray, threshold: int
) -> tuple[Polynomial, Polynomial, Polynomial]:
    """Return three fresh polynomials that a client deals: of its two secrets, and a uniform one that blinds them."""
    return _polynomial(first, threshold), _polynomial(second, threshold), _uniform(threshold)


def evaluate(polynomials_: Sequence[Polynomial], count: int) -> list[bytes]:
    """Return the polynomials' values at the points 1 … count: 17 bytes each, side by side, for each point.

    Raises BadParameter unless `count` shares can rebuild a secret.
    """
    threshold = len(polynomials_[0])
    if not 1 <= threshold <= count:
        raise BadParameter("threshold", threshold, f"must lie in [1, {count}], the number of shares")
    if threshold * count <= _SMALL:
        return _horner(polynomials_, count)
    columns = [_values(polynomial, count) for polynomial in polynomials_]
    return [b"".join(values) for values in zip(*columns, strict=True)]


def blend(factors: tuple[int, int], rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Return γ₁·a + γ₂·b + r for each row (a, b, r) of field elements: 17 bytes each."""
    first, second = factors
    return b"".join([((first * a + second * b + r) % PRIME).to_bytes(SHARE_SIZE, "big") for a, b, r in rows])


def read_triple(triple: bytes | bytearray) -> tuple[int, int, int] | None:
    """Return the three field elements in 51 bytes, or None if one of them is none."""
    word = int.from_bytes(triple, "big")
    first, second, third = word >> 272, word >> 136 & _WORD, word & _WORD
    return (first, second, third) if first < PRIME and second < PRIME and third < PRIME else None


def read_elements(body: bytes) -> list[int]:
    """Return the integers that 17-byte groups hold; PRIME or more where there is no field element."""
    return [int.from_bytes(body[i : i + SHARE_SIZE], "big") for i in range(0, len(body), SHARE_SIZE)]


def combine(points: tuple[int, ...], shares: Sequence[bytes]) -> bytes:
    """Return the secret from exactly t shares at t distinct points, ascending from 1.

    Raises BadShare if they cannot come from a 16-byte secret.
    """
    values = [int.from_bytes(share, "big") for share in shares]
    if len(values) != len(points) or max(values) >= PRIME:
        raise BadShare("a share is no element of the field, or there is not one for each point")
    secret: int = sum(map(mul, coefficients(points), values)) % PRIME
    if secret >> 8 * SEED:
        raise BadShare("the shares do not belong together: no secret of 16 bytes gives them")
    return secret.to_bytes(SEED, "big")


@lru_cache(maxsize=5_000)
def coefficients(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's coefficients at zero, λ_i = Π_{j≠i} j / (j - i), for ascending points.

    At the points 1 … r they are ±C(r, i). Leaving points out multiplies them by Π (j - i)/j over the points j left
    out. So a nearly full set costs a few small products instead of t² large ones.
    """
    if points[0] < 1 or any(a >= b for a, b in pairwise(points)):
        raise BadParameter("points", points, "must ascend from 1 or more, without repeats")
    last = points[-1]
    absent = sorted(set(range(1, last)) - set(points))
    scale = pow(prod(absent), -1, PRIME)
    return tuple((-1) ** (i - 1) * comb(last, i) * prod([j - i for j in absent]) * scale % PRIME for i in points)


def _horner(polynomials_: Sequence[Polynomial], count: int) -> list[bytes]:
    """Return the values at 1 … count: one Horner scheme for all, side by side in one integer, reduced at the end."""
    size = len(polynomials_[0])
    room = PRIME.bit_length() + size * (count + 1).bit_length()  # a value is below PRIME·(count + 1)^size
    shifts = [room * i for i in range(len(polynomials_))]
    joined = [sum(c << shift for c, shift in zip(row, shifts, strict=True)) for row in zip(*polynomials_, strict=True)]
    joined.reverse()
    low = (1 << room) - 1
    values = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in joined:
            value = value * x + coefficient
        values.append(b"".join([((value >> shift & low) % PRIME).to_bytes(SHARE_SIZE, "big") for shift in shifts]))
    return values


def _values(polynomial: Polynomial, count: int) -> list[bytes]:
    """Return the values at 1 … count: a product of two matrices of limbs of 22 bits."""
    limbs = np.zeros((count, _LIMBS), dtype=np.int64)
    for start in range(0, len(polynomial), _BLOCK):
        block = polynomial[start : start + _BLOCK]
        # A sum of 512 products of limbs is below 2⁵³, so it is exact in floating point whatever its order.
        products = _powers(start, len(block), count) @ _split(block).astype(np.float64)
        by_limb = products.astype(np.int64).reshape(_LIMBS, count, _LIMBS)
        sums = np.zeros((count, 2 * _LIMBS), dtype=np.int64)
        for i in range(_LIMBS):
            sums[:, i : i + _LIMBS] += by_limb[i]
        # 2¹³² is 20 modulo the prime. Each sum is below 6·2⁵³, so this stays below 2⁶¹.
        limbs = _carry(limbs + sums[:, :_LIMBS] + 20 * sums[:, _LIMBS:])
    words = limbs[:, 0::2] + (limbs[:, 1::2] << _BITS)
    return [((a + (b << 44) + (c << 88)) % PRIME).to_bytes(SHARE_SIZE, "big") for a, b, c in words.tolist()]


@lru_cache(maxsize=64)
def _powers(start: int, size: int, count: int) -> NDArray[np.float64]:
    """Return the limbs of x^start … x^(start + size - 1) for x = 1 … count: shape (6·count, size), limb by limb."""
    rows = [[pow(x, power, PRIME) for power in range(start, start + size)] for x in range(1, count + 1)]
    split = np.array([_split(row) for row in rows], dtype=np.float64)
    return np.ascontiguousarray(split.transpose(2, 0, 1).reshape(_LIMBS * count, size))


def _split(values: Sequence[int]) -> NDArray[np.int64]:
    """Return field elements as six limbs of 22 bits, the lowest first: shape (values, 6)."""
    raw = b"".join([value.to_bytes(24, "little") for value in values])
    low, middle, high = np.frombuffer(raw, dtype="<u8").reshape(-1, 3).T
    limbs = np.empty((len(values), _LIMBS), dtype=np.uint64)
    limbs[:, 0], limbs[:, 1], limbs[:, 2] = low, low >> 22, low >> 44 | middle << 20
    limbs[:, 3], limbs[:, 4], limbs[:, 5] = middle >> 2, middle >> 24, middle >> 46 | high << 18
    return (limbs & np.uint64(2**_BITS - 1)).astype(np.int64)


def _carry(limbs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the limbs after carrying: all end below 2²², the first below 2⁴⁴.

    2¹³² = 20 modulo the prime: what leaves the last limb returns to the first, times 20.
    """
    for i in range(_LIMBS - 1):
        limbs[:, i + 1] += limbs[:, i] >> _BITS
        limbs[:, i] &= 2**_BITS - 1
    limbs[:, 0] += 20 * (limbs[:, -1] >> _BITS)
    limbs[:, -1] &= 2**_BITS - 1
    return limbs


def _polynomial(secret: bytes | bytearray, threshold: int) -> Polynomial:
    if len(secret) != SEED:
        raise BadParameter("secret", f"{len(secret)} bytes", f"must have {SEED} bytes")
    high, low = struct.unpack(">QQ", secret)  # `int.from_bytes` copies a bytearray into `bytes`, which stay in memory
    return [high << 64 | low, *_uniform(threshold - 1)]


def _uniform(count: int) -> list[int]:
    """Return uniform field elements: 130 random bits, drawn again in the 2⁻¹²⁷ cases that lie above the prime."""
    values: list[int] = []
    while len(values) < count:
        drawn = os.urandom(SHARE_SIZE * (count - len(values)))
        words = [int.from_bytes(drawn[i : i + SHARE_SIZE], "big") & _MASK for i in range(0, len(drawn), SHARE_SIZE)]
        values += [word for word in words if word < PRIME]
    return values
