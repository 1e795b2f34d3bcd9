"""Laws of noise and their divergences in 50 digits. Shares no code with the modules that it checks."""

from collections.abc import Sequence

import mpmath

Law = list[mpmath.mpf]
"""Masses of -reach … reach."""


def symmetric(half: Sequence[mpmath.mpf]) -> Law:
    return [*reversed(half[1:]), *half]


def discrete_laplace(scale: float, reach: int) -> Law:
    beta = mpmath.exp(-1 / mpmath.mpf(scale))
    return symmetric([(1 - beta) / (1 + beta) * beta**k for k in range(reach + 1)])


def polya_difference(shape: mpmath.mpf, scale: float, reach: int) -> Law:
    """Return Σ_x p(x) p(x + k) for |k| ≤ reach, p negative binomial: a hypergeometric series."""
    r, beta = mpmath.mpf(shape), mpmath.exp(-1 / mpmath.mpf(scale))
    front = (1 - beta) ** (2 * r)
    return symmetric(
        [
            front * beta**k * mpmath.rf(r, k) / mpmath.factorial(k) * mpmath.hyp2f1(r, r + k, k + 1, beta**2)
            for k in range(reach + 1)
        ]
    )


def skellam(variance: float, reach: int) -> Law:
    v = mpmath.mpf(variance)
    return symmetric([mpmath.exp(-v) * mpmath.besseli(k, v) for k in range(reach + 1)])


def discrete_gaussian(variance: float, reach: int) -> Law:
    masses = symmetric([mpmath.exp(-mpmath.mpf(k * k) / (2 * mpmath.mpf(variance))) for k in range(reach + 1)])
    whole = mpmath.fsum(masses)
    return [mass / whole for mass in masses]


def convolution(one: Law, other: Law) -> Law:
    """Return the law of the sum of two independent variables, by direct summation."""
    total = [mpmath.mpf(0)] * (len(one) + len(other) - 1)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            total[i + j] += a * b
    return total


def convolved(one: Law, terms: int) -> Law:
    """Return the law of the sum of `terms` independent variables of one law."""
    total = [mpmath.mpf(1)]
    for _ in range(terms):
        total = convolution(total, one)
    return total


def binomial(trials: int, chance: float) -> Law:
    p = mpmath.mpf(chance)
    return [mpmath.binomial(trials, x) * p**x * (1 - p) ** (trials - x) for x in range(trials + 1)]


def delta_of(masses: Law, shift: int, epsilon: float) -> mpmath.mpf:
    """Return the larger hockey-stick divergence, over both directions, of a law and its shift. Zeros outside."""
    zeros, factor = [mpmath.mpf(0)] * shift, mpmath.exp(mpmath.mpf(epsilon))
    p, q = masses + zeros, zeros + masses
    forth = mpmath.fsum(max(a - factor * b, 0) for a, b in zip(p, q, strict=True))
    back = mpmath.fsum(max(b - factor * a, 0) for a, b in zip(p, q, strict=True))
    return max(forth, back)


def renyi_of(masses: Law, shift: int, order: float) -> mpmath.mpf:
    """Return the Rényi divergence of a symmetric law and its shift, over the part where both are listed."""
    a = mpmath.mpf(order)
    pairs = zip(masses[shift:], masses[: len(masses) - shift], strict=True)
    return mpmath.log(mpmath.fsum(p**a * q ** (1 - a) for p, q in pairs)) / (a - 1)
