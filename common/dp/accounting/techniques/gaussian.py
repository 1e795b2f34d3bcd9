"""Computes the Gaussian mechanism's exact (ε, δ), its zero-concentrated privacy, and the inverses of both.

`ratio` is Δ/σ, ℓ₂ sensitivity over standard deviation of continuous noise. `rho` is ρ of ρ-zCDP, Rényi divergence at
most αρ at every order α: Δ²/(2σ²) for the continuous law, and for the discrete one by Canonne, Kamath & Steinke 2020.
"""

import math
from functools import lru_cache

import scipy

LARGEST_EPSILON = 1e4  # nats; a larger ε is stated as infinite
LOG_ROOT = math.log(2 * math.pi) / 2  # ln √(2π)
TINY = 1e-12  # relative accuracy of the searches, whose results are rounded towards more privacy


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Return δ(ε) = Φ(r/2 - ε/r) - e^ε Φ(-r/2 - ε/r), r = Δ/σ: Balle & Wang 2018, Theorem 8."""
    # e^ε φ(ε/r + r/2) = φ(ε/r - r/2), so the difference is one density times a difference of Mills' ratios.
    near, far = epsilon / ratio - ratio / 2, epsilon / ratio + ratio / 2
    if near < 0:
        return float(scipy.special.ndtr(-near)) - _density(near) * _mills(far)
    return _density(near) * (_mills(near) - _mills(far))


def log_gaussian_delta(ratio: float, epsilon: float) -> float:
    """Return ln δ(ε), also where δ itself would underflow."""
    near, far = epsilon / ratio - ratio / 2, epsilon / ratio + ratio / 2
    if near < 0:
        return math.log(gaussian_delta(ratio, epsilon))
    return -near * near / 2 - LOG_ROOT + math.log(_mills(near) - _mills(far))


def log_gaussian_slope(ratio: float, epsilon: float) -> float:
    """Return d ln δ / d ln r at r = Δ/σ: r φ(ε/r - r/2)/δ."""
    near = epsilon / ratio - ratio / 2
    return math.exp(-near * near / 2 - LOG_ROOT - log_gaussian_delta(ratio, epsilon)) * ratio


def steepest_slope(square: float, delta: float) -> float:
    """Return the largest d ln δ(ε)/d r² over r² ≥ `square` and ε ≥ 0 where δ(ε) ≥ `delta`; inf where none is proven."""
    # It is φ(n)/(2rδ(ε)) = 1/(2r(m(n) - m(n + r))), n = ε/r - r/2 and m Mills' ratio, which is convex and falls. So it
    # grows with ε, and is the largest where δ(ε) = `delta`: φ(n)/(2r `delta`). Along that line n grows with r, because
    # δ grows with r and falls with n. So it falls with r, from an r on where n ≥ 0.
    ratio = math.sqrt(square)
    epsilon = gaussian_epsilon(ratio, delta)
    if not square / 2 <= epsilon < math.inf:
        return math.inf
    return log_gaussian_slope(ratio, epsilon) / (2 * square)


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Return the least ε with δ(ε) ≤ delta, rounded up; inf above 10⁴."""
    if gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    if gaussian_delta(ratio, LARGEST_EPSILON) > delta:
        return math.inf
    excess = lambda epsilon: gaussian_delta(ratio, epsilon) - delta  # noqa: E731
    root = float(scipy.optimize.brentq(excess, 0.0, LARGEST_EPSILON, xtol=1e-15))
    while gaussian_delta(ratio, root) > delta:
        root = root * (1 + TINY) + 1e-15
    return root


@lru_cache(maxsize=1024)
def largest_ratio(epsilon: float, delta: float) -> float:
    """Return the largest Δ/σ that is (ε, δ)-private, rounded down: the analytic Gaussian mechanism."""

    def excess(log_ratio: float) -> float:
        spent = gaussian_delta(math.exp(log_ratio), epsilon)
        return math.log(max(spent, 1e-300) / delta)

    ratio = math.exp(float(scipy.optimize.brentq(excess, math.log(1e-9), math.log(1e3), xtol=1e-13)))
    while gaussian_delta(ratio, epsilon) > delta:
        ratio *= 1 - TINY
    return ratio


def zcdp_epsilon(rho: float, delta: float) -> tuple[float, float]:
    """Return the least ε that ρ-zCDP gives at δ, and the order α at which it does: Balle et al. 2020, Theorem 21."""

    def spent(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return rho * order + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    ends = math.log(1e-3), math.log(1e6)
    best = scipy.optimize.minimize_scalar(spent, bounds=ends, method="bounded", options={"xatol": 1e-6})
    return max(0.0, float(best.fun)), 1 + math.exp(float(best.x))


@lru_cache(maxsize=1024)
def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest ρ that gives ε at δ, rounded down."""

    def excess(log_rho: float) -> float:
        return zcdp_epsilon(math.exp(log_rho), delta)[0] / epsilon - 1

    rho = math.exp(float(scipy.optimize.brentq(excess, math.log(1e-12), math.log(1e3), xtol=1e-11)))
    while zcdp_epsilon(rho, delta)[0] > epsilon:
        rho *= 1 - 1e-11
    return rho


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _mills(x: float) -> float:
    """Return Φ(-x) / φ(x) for x ≥ 0."""
    return math.sqrt(math.pi / 2) * float(scipy.special.erfcx(x / math.sqrt(2)))
