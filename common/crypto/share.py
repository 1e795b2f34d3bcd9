"""Shamir's secret sharing over the prime field 2¹³⁰ - 5 (Shamir 1979): 16-byte secrets, 17-byte shares.

The share at point x is f(x), f a polynomial of degree t - 1 with f(0) = the secret and uniform other coefficients.
Points are 1, 2, …: a neighbour's place in the owner's neighbour order, so most owners have the same Lagrange
coefficients.
"""

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import comb, prod
from operator import mul

from common.crypto.agree import SEED
from common.errors import BadParameter, BadShare

PRIME = 2**130 - 5
SHARE = 17
"""Bytes of a share, big endian."""

_MASK = 2**130 - 1


def split_pair(first: bytes, second: bytes, count: int, threshold: int) -> list[bytes]:
    """Two secrets to `count` pairs of shares (34 bytes) at 1 … count; any `threshold` pairs rebuild both secrets."""
    if not 1 <= threshold <= count:
        raise BadParameter("threshold", threshold, f"must lie in [1, {count}], the number of shares")
    return evaluate_pair(_polynomial(first, threshold), _polynomial(second, threshold), count)


def evaluate_pair(first: Sequence[int], second: Sequence[int], count: int) -> list[bytes]:
    """Both polynomials (coefficients from the constant up) at 1 … count.

    Both travel through one Horner scheme, side by side in one integer; points are small, so nothing is reduced.
    """
    room = PRIME.bit_length() + (count.bit_length() + 1) * len(first)
    joined = [a | b << room for a, b in zip(reversed(first), reversed(second), strict=True)]
    low = (1 << room) - 1
    pairs = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in joined:
            value = value * x + coefficient
        pairs.append(((value & low) % PRIME << 136 | (value >> room) % PRIME).to_bytes(2 * SHARE, "big"))
    return pairs


def combine(points: tuple[int, ...], shares: Sequence[bytes]) -> bytes:
    """The secret from exactly t shares at t distinct points, ascending from 1.

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
    """Lagrange's coefficients at zero, λ_i = Π_{j≠i} j / (j - i), for ascending points.

    At the points 1 … r they are ±C(r, i); leaving points out multiplies them by Π (j - i)/j over the points j left
    out, so that a nearly full set costs a few small products instead of t² large ones.
    """
    if points[0] < 1 or any(a >= b for a, b in pairwise(points)):
        raise BadParameter("points", points, "must ascend from 1 or more, without repeats")
    last = points[-1]
    absent = sorted(set(range(1, last)) - set(points))
    scale = pow(prod(absent), -1, PRIME)
    return tuple((-1) ** (i - 1) * comb(last, i) * prod([j - i for j in absent]) * scale % PRIME for i in points)


def _polynomial(secret: bytes, threshold: int) -> list[int]:
    if len(secret) != SEED:
        raise BadParameter("secret", f"{len(secret)} bytes", f"must have {SEED} bytes")
    return [int.from_bytes(secret, "big"), *_uniform(threshold - 1)]


def _uniform(count: int) -> list[int]:
    """Uniform field elements: 130 random bits, again in the 2⁻¹²⁷ cases that lie above the prime."""
    values: list[int] = []
    while len(values) < count:
        drawn = os.urandom(SHARE * (count - len(values)))
        words = [int.from_bytes(drawn[i : i + SHARE], "big") & _MASK for i in range(0, len(drawn), SHARE)]
        values += [word for word in words if word < PRIME]
    return values
