"""Computes the exact privacy of one release from the Pmf of its noise. Neighbours shift the sum by `shift` at worst.

Sums are integers. Where the law of the noise is log-concave the worst shift is the largest; randomized rounding mixes
shifts and never makes it worse (joint convexity).
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.dp.accounting.techniques.gaussian import LARGEST_EPSILON
from distrust.common.dp.noise.law import LOST, Pmf
from distrust.common.errors import BadParameter

LEAST_DELTA = 1e-18
"""Smallest accepted δ. Truncated tails (1e-22) and sampler error (2^-100) must be negligible against it."""

FAINT = 1e-28
"""Mass beside the support that δ is computed on: 1e-10 of the smallest δ, so that no δ is larger by it."""

ROOT = 1e-15  # relative accuracy of a search for ε
DIGITS = 1e-11  # relative, by which ε is rounded up: above what last bits of δ move it by
NOT_ZERO = 1e-300  # of a δ whose logarithm is taken
NEGLIGIBLE = 60.0  # nats below the largest term, beyond which 2²⁰ terms do not change a double
LARGE = 3.0  # a term's logarithm above which the divergence itself is not small
SMALL, TERMS = 0.02, 7  # of a series whose next term is below 1e-12 of its first


class Extensible(Protocol):
    """A symmetric law that is known as far out as is requested."""

    @property
    def std(self) -> float: ...

    def pmf(self, lost: float = ..., least: int = ...) -> Pmf: ...


def hockey_stick(pmf: Pmf, shift: int, epsilon: float) -> float:
    """Return δ(ε): the larger Σ (P(x) - e^ε P(x ∓ shift))₊ of both directions, and the mass that truncation lost."""
    forth = back = _excess(pmf.logs, _shifted(pmf.logs, shift), epsilon)
    if not np.array_equal(pmf.logs, pmf.logs[::-1]):  # else the mirror image
        back = _excess(pmf.logs, _shifted(pmf.logs[::-1], shift)[::-1], epsilon)
    return min(1.0, max(forth, back) + pmf.lost)


def pure_epsilon(pmf: Pmf, shift: int) -> float:
    """Return the largest |ln P(x) - ln P(x - shift)| over the stored support; inf if only one of them is 0 somewhere.

    The caller accounts for the tails that were cut: for every law here the ratio's limit has a closed form.
    """
    if shift >= pmf.logs.size:
        return math.inf
    return float(np.abs(pmf.logs[shift:] - pmf.logs[: pmf.logs.size - shift]).max())


def rdp(pmf: Pmf, shift: int, orders: Sequence[float]) -> list[float]:
    """Return the Rényi divergence of each order α > 1 between the law and its shift, the larger of both directions.

    The stored support must reach α · shift and some standard deviations beyond: of a Gaussian, the points that tell
    lie (α - 1) · shift from its middle, and α · shift from the shifted one. Mass outside is not added.
    """
    stay, move = pmf.logs[: max(0, pmf.logs.size - shift)], pmf.logs[shift:]
    forth = _renyi(move, stay, orders)
    if np.array_equal(pmf.logs, pmf.logs[::-1]):
        return forth  # the mirror image
    return [max(pair) for pair in zip(forth, _renyi(stay, move, orders), strict=True)]


def renyi_divergence(others: NDArray[np.float64], losses: NDArray[np.float64], order: float) -> float:
    """Return the Rényi divergence ln(Σ q t^α)/(α - 1), t = e^loss, of P from Q.

    others  ln q of atoms that hold nearly all of both laws.
    losses  ln p/q of them.
    """
    exponents = others + order * losses
    top = float(exponents.max(initial=-math.inf))
    if top > LARGE:
        telling = exponents[exponents > top - NEGLIGIBLE]
        return (top + math.log(float(np.sum(np.exp(telling - top))))) / (order - 1)
    # Where the divergence is small it is computed as the sum of q (t^α - 1 - α(t - 1)) ≥ 0, which differs by
    # α Σ (p - q) = 0 and does not cancel. Small divergences keep nine digits, and mass left out leaves the sum smaller.
    q = np.exp(others)
    apart = np.exp(exponents) - (1 - order) * q - order * np.exp(others + losses)
    gains = np.where(np.abs(order * losses) < SMALL, q * _series(losses, order), apart)
    return math.log1p(float(np.sum(gains))) / (order - 1)


def from_rdp(divergences: Sequence[tuple[float, float]], delta: float) -> float:
    """Return the least ε that (order, RDP) pairs give at δ: Balle et al. 2020, Theorem 21; orders above 1."""
    spends = (
        epsilon + math.log1p(-1 / order) - math.log(delta * order) / (order - 1) for order, epsilon in divergences
    )
    return max(0.0, min(spends))


def epsilon_at(pmf: Pmf, shift: int, delta: float) -> float:
    """Return the least ε with δ(ε) ≤ delta, rounded up in its tenth digit; inf where no ε below 10⁴ will do."""
    return least_epsilon(lambda epsilon: math.log(max(hockey_stick(pmf, shift, epsilon), NOT_ZERO) / delta))


def least_epsilon(excess: Callable[[float], float]) -> float:
    """Return the least ε ≥ 0 with excess(ε) ≤ 0, to ten digits and rounded up; inf where no ε below 10⁴ will do.

    It is the root but for its last bits, and `DIGITS` more: the sign that rounding gives the excess there decides
    nothing.

    excess  falls continuously: the logarithm of δ(ε) over a target.
    """
    if excess(LARGEST_EPSILON) > 0:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.5, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while excess(low) <= 0:
        low, high = low / 2, low
    result = float(scipy.optimize.brentq(excess, low, high, xtol=1e-300, rtol=ROOT)) * (1 + DIGITS)
    while excess(result) > 0:
        result *= 1 + DIGITS
    return result


def law_delta(law: Extensible, shift: int, epsilon: float) -> float:
    """Return δ(ε) of a symmetric law and its shift, with all of the mass that the shift moves in; see `stretched`."""
    return hockey_stick(stretched(law, shift), shift, epsilon)


def law_epsilon(law: Extensible, shift: int, delta: float) -> float:
    """Return `epsilon_at` of a symmetric law, with all of the mass that the shift moves in; see `stretched`."""
    return epsilon_at(stretched(law, shift), shift, delta)


def stretched(law: Extensible, shift: int) -> Pmf:
    """Return the law on a support that is longer by the shift, with less than FAINT outside.

    Supports that would pass LIMIT entries are shorter; δ is then larger than it need be, never smaller.
    """
    # At a point of the law's own support the shifted law is then known too. Where a shift of many deviations moves a
    # point in from outside the stored support, `hockey_stick` counts its whole mass, which is far too much.
    for lost, more in ((FAINT, shift), (LOST, shift), (FAINT, 0)):
        with suppress(BadParameter):
            return law.pmf(lost, law.pmf(lost).logs.size // 2 + more)
    return law.pmf()


def _series(losses: NDArray[np.float64], order: float) -> NDArray[np.float64]:
    """Return e^(αl) - 1 - α(e^l - 1) for |αl| < SMALL: Σ_(k≥2) (α^k - α) l^k / k!."""
    series = np.zeros_like(losses)
    for k in range(TERMS, 1, -1):
        series = series * losses + (order**k - order) / math.factorial(k)
    return np.asarray(series * losses**2, dtype=np.float64)


def _shifted(logs: NDArray[np.float64], shift: int) -> NDArray[np.float64]:
    """Return the logarithms of P(x - shift) on the same support."""
    # Points from outside count as impossible, which only adds to δ.
    moved = np.full(logs.size, -np.inf)
    moved[shift:] = logs[: max(0, logs.size - shift)]
    return moved


def _excess(logs: NDArray[np.float64], others: NDArray[np.float64], epsilon: float) -> float:
    """Return Σ (e^logs - e^(ε + others))₊, without cancellation."""
    gaps = others + epsilon - logs
    above = gaps < 0  # also drops 0 against 0, whose gap is NaN-free because stored logs are finite
    return float(np.sum(-np.exp(logs[above]) * np.expm1(gaps[above])))


def _renyi(logs: NDArray[np.float64], others: NDArray[np.float64], orders: Sequence[float]) -> list[float]:
    """Return the divergence of each order, over the part where both laws are above 0."""
    met = np.isfinite(others)
    if not met.all():
        logs, others = logs[met], others[met]
    losses = logs - others
    return [renyi_divergence(others, losses, order) for order in orders]
