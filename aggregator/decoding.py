"""Decodes shares with errors: finds the polynomial that most of them lie on (Gao 2003, Reed-Solomon codes).

Polynomials are lists of coefficients modulo 2¹³⁰ - 5, the constant first, without zeros at the end.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import comb, prod
from operator import mul

from distrust.common.protocol.crypto.share import PRIME, Polynomial

_KEPT = 2_000  # sets of points whose weights stay in memory


def decode(points: Sequence[int], values: Sequence[int], threshold: int) -> Polynomial | None:
    """Return the polynomial of degree below t that all but (n - t)/2 of n values lie on, or None if there is none.

    Points are distinct and small. The answer has exactly t coefficients. Takes O(n²) products.
    """
    count = len(points)
    if count < threshold:
        return None
    modulus: Polynomial = [1]
    for point in points:
        modulus = _times_linear(modulus, point)
    # Extended Euclid on (Π (x - x_i), interpolation): the first remainder of degree below (n + t)/2 is f·v, and the
    # roots of v are the points in error.
    high, low = modulus, interpolate(points, values)
    high_factor, low_factor = list[int](), [1]
    while 2 * (len(low) - 1) >= count + threshold:
        quotient, rest = _divide(high, low)
        high, low = low, rest
        high_factor, low_factor = low_factor, _subtract(high_factor, _multiply(quotient, low_factor))
    polynomial, rest = _divide(low, low_factor)
    if rest or len(polynomial) > threshold:
        return None
    return polynomial + [0] * (threshold - len(polynomial))


def interpolate(points: Sequence[int], values: Sequence[int]) -> Polynomial:
    """Return the polynomial of degree below n through n points (Newton's divided differences)."""
    differences = list(values)
    for order in range(1, len(points)):
        for i in range(len(points) - 1, order - 1, -1):
            step = _inverse(points[i] - points[i - order])
            differences[i] = (differences[i] - differences[i - 1]) * step % PRIME
    polynomial: Polynomial = []
    for point, difference in zip(reversed(points), reversed(differences), strict=True):
        polynomial = _subtract(_times_linear(polynomial, point), [-difference])
    return polynomial


class Parity:
    """Tells whether all shares of a secret lie on one polynomial, with one product for each.

    For the points X the vectors u_i·h(x_i) with u_i = 1/Π (x_i - x_j) and deg h < n - t span the dual code. With
    h(x) = (β + x)^(n - t - 1) and a uniform β, shares that lie on no polynomial of degree t - 1 pass with probability
    at most (n - t - 1)/2¹³⁰: their product with u·h is a polynomial in β that is not zero.
    """

    def __init__(self, threshold: int, beta: int) -> None:
        self._threshold, self._beta = threshold, beta
        self._cached: dict[tuple[int, ...], list[int]] = {}

    def holds(self, points: tuple[int, ...], values: Sequence[int]) -> bool:
        """Return whether the values lie on a polynomial of degree t - 1; t or more points, ascending."""
        if len(points) == self._threshold:
            return True
        weights = self._cached.get(points)
        if weights is None:
            if len(self._cached) >= _KEPT:
                self._cached.clear()
            weights = self._cached[points] = self._weights(points)
        product: int = sum(map(mul, weights, values))
        return product % PRIME == 0

    def _weights(self, points: tuple[int, ...]) -> list[int]:
        """Return u_i·h(x_i) up to a common factor: binomials at points 1 … r, times i - j for each point j left out."""
        last, power = points[-1], len(points) - self._threshold - 1
        absent = sorted(set(range(1, last)) - set(points))
        return [
            (-1) ** i
            * comb(last - 1, i - 1)
            * prod([i - j for j in absent])
            * pow(self._beta + i, power, PRIME)
            % PRIME
            for i in points
        ]


@lru_cache(maxsize=4_096)
def _inverse(difference: int) -> int:
    return pow(difference, -1, PRIME)


def _times_linear(polynomial: Polynomial, root: int) -> Polynomial:
    """Return polynomial · (x - root)."""
    shifted, scaled = [0, *polynomial], [root * c for c in polynomial] + [0]
    return [(a - b) % PRIME for a, b in zip(shifted, scaled, strict=True)] if polynomial else []


def _trim(polynomial: Polynomial) -> Polynomial:
    end = len(polynomial)
    while end and not polynomial[end - 1]:
        end -= 1
    return polynomial[:end]


def _subtract(a: Polynomial, b: Polynomial) -> Polynomial:
    size = max(len(a), len(b))
    a, b = a + [0] * (size - len(a)), b + [0] * (size - len(b))
    return _trim([(x - y) % PRIME for x, y in zip(a, b, strict=True)])


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    product = [0] * (len(a) + len(b) - 1) if a and b else []
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return _trim([c % PRIME for c in product])


def _divide(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return quotient and remainder; b must not be zero."""
    rest, top = list(a), pow(b[-1], -1, PRIME)
    quotient = [0] * max(len(a) - len(b) + 1, 0)
    for shift in range(len(quotient) - 1, -1, -1):
        factor = rest[shift + len(b) - 1] * top % PRIME
        quotient[shift] = factor
        if factor:
            for i, c in enumerate(b):
                rest[shift + i] = (rest[shift + i] - factor * c) % PRIME
    return _trim(quotient), _trim(rest[: len(b) - 1])
