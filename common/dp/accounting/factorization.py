"""Factorizes prefix sums: A = BC, A the lower triangle of ones. Noise that hides Cx is small in the sums.

B and C are lower triangular Toeplitz matrices, given by their first columns b and c. C⁻¹ is a buffered linear Toeplitz
matrix with five buffers: b_i = κ₀ + Σ κ_j θ_jⁱ with 1 > θ₁ > … > θ₅ > 0, all κ above 0 and κ₀ + Σ κ_j = 1.

Source  Dvijotham et al. 2024. The numbers here are our own.
"""

# r(x) = (1-x) b(x) = κ₀ + Σ κ_j (1-x)/(1-θ_j x) belongs to C⁻¹, and c(x) = 1/r(x). r(1/p) = 0 where
# κ₀ = Σ κ_j (1-p)/(p-θ_j). The right side falls from +∞ to -∞ between neighbours of θ₅ < … < θ₁, and from +∞ to 0
# between θ₁ and 1. So there is one p_j in each (θ_j, θ_(j-1)), θ₀ = 1, and these are all. By partial fractions c_0 = 1,
# and c_i = Σ γ_j p_jⁱ for i ≥ 1, with γ_j = -p_j/r'(1/p_j) = 1/(p_j Σ_l κ_l (1-θ_l)/(p_j-θ_l)²) > 0. And Σ γ_j < 1:
# 1 - Σ γ_j is c at infinity, 1/(κ₀ + Σ κ_j/θ_j). So c is positive and falls, whatever the κ and θ are. All that follows
# is computed from them as they stand: that they are nearly the best is needed for no promise.

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.accounting.returning import Weights
from distrust.common.extras import mpmath

MANY_DIGITS = 50
"""Digits of all that follows from the parameters."""

UPWARDS = 1 + 2.0**-50
"""A double next to a number, times this, is above it."""

HALVINGS, NEWTON = 40, 4
"""Steps of the search for a p_j: halvings of its interval, then Newton's, each of which doubles the digits."""

Power = tuple[Any, Any]
"""a and p of the sequence a pⁱ, i = 0, 1, …, with MANY_DIGITS digits."""

SETS: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    4: ((0.2726, 0.3592, 0.8056, 0.9126, 0.9371), (0.3331, 0.05295, 0.1556, 0.2565, 0.03283)),
    8: ((0.1616, 0.237, 0.5823, 0.9407, 0.9641), (0.2336, 0.04543, 0.2828, 0.2754, 0.02876)),
    16: ((0.01766, 0.0913, 0.2803, 0.6124, 0.9443), (0.09409, 0.1326, 0.1873, 0.2482, 0.2984)),
    32: ((0.01706, 0.09058, 0.2728, 0.6008, 0.9416), (0.09309, 0.1314, 0.182, 0.2491, 0.305)),
    64: ((0.01629, 0.08188, 0.2445, 0.5661, 0.934), (0.08977, 0.1197, 0.1743, 0.2541, 0.3236)),
    128: ((0.01412, 0.06725, 0.2064, 0.5192, 0.9231), (0.08026, 0.1065, 0.1665, 0.2616, 0.3483)),
    256: ((0.008236, 0.04268, 0.1517, 0.449, 0.9051), (0.06254, 0.09195, 0.1599, 0.272, 0.3858)),
    512: ((0.004716, 0.02652, 0.1084, 0.3799, 0.8839), (0.04834, 0.07784, 0.1496, 0.2786, 0.4248)),
    1024: ((0.002695, 0.01664, 0.07805, 0.3213, 0.8624), (0.03754, 0.0663, 0.1389, 0.2812, 0.4606)),
    2048: ((0.00152, 0.01041, 0.0561, 0.2704, 0.8399), (0.02905, 0.05641, 0.128, 0.2806, 0.4945)),
    4096: ((0.0008441, 0.006445, 0.04002, 0.2258, 0.8161), (0.02232, 0.04769, 0.1169, 0.2774, 0.5273)),
    8192: ((0.0004643, 0.003964, 0.02837, 0.1873, 0.7912), (0.01707, 0.04006, 0.1059, 0.2719, 0.5589)),
    16384: ((0.0002541, 0.002431, 0.02005, 0.1546, 0.7655), (0.01302, 0.03348, 0.09536, 0.2647, 0.589)),
    32768: ((0.0001388, 0.001491, 0.01416, 0.1272, 0.7392), (0.009924, 0.02789, 0.08547, 0.2561, 0.6174)),
    65536: ((7.579e-05, 0.0009159, 0.01001, 0.1044, 0.7127), (0.007564, 0.02318, 0.07634, 0.2465, 0.644)),
    131072: ((4.147e-05, 0.0005644, 0.00709, 0.08568, 0.6861), (0.005773, 0.01924, 0.068, 0.2364, 0.6689)),
    262144: ((2.276e-05, 0.0003492, 0.005035, 0.0703, 0.6597), (0.004414, 0.01595, 0.06046, 0.2259, 0.692)),
    524288: ((1.254e-05, 0.0002172, 0.003587, 0.05772, 0.6336), (0.003383, 0.01323, 0.05369, 0.2153, 0.7135)),
    1048576: ((6.948e-06, 0.0001358, 0.002566, 0.04745, 0.608), (0.002601, 0.01097, 0.04764, 0.2049, 0.7333)),
    2097152: ((3.871e-06, 8.547e-05, 0.001844, 0.03907, 0.5829), (0.002006, 0.009108, 0.04227, 0.1946, 0.7516)),
    4194304: ((2.17e-06, 5.412e-05, 0.001331, 0.03224, 0.5585), (0.001554, 0.007569, 0.03751, 0.1846, 0.7684)),
    8388608: ((1.223e-06, 3.447e-05, 0.0009643, 0.02665, 0.5348), (0.001207, 0.006298, 0.03329, 0.175, 0.784)),
    16777216: ((6.917e-07, 2.205e-05, 0.0007009, 0.02205, 0.5117), (0.0009401, 0.005244, 0.02955, 0.1657, 0.7983)),
}
"""1 - θ_j and κ_j that were found for streams of so many batches, and rounded to four digits."""


@dataclass(frozen=True)
class Factorization:
    """B and C of a stream of `batches`. Squared lengths are rounded upwards.

    decays   1 - θ_j, rising.
    weights  κ_j for j ≥ 1.
    """

    batches: int
    decays: tuple[float, ...]
    weights: tuple[float, ...]

    @cached_property
    def factors(self) -> tuple[float, ...]:
        """Return 1 and the θ_j, in the order of `shares`."""
        return (1.0, *(1.0 - decay for decay in self.decays))

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Return κ₀, to the nearest double, and the other κ_j."""
        return (1.0 - math.fsum(self.weights), *self.weights)

    def row(self, batches: int) -> float:
        """Return Σ b_i² over i < `batches`: the variance of the noise in that prefix sum, in variances of one draw."""
        return _row(self, batches)

    @cached_property
    def step(self) -> float:
        """Return Σ r_i²: that of the noise by which two neighbouring prefix sums differ."""
        number = _context().mpf
        later = [(weight * (number(theta) - 1), number(theta)) for weight, theta in _decaying(self)]
        return _up(1 + _square(later, self.batches - 1))

    def weight(self, times: int) -> float:
        """Return the largest squared length of a sum of `times` columns of C, no column taken twice.

        A client in so many batches moves Cx by that many Δ₂² at most, as no two columns have a negative product.
        """
        # The columns of batches s < t, counted from 1, have the product Σ c_i c_(i+t-s) over 0 ≤ i ≤ M - t. As c is
        # positive and falls, it falls with t and with t - s. Of any batches the j-th is not before batch j, and two of
        # them, the i-th and the j-th, are not nearer than |i - j|. So no batches have larger products than the first.
        return _up(_longest(self, times, self.batches))

    def returning(self, times: int) -> Weights:
        """Return what the roundings of a client in so many batches weigh, by the products of the columns of C."""
        # Two columns that are d apart have a product of at most Σ c_i c_(i+d) over i < M, and a batch has two others at
        # the same distance at most. In a stream of h batches more, batch h + 1 adds these sums twice to the squared
        # length, for d = 1 … h, and once for d = 0. With an odd number of others the farthest one counts once.
        near, far = (self._added(others + 1, self.batches + others) for others in ((times - 1) // 2, times // 2))
        last = float(self._added(times, self.batches)) / UPWARDS
        return Weights(self.weight(times), _up((near + far) / 2), last)

    def _added(self, batch: int, batches: int) -> Any:
        """Return by how much a batch makes the squared length of the sum of the first columns longer."""
        return _longest(self, batch, batches) - _longest(self, batch - 1, batches)

    def column(self) -> NDArray[np.float64]:
        """Return c_0 … c_(M-1), to twelve digits."""
        at = np.arange(1, self.batches)
        later = [float(gamma) * float(p) ** at for gamma, p in _powers(self)]
        return np.concatenate(([1.0], np.sum(later, axis=0)))


@lru_cache(maxsize=256)
def factorization(batches: int) -> Factorization:
    """Return the factorization of a stream: the better one of the sets for about as many batches."""
    above = next((length for length in SETS if length >= batches), max(SETS))
    near = [Factorization(batches, *SETS[length]) for length in (above // 2, above) if length in SETS]
    return min(near, key=lambda one: one.row(batches) * one.weight(1))


@cache
def _context() -> Any:
    """Return mpmath with MANY_DIGITS digits. It computes in whole numbers: results are the same on every processor."""
    context = mpmath.mp.clone()
    context.dps = MANY_DIGITS
    return context


@lru_cache(maxsize=1024)
def _row(own: Factorization, batches: int) -> float:
    number = _context().mpf
    rest = 1 - _context().fsum(number(weight) for weight in own.weights)
    return _up(_square([(rest, number(1)), *_decaying(own)], batches))


@lru_cache(maxsize=1024)
def _longest(own: Factorization, times: int, batches: int) -> Any:
    """Return the squared length of the sum of the first columns of a stream of `batches`, with MANY_DIGITS digits."""
    # The first t columns add up to a_i = c_0 + … + c_i for i < t, and to a_i - a_(i-t) from there on. With
    # β_j = γ_j/(1-p_j) these are 1 + Σ β_j p_j - Σ β_j p_jⁱ⁺¹, and Σ β_j (1 - p_jᵗ) p_jⁱ⁻ᵗ⁺¹.
    sums = [(gamma / (1 - p), p) for gamma, p in _powers(own)]
    most = 1 + _context().fsum(beta * p for beta, p in sums)
    first = _square([(most, _context().mpf(1)), *((-beta * p, p) for beta, p in sums)], times)
    return first + _square([(beta * (1 - p**times) * p, p) for beta, p in sums], batches - times)


def _decaying(own: Factorization) -> list[Power]:
    """Return κ_j and θ_j for j ≥ 1."""
    number = _context().mpf
    return [(number(weight), number(theta)) for weight, theta in zip(own.weights, own.factors[1:], strict=True)]


@lru_cache(maxsize=256)
def _powers(own: Factorization) -> list[Power]:
    """Return γ_j and p_j."""
    number, decaying = _context().mpf, _decaying(own)
    rest = 1 - _context().fsum(weight for weight, _ in decaying)
    found = []
    for theta, above in zip(own.factors[1:], own.factors, strict=False):
        low, high = number(theta), number(above)
        for _ in range(HALVINGS):
            p = (low + high) / 2
            excess, _ = _condition(decaying, p)
            low, high = (p, high) if excess > rest else (low, p)
        for _ in range(NEWTON):
            excess, slope = _condition(decaying, p)
            p += (excess - rest) / slope
        found.append((1 / (p * _condition(decaying, p)[1]), p))
    return found


def _condition(decaying: list[Power], p: Any) -> Power:
    """Return Σ κ_j (1-p)/(p-θ_j), which is κ₀ at every p_j, and by how much it falls with p."""
    excess = _context().fsum(weight * (1 - p) / (p - theta) for weight, theta in decaying)
    return excess, _context().fsum(weight * (1 - theta) / (p - theta) ** 2 for weight, theta in decaying)


def _square(powers: list[Power], count: int) -> Any:
    """Return Σ (Σ_j a_j p_jⁱ)² over i < `count`."""
    return _context().fsum(a * b * _geometric(p * q, count) for a, p in powers for b, q in powers)


def _geometric(ratio: Any, count: int) -> Any:
    """Return Σ ratioⁱ over i < `count`."""
    return count if ratio == 1 else (1 - ratio**count) / (1 - ratio)


def _up(number: Any) -> float:
    """Return a double that is not below the number."""
    return float(number) * UPWARDS
