"""Continuous noise, for mechanisms that say that it is unsafe: floating point leaks (Mironov 2012; Jin et al. 2022)."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaincc, gammaln, ndtri

from common.noise.law import check_probability
from common.randomness import Stream

NODES = 600  # of Gauss and Legendre: the integrand is analytic and 28 deviations wide


def uniforms(stream: Stream, count: int) -> NDArray[np.float64]:
    """`count` numbers in (0, 1), the middles of 2⁵² cells."""
    return np.asarray(((stream.words(count) >> np.uint64(12)) + 0.5) * 2.0**-52, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """N(0, std²). Sampled by inversion."""

    std: float

    def quantile(self, p: float) -> float:
        """The q with P(|X| > q) = p."""
        check_probability(p)
        return -self.std * float(ndtri(p / 2))

    def sample(self, stream: Stream, count: int) -> NDArray[np.float64]:
        return np.asarray(ndtri(uniforms(stream, count)) * self.std, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Laplace:
    """The sum of `terms` Laplace variables of density e^(-|x|/scale)/(2 scale). Sampled by inversion, one term only."""

    scale: float
    terms: int = 1

    @property
    def std(self) -> float:
        return self.scale * math.sqrt(2 * self.terms)

    def quantile(self, p: float) -> float:
        """The q with P(|X| > q) = p: closed form for one term, else by quadrature, to nine digits."""
        check_probability(p)
        if self.terms == 1:
            return -self.scale * math.log(p)
        high = 2 * math.sqrt(self.terms * math.log(2 / p)) + 2 * math.log(2 / p)  # sub-gamma tail
        return self.scale * float(brentq(lambda q: math.log(self._beyond(q) / p), 0.0, high, xtol=1e-12 * high))

    def sample(self, stream: Stream, count: int) -> NDArray[np.float64]:
        centred = uniforms(stream, count) - 0.5
        return np.asarray(-self.scale * np.sign(centred) * np.log1p(-2 * np.abs(centred)), dtype=np.float64)

    def _beyond(self, q: float) -> float:
        """P(|X| > q·scale) = 2 E Q(n, q + Y), Y a gamma variable of shape n: X is the difference of two of them."""
        n, reach = self.terms, 14 * math.sqrt(self.terms)
        low, high = max(0.0, n - reach), n + reach + 60
        nodes, weights = _rule()
        y = (low + high) / 2 + nodes * (high - low) / 2
        density = np.exp((n - 1) * np.log(y) - y - gammaln(n))
        return float(2 * (weights * density * gammaincc(n, q + y)).sum() * (high - low) / 2)


@cache
def _rule() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights
