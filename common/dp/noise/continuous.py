"""Defines continuous noise, which is unsafe: floating point leaks (Mironov 2012; Jin et al. 2022)."""

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats, How
from distrust.common.dp.noise.law import check_probability, complex_log1p
from distrust.common.randomness import Stream, uniforms

NODES = 200  # of Gauss and Legendre: the integrand is analytic and 28 deviations wide
HARMONICS = 1000  # terms of a Fourier series, of which the k-th is at most 1/(πk)²
FARTHEST = 12.0  # of a Rayleigh variable: 1e-31 lies beyond
PIECE = 80  # nodes on either side of a kink


class OnLine:
    """Facts of every law with a symmetric density around 0 that `Transformed` asks for."""

    __slots__ = ()

    mean: ClassVar[float] = 0.0
    lattice: ClassVar[bool] = False
    symmetric: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Gaussian(OnLine):
    """N(0, std²). Sampled by inversion."""

    reach: ClassVar[float] = math.inf

    std: float

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        return np.asarray((self.std * (s + 1j * t)) ** 2 / 2)

    def log_size(self, s: Floats, t: Floats) -> Floats:
        return np.asarray(self.std**2 * (s * s - t * t) / 2)

    def decay(self, t: Floats) -> Floats:
        """Return σ²t²: n ln(u/t) ≤ n (u²/t² - 1)/2 = σ²(u² - t²)/2."""
        return np.asarray((self.std * t) ** 2)

    def quantile(self, p: float) -> float:
        """Return the q with P(|X| > q) = p."""
        check_probability(p)
        return -self.std * float(scipy.special.ndtri(p / 2))

    def above(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return P(X > x)."""
        return np.asarray(scipy.special.ndtr(-x / self.std), dtype=np.float64)

    def characteristic(self, terms: int, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return E cos tX of one of `terms` equal shares."""
        return np.asarray(np.exp(-((t * self.std) ** 2) / (2 * terms)), dtype=np.float64)

    def sample(self, stream: Stream, count: int) -> NDArray[np.float64]:
        return np.asarray(scipy.special.ndtri(uniforms(stream, count)) * self.std, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Laplace(OnLine):
    """The sum of `terms` Laplace variables of density e^(-|x|/scale)/(2 scale). Sampled by inversion, one term only."""

    scale: float
    terms: int = 1

    @property
    def std(self) -> float:
        return self.scale * math.sqrt(2 * self.terms)

    @property
    def reach(self) -> float:
        return 1 / self.scale

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        return -self.terms * complex_log1p(self.scale**2 * (t * t - s * s), -2 * self.scale**2 * s * t)

    def log_size(self, s: Floats, t: Floats) -> Floats:
        return np.asarray(self.log_moment(s, t).real)

    def decay(self, t: Floats) -> Floats:
        """Return the number of terms, from t = 1/scale on: |1 - z²|² = t⁴ + 2(1 + s²)t² + (1 - s²)² grows over t²."""
        return np.where(t * self.scale >= 1, float(self.terms), 0.0)

    def quantile(self, p: float) -> float:
        """Return the q with P(|X| > q) = p: closed form for one term, else by quadrature, to nine digits."""
        check_probability(p)
        if self.terms == 1:
            return -self.scale * math.log(p)
        high = 2 * math.sqrt(self.terms * math.log(2 / p)) + 2 * math.log(2 / p)  # sub-gamma tail
        excess = lambda q: math.log(2 * self._tail(np.array([q]))[0] / p)  # noqa: E731
        root = scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12 * high)
        return self.scale * float(root)

    def above(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return P(X > x)."""
        tails = self._tail(np.abs(x) / self.scale)
        return np.where(x < 0, 1 - tails, tails)

    def characteristic(self, terms: int, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return E cos tX of one of `terms` equal shares, which are this law's."""
        assert terms == self.terms
        return np.asarray(1 / (1 + (t * self.scale) ** 2), dtype=np.float64)

    def sample(self, stream: Stream, count: int) -> NDArray[np.float64]:
        centred = uniforms(stream, count) - 0.5
        return np.asarray(-self.scale * np.sign(centred) * np.log1p(-2 * np.abs(centred)), dtype=np.float64)

    def _tail(self, q: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return P(X > q·scale) = E Q(n, q + Y), q ≥ 0, Y a gamma variable of shape n."""
        # X is the difference of two independent gamma variables of shape n.
        if self.terms == 1:
            return np.asarray(np.exp(-q) / 2, dtype=np.float64)
        n, reach = self.terms, 14 * math.sqrt(self.terms)
        low, high = max(0.0, n - reach), n + reach + 60
        nodes, weights = _rule(NODES)
        y = (low + high) / 2 + nodes * (high - low) / 2
        density = np.exp((n - 1) * np.log(y) - y - scipy.special.gammaln(n))
        upper = scipy.special.gammaincc(n, q[:, np.newaxis] + y)
        return np.asarray(upper @ (weights * density) * (high - low) / 2, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Rounded:
    """The error of a sum of `terms` values that were sent as ⌊value + draw + U⌋; `law` is that of all the draws.

    A rounding's error R is a coin less its chance, which the value decides. So the law depends on the data, `std` is
    the largest, and `quantile` a bound.
    """

    quantile_how: ClassVar[How] = "bound"

    law: Gaussian | Laplace
    terms: int

    @property
    def std(self) -> float:
        # F = frac(value + draw) has E F(1-F) = 1/6 - Σ_k cos(2πk value) E cos(2πk draw)/(πk)², which is largest where
        # the value lies in the middle between two steps.
        k = np.arange(1, HARMONICS, dtype=np.float64)
        signs = np.where(k % 2 == 1, -1.0, 1.0)
        most = 1 / 6 - float((signs * self.law.characteristic(self.terms, 2 * math.pi * k) / (math.pi * k) ** 2).sum())
        return math.sqrt(self.law.std**2 + self.terms * most)

    def quantile(self, p: float) -> float:
        """Return a q with P(|error| > q) ≤ p, whatever the data."""
        check_probability(p)
        return _rounded_quantile(self.law, self.terms, p)


@lru_cache(maxsize=1024)
def _rounded_quantile(law: Gaussian | Laplace, terms: int, p: float) -> float:
    """Return the q with 2 P(draws + √n/2 Rayleigh > q) = p, or n more than the draws' own."""
    # Given the draws ΣR > x has at most the chance e^(-2x²/n) (Hoeffding 1963), which is that of √n/2 times a Rayleigh
    # variable; and each R is below 1.
    size = math.sqrt(terms) / 2

    def excess(q: float) -> float:
        kink = min(q / size, FARTHEST)  # where a Laplace variable's density has one
        below, above = _with_rayleigh(law, q, size, 0.0, kink), _with_rayleigh(law, q, size, kink, FARTHEST)
        return math.log(2 * (below + above) / p)

    high = law.quantile(p / 2) + size * math.sqrt(2 * math.log(4 / p))
    drawn = law.quantile(p)
    if excess(high) >= 0:
        root = high
    else:
        root = float(scipy.optimize.brentq(excess, drawn * (1 - 1e-8), high, xtol=1e-11 * high))
    return min(root * (1 + 1e-10), drawn + terms)


def _with_rayleigh(law: Gaussian | Laplace, q: float, size: float, low: float, high: float) -> float:
    """Return P(draws + size · r > q and low < r < high), r a Rayleigh variable."""
    nodes, weights = _rule(PIECE)
    r = (low + high) / 2 + nodes * (high - low) / 2
    masses = weights * r * np.exp(-r * r / 2) * (high - low) / 2
    return float(masses @ law.above(q - size * r))


@cache
def _rule(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return nodes, weights
