"""Uniform directions, and what the sum of points on a sphere may be off by."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, ndtri

from common.error_law import How
from common.noise.law import check_probability
from common.randomness import Stream


def directions(stream: Stream, count: int, dimension: int) -> NDArray[np.float64]:
    """Unit vectors, shape (count, dimension), whose law is symmetric under u → -u to the last bit.

    Normal sizes by inversion and a fair sign for each coordinate; uniform up to floating point.
    """
    words = stream.words(count * dimension).reshape(count, dimension)
    halves = ((words >> np.uint64(12)) + 0.5) * 2.0**-53  # middles of 2⁵² cells of (0, 1/2)
    normal = np.where(words & np.uint64(1), ndtri(halves), -ndtri(halves))
    unit: NDArray[np.float64] = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return unit


def radius(reach: float, dimension: int, epsilon: float) -> float:
    """Radius r = R √π Γ((d+1)/2)/Γ(d/2) · (e^ε + 1)/(e^ε - 1), which makes the answer unbiased; R is `reach`."""
    ratio = math.exp(float(gammaln((dimension + 1) / 2) - gammaln(dimension / 2)))
    return reach * math.sqrt(math.pi) * ratio / math.tanh(epsilon / 2)


@dataclass(frozen=True, slots=True)
class SphereSum:
    """The error in one coordinate of a sum of `terms` answers on the sphere of `radius` in `dimension` coordinates.

    std       √(terms/dimension) radius, reached where the vectors are 0: half-spheres have the sphere's second moments.
    quantile  the law depends on the data, so that this is the lesser of Hoeffding's bound (each answer lies within
              ± radius) and Bennett's (their variance, and |answer - truth| ≤ 2 radius), not an exact quantile. For one
              coordinate the worst data are equal values (Hoeffding 1956, Theorem 5) and the bound is at most half too
              wide, less for small p; for more of them no worst data are known to us.
    """

    terms: int
    dimension: int
    radius: float

    @property
    def std(self) -> float:
        return math.sqrt(self.terms / self.dimension) * self.radius

    @property
    def quantile_how(self) -> How:
        """Never exact: the law depends on the data."""
        return "bound"

    def quantile(self, p: float) -> float:
        """A q with P(|error| > q) ≤ p, whatever the data."""
        check_probability(p)
        target = math.log(2 / p)
        hoeffding = self.radius * math.sqrt(2 * self.terms * target)
        most, variance = 2 * self.radius, self.std**2

        def spare(q: float) -> float:
            x = most * q / variance
            return variance / most**2 * ((1 + x) * math.log1p(x) - x) - target

        if spare(hoeffding) <= 0:
            return hoeffding
        found = float(brentq(spare, 0.0, hoeffding, xtol=1e-12 * hoeffding))
        return min(hoeffding, found * (1 + 1e-11))
