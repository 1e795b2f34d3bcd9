"""Tails of the difference of two long Pólya variables, as an integral instead of a sum of a million terms.

P(A - B > q) = Σ_b P(B = b) P(A > q + b), and the second factor is an incomplete beta function. Where the law is spread
over many thousands of integers, the terms lie on a smooth curve that begins and ends at 0: the sum is its integral but
for one part in 24 σ² (the midpoint rule, by Euler and Maclaurin), and a few hundred of Gauss and Legendre's nodes find
the integral to eleven digits.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincc

NODES = 400
WIDTH, FAR = 14.0, 60.0  # deviations on either side of the mean; scales more above, where the law falls more slowly
TIE = 1e-9
LITTLE = 1e-300  # a tail that may be 0: below every p
LEAST = 4.0
"""Least shape: nothing lies next to 0, where the terms are not smooth."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PolyaTails:
    """Of A - B, both Pólya(shape, e^(-1/scale)).

    Domain  shape ≥ LEAST and a deviation of many thousands: tails to nine digits.
    """

    shape: float
    scale: float

    def quantile(self, p: float, most: int) -> int:
        """The least whole q with P(|A - B| > q) ≤ p; it is at most `most`."""
        places, masses = self._masses()

        def excess(q: float) -> float:
            return math.log(max(self._beyond(q, places, masses), LITTLE) / p) + TIE

        if excess(0.0) <= 0:
            return 0
        found = math.ceil(float(brentq(excess, 0.0, most, xtol=1e-3)))
        near = range(max(0, found - 2), found + 3)
        return next((q for q in near if excess(q) <= 0), most)

    def _beyond(self, q: float, places: Floats, masses: Floats) -> float:
        """P(|A - B| > q), steady between the integers."""
        return 2 * float(masses @ betaincc(self.shape, places + q + 1, -math.expm1(-1 / self.scale)))

    def _masses(self) -> tuple[Floats, Floats]:
        """Nodes, and what they stand for of the law of B: a density, by Stirling's formula, that adds up to 1."""
        lost, kept = -math.expm1(-1 / self.scale), math.exp(-1 / self.scale)
        mean, sigma = self.shape * kept / lost, math.sqrt(self.shape * kept) / lost
        low, high = max(-0.5, mean - WIDTH * sigma), mean + WIDTH * sigma + FAR * self.scale
        nodes, weights = _rule()
        places = (low + high) / 2 + nodes * (high - low) / 2
        x = np.maximum(places, 1.0)  # next to nothing lies below
        whole = x + self.shape
        apart = _divergence(x, kept * whole) + _divergence(self.shape, lost * whole)
        masses = weights * np.exp(_stirling(whole) - _stirling(x) - apart) / np.sqrt(x * whole)
        return places, masses / masses.sum()


def _divergence(x: Floats | float, mean: Floats) -> Floats:
    """The sum x ln(x/mean) - x + mean, which is small, without cancellation of large numbers."""
    t = (x - mean) / mean
    return np.asarray(mean * ((1 + t) * np.log1p(t) - t), dtype=np.float64)


def _stirling(x: Floats) -> Floats:
    """Of ln Γ(x), what (x - ½) ln x - x leaves, but for a constant."""
    return np.asarray(1 / (12 * x) - 1 / (360 * x**3), dtype=np.float64)


@cache
def _rule() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights
