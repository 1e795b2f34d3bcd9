"""The Gaussian mechanism: its exact (ε, δ), zero-concentrated privacy, and the searches that invert them.

On the grid the discrete law's ρ is tight, but what ρ gives at δ takes a sixth more variance than there need be.
N(0, v₁), rounded to a whole number k with odds e^(-(k-y)²/(2v₂)), is N_Z(0, v₁ + v₂) but for a factor of 1 ± τ: the
odds add up to √(2πv₂)(1 ± τ), τ = 2e^(-2π²v₂), wherever y lies (Poisson summation). So D coordinates of discrete noise,
moved by any whole numbers, promise what v₂ less of continuous noise does, but for a factor of (1 + τ)^D on δ and of
((1 + τ)²/(1 - τ))^D on e^ε.

`ratio` is Δ/σ, ℓ₂ sensitivity over standard deviation of continuous noise. `rho` is ρ of ρ-zCDP, Rényi divergence at
most αρ at every order α: Δ²/(2σ²) for the continuous law, and for the discrete one by Canonne, Kamath & Steinke 2020.
"""

import math
from functools import lru_cache

from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx, ndtr

LARGEST_EPSILON = 1e4
ROUNDED = 1.5  # v₂
BLUR = 7 * math.exp(-2 * math.pi**2 * ROUNDED)  # above 3τ
TINY = 1e-12  # relative accuracy of the searches, whose results are rounded towards more privacy


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """δ(ε) = Φ(r/2 - ε/r) - e^ε Φ(-r/2 - ε/r), r = Δ/σ: Balle & Wang 2018, Theorem 8.

    e^ε φ(ε/r + r/2) = φ(ε/r - r/2), so that the difference is one density times a difference of Mills' ratios.
    """
    near, far = epsilon / ratio - ratio / 2, epsilon / ratio + ratio / 2
    if near < 0:
        return float(ndtr(-near)) - _density(near) * _mills(far)
    return _density(near) * (_mills(near) - _mills(far))


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """The least ε with δ(ε) ≤ delta, rounded up; inf above 10⁴."""
    if gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    if gaussian_delta(ratio, LARGEST_EPSILON) > delta:
        return math.inf
    found = float(brentq(lambda epsilon: gaussian_delta(ratio, epsilon) - delta, 0.0, LARGEST_EPSILON, xtol=1e-15))
    while gaussian_delta(ratio, found) > delta:
        found = found * (1 + TINY) + 1e-15
    return found


@lru_cache(maxsize=1024)
def largest_ratio(epsilon: float, delta: float) -> float:
    """The largest Δ/σ that is (ε, δ)-private, rounded down: the analytic Gaussian mechanism."""

    def excess(log_ratio: float) -> float:
        spent = gaussian_delta(math.exp(log_ratio), epsilon)
        return math.log(max(spent, 1e-300) / delta)

    found = math.exp(float(brentq(excess, math.log(1e-9), math.log(1e3), xtol=1e-13)))
    while gaussian_delta(found, epsilon) > delta:
        found *= 1 - TINY
    return found


def zcdp_epsilon(rho: float, delta: float) -> tuple[float, float]:
    """The least ε that ρ-zCDP gives at δ, and the order α at which it does: Balle et al. 2020, Theorem 21."""

    def spent(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return rho * order + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    best = minimize_scalar(spent, bounds=(math.log(1e-3), math.log(1e6)), method="bounded", options={"xatol": 1e-6})
    return max(0.0, float(best.fun)), 1 + math.exp(float(best.x))


@lru_cache(maxsize=1024)
def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest ρ that gives ε at δ, rounded down."""

    def excess(log_rho: float) -> float:
        return zcdp_epsilon(math.exp(log_rho), delta)[0] / epsilon - 1

    found = math.exp(float(brentq(excess, math.log(1e-12), math.log(1e3), xtol=1e-11)))
    while zcdp_epsilon(found, delta)[0] > epsilon:
        found *= 1 - 1e-11
    return found


def lattice_epsilon(square: float, variance: float, coordinates: int, delta: float) -> float:
    """An ε at δ of N_Z(0, variance) on every coordinate, moved by whole numbers whose squares add up to `square`."""
    known = zcdp_epsilon(square / (2 * variance), delta)[0]
    if variance <= ROUNDED:
        return known
    blur = coordinates * BLUR
    return min(known, gaussian_epsilon(math.sqrt(square / (variance - ROUNDED)), delta * math.exp(-blur)) + blur)


def lattice_variance(square: float, coordinates: int, epsilon: float, delta: float) -> float:
    """About the least variance whose `lattice_epsilon` is ε at δ, and never less."""
    blur = coordinates * BLUR
    known = math.nextafter(square / (2 * zcdp_rho(epsilon, delta)), math.inf)
    if blur >= epsilon:
        return known
    found = square / largest_ratio(epsilon - blur, delta * math.exp(-blur)) ** 2 + ROUNDED
    while lattice_epsilon(square, found, coordinates, delta) > epsilon:
        found *= 1 + 4 * TINY
    return min(known, found)


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _mills(x: float) -> float:
    """Φ(-x) / φ(x) for x ≥ 0."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))
