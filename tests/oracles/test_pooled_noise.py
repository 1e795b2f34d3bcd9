"""Tests quantiles of weighted sums of noises against closed forms with 50 digits, and against laws atom by atom."""

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from distrust.common.bandit.error_law import ErrorLaw, Floats, ScaledErrorLaw, Spread
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.continuous import Gaussian, Laplace
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.dp.noise.skellam import Skellam
from distrust.server.policies.noise_width import bounded_width, noise_width
from distrust.server.policies.vb_sdp_ae import pooled_noise

LEVELS = (0.3, 1e-2, 1e-6, 1e-12)
SHARP = 1e-9


def scaled(law: Spread, step: float = 1.0) -> ScaledErrorLaw:
    return ScaledErrorLaw(law, step, (0.0, 0.0))


def width(laws: Sequence[ErrorLaw], weights: Sequence[float], p: float) -> float:
    return float(noise_width(laws, np.array([weights]), p)[0])


def root(tail: Callable[[Any], Any], p: float, near: float) -> float:
    """Return the q with tail(q) = p, to 40 digits."""
    with mpmath.workdps(50):
        q: Any = mpmath.findroot(lambda x: mpmath.log(tail(x) / mpmath.mpf(p)), (near, near * 0.999))
        return float(q)


def equal_laplace(terms: int) -> Callable[[Any], Any]:
    """Return P(|S| > w) of a sum of Laplace variables of scale 1: of G - G', both gamma of this shape."""

    def tail(w: Any) -> Any:
        pairs = ((m, i) for m in range(terms) for i in range(m + 1))
        rising = lambda i: mpmath.rf(terms, i) / mpmath.mpf(2) ** (terms + i)  # noqa: E731 - E e^{-G} Gⁱ
        total = sum(mpmath.binomial(m, i) * w ** (m - i) / mpmath.factorial(m) * rising(i) for m, i in pairs)
        return 2 * mpmath.exp(-w) * total

    return tail


def unequal_laplace(scales: Sequence[float]) -> Callable[[Any], Any]:
    """Return P(|S| > w) of Laplace variables of different scales, by partial fractions."""

    def tail(w: Any) -> Any:
        b = [mpmath.mpf(scale) for scale in scales]
        shares = [mpmath.fprod(x**2 / (x**2 - y**2) for y in b if y != x) for x in b]
        return sum(share * mpmath.exp(-w / x) for share, x in zip(shares, b, strict=True))

    return tail


@pytest.mark.parametrize("p", LEVELS)
@pytest.mark.parametrize("terms", [2, 4, 20])
def test_equal_laplace_noises_have_the_quantile_of_their_sum(terms: int, p: float) -> None:
    found = width([scaled(Laplace(1.0), 0.5)] * terms, [2.0] * terms, p)
    assert 0 <= found / root(equal_laplace(terms), p, found) - 1 < SHARP


@pytest.mark.parametrize("p", LEVELS)
@pytest.mark.parametrize("weights", [(1.0, 0.5), (3.0, 2.9, 1.0, 0.3), (1.0, 0.1), (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)])
def test_laplace_noises_of_any_weights_have_the_quantile_of_their_sum(weights: tuple[float, ...], p: float) -> None:
    found = width([scaled(Laplace(1.0))] * len(weights), weights, p)
    assert 0 <= found / root(unequal_laplace(weights), p, found) - 1 < SHARP


@pytest.mark.parametrize("p", LEVELS)
def test_laplace_noise_that_is_almost_alone_has_its_quantile_to_eight_digits(p: float) -> None:
    found = width([scaled(Laplace(1.0))] * 2, (1.0, 0.02), p)
    assert 0 <= found / root(unequal_laplace((1.0, 0.02)), p, found) - 1 < 1e-8


@pytest.mark.parametrize("p", [*LEVELS, 0.9, 1e-16])
def test_gaussian_noises_have_the_quantile_of_their_sum(p: float) -> None:
    weights = np.random.default_rng(1).normal(size=(50, 30))
    found = noise_width([scaled(Gaussian(2.0))] * 20 + [scaled(Gaussian(0.5), 3.0)] * 10, weights, p)
    exact = np.linalg.norm(weights * ([2.0] * 20 + [1.5] * 10), axis=1) * norm.isf(p / 2)
    assert (found >= exact * (1 - 1e-15)).all()
    assert (found <= exact * (1 + SHARP)).all()


@pytest.mark.parametrize("p", [0.5, 1e-2, 1e-6, 1e-12, 1e-16])
@pytest.mark.parametrize(
    ("one", "terms", "pooled"),
    [
        (DiscreteLaplace(20.0), 4, PolyaDifference(Fraction(4), 20.0)),
        (DiscreteLaplace(2.0), 3, PolyaDifference(Fraction(3), 2.0)),
        (PolyaDifference(Fraction(1, 3), 30.0), 5, PolyaDifference(Fraction(5, 3), 30.0)),
        (Binomial(1000, 0.35), 4, Binomial(4000, 0.35)),
        (Binomial(1001, 0.33), 3, Binomial(3003, 0.33)),
        (Binomial(7, 0.33), 3, Binomial(21, 0.33)),
        (Binomial(10**6, 0.4), 3, Binomial(3 * 10**6, 0.4)),
        (Skellam(100.0), 4, Skellam(400.0)),
        (Skellam(0.1), 4, Skellam(0.4)),
        (DiscreteGaussianSum(0.3, 400), 4, DiscreteGaussianSum(0.3, 1600)),
        (DiscreteGaussian(40.0), 4, DiscreteGaussianSum(40.0, 4)),
    ],
)
def test_batches_on_one_grid_have_the_quantile_of_their_sums_law(
    one: Spread, terms: int, pooled: Spread, p: float
) -> None:
    found = pooled_noise((scaled(one, 0.25),) * terms, p)
    assert found == pytest.approx(0.25 * pooled.quantile(p), rel=1e-12)


def tails_of(laws: Sequence[Any], weights: Sequence[int]) -> tuple[Floats, Floats]:
    """Return all values of |Σ c_j X_j|, from the largest down, and the chances to be at least so large."""
    masses, low = np.ones(1), 0.0
    for law, weight in zip(laws, weights, strict=True):
        pmf = law.pmf()
        apart = np.zeros((pmf.masses.size - 1) * abs(weight) + 1)
        apart[:: abs(weight)] = pmf.masses[:: int(math.copysign(1, weight))]
        ends = weight * (pmf.support[[0, -1]] - law.mean)
        masses, low = np.convolve(masses, apart), low + ends.min()
    values = abs(low + np.arange(masses.size))
    order = np.argsort(-values, kind="stable")
    return values[order], np.cumsum(masses[order])


LATTICES = {
    "discrete Laplace": ([DiscreteLaplace(25.0)] * 2, (4, 3), 0.004),
    "one large, one small": ([DiscreteLaplace(12.0)] * 2, (32, 1), 0.03),
    "coarse discrete Laplace": ([DiscreteLaplace(6.0)] * 2, (4, 3), 0.04),
    "discrete Gaussian": ([DiscreteGaussian(30.0)] * 3, (10, -6, 3), 0.01),
    "bits of several batches": ([Binomial(80, 0.5), Binomial(300, 0.41), Binomial(2000, 0.36)], (6, 3, 1), 0.005),
    "bits, opposite signs": ([Binomial(60, 0.2), Binomial(90, 0.8)], (5, -4), 0.005),
    "shares of few terms": ([PolyaDifference(Fraction(2, 5), 8.0), Skellam(20.0)], (8, 11), 0.06),
}
"""Noises, whole weights, and the largest excess but for a step of each."""


@pytest.mark.parametrize("case", LATTICES)
def test_lattices_with_different_weights_are_never_below_the_quantile_and_little_above(case: str) -> None:
    """Half a step of one or two noises, and what stands for the rest of the line: the more, the coarser the noise."""
    laws, weights, excess = LATTICES[case]
    values, chances = tails_of(laws, weights)
    for p in np.geomspace(0.3, 1e-10, 24):  # some of them close to a jump of the law
        exact = values[int(np.searchsorted(chances, p, side="right"))]
        found = width([scaled(law) for law in laws], weights, p)
        assert exact <= found <= exact * (1 + excess) + sum(abs(w) for w in weights)


NARROW = {
    "two equal": ([DiscreteLaplace(0.3)] * 2, (1, 1)),
    "nearly no noise": ([DiscreteLaplace(0.2)] * 2, (1, 1)),
    "different weights": ([DiscreteLaplace(0.4)] * 3, (5, -3, 1)),
    "few bits": ([Binomial(5, 0.3), Binomial(3, 0.5)], (2, 3)),
    "Gaussian": ([DiscreteGaussian(0.5)] * 4, (1, 1, 1, 1)),
}


@pytest.mark.parametrize("case", NARROW)
def test_noise_of_few_steps_has_the_smaller_of_both_bounds_and_never_less_than_the_quantile(case: str) -> None:
    laws, weights = NARROW[case]
    values, chances = tails_of(laws, weights)
    smaller = 0
    for p in (0.097, 9.6e-3, 1e-3, 1e-6):
        found, bound = (
            float(one([scaled(law) for law in laws], np.array([weights], dtype=float), p)[0])
            for one in (noise_width, bounded_width)
        )
        assert values[int(np.searchsorted(chances, p, side="right"))] <= found <= bound
        smaller += found == bound
    assert smaller


def test_two_noises_of_a_third_of_a_step_have_no_width_of_half_steps() -> None:
    """The bound from quantiles knows that the sum is whole: 2 and 0, where half a step of both is 3.3 and 2.0."""
    assert width([scaled(DiscreteLaplace(0.3))] * 2, (1, 1), 9.6e-3) == 2
    assert width([scaled(DiscreteLaplace(0.2))] * 2, (1, 1), 0.097) == 0


def test_rows_are_what_they_are_alone_but_for_a_hundredth() -> None:
    """Rows share lines and polynomials. Each is a bound of its own, from a line beside its own saddle point."""
    weights = np.random.default_rng(5).normal(size=(20, 25))
    for law in (DiscreteLaplace(50.0), Binomial(4000, 0.4), DiscreteGaussianSum(3.0, 200)):
        together = noise_width([scaled(law)] * 25, weights, 1e-8)
        alone = [width([scaled(law)] * 25, row.tolist(), 1e-8) for row in weights]
        assert together == pytest.approx(alone, rel=1e-2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lattice", [DiscreteLaplace(20.0), DiscreteGaussian(0.8), Binomial(40, 0.3)], ids=repr)
def test_rows_without_a_noise_on_a_lattice_have_the_width_of_their_densities(lattice: Spread) -> None:
    """Densities and lattices in one call: a row in which one kind has no weight is what it is without that kind."""
    laws = [scaled(Laplace(2.0)), scaled(Gaussian(3.0)), scaled(lattice), scaled(lattice)]
    weights = np.array([[1, 2, 0, 0], [0, 0, 3, 1], [1, 0, 2, 0], [2, -1, 0, 0], [0, 1, 1, 4], [0, 0, 0, 0]])
    found = noise_width(laws, weights.astype(float), 1e-5)
    for row, of_row in zip(weights, found, strict=True):
        there = [(law, float(weight)) for law, weight in zip(laws, row, strict=True) if weight]
        alone = width([law for law, _ in there], [weight for _, weight in there], 1e-5) if there else 0.0
        assert of_row == pytest.approx(alone, rel=1e-2)
    assert found[0] == pytest.approx(width(laws[:2], [1, 2], 1e-5), rel=1e-9)


@pytest.mark.parametrize(("terms", "laplace", "gaussian"), [(2, 1.32, 1.164), (4, 1.34, 1.222), (20, 1.367, 1.326)])
def test_bounds_from_quantiles_are_the_documented_share_above_the_quantile(
    terms: int, laplace: float, gaussian: float
) -> None:
    """Why sums are inverted: the smaller of Chernoff's and the union bound over the quantile, linear.md."""
    for law, ratio in ((scaled(Laplace(1.0)), laplace), (scaled(Gaussian(1.0)), gaussian)):
        bound = float(bounded_width([law] * terms, np.ones((1, terms)), 1e-6)[0])
        assert bound / width([law] * terms, [1.0] * terms, 1e-6) == pytest.approx(ratio, abs=1e-3)


TRANSFORMS = [
    DiscreteLaplace(3.0), PolyaDifference(Fraction(7, 3), 2.0), Binomial(30, 0.3), Skellam(4.0),
    DiscreteGaussian(0.2), DiscreteGaussian(0.7), DiscreteGaussian(9.0), DiscreteGaussianSum(0.4, 5),
]  # fmt: skip


@pytest.mark.parametrize("law", TRANSFORMS, ids=repr)
def test_transforms_are_those_of_the_law(law: Any) -> None:
    pmf = law.pmf()
    x = pmf.support - law.mean
    for s, t in itertools.product((0.0, 0.05, 0.1), (0.0, 0.3, 1.0, 3.0, math.pi)):
        expected = complex((pmf.masses * np.exp((s + 1j * t) * x)).sum())
        found = complex(np.exp(law.log_moment(np.array(s), np.array(t))))
        assert abs(found - expected) <= 1e-11 * math.exp(float(law.log_size(np.array(s), np.zeros(()))))
        assert abs(expected) <= math.exp(float(law.log_size(np.array(s), np.array(t)))) * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("law", [*TRANSFORMS, Gaussian(1.5), Laplace(0.7, 3)], ids=repr)
def test_bounds_on_transforms_fall_along_the_line(law: Any) -> None:
    t = np.linspace(0, math.pi, 400)
    for s in (0.0, 0.3):
        sizes = law.log_size(np.full(t.shape, s), t)
        assert (np.diff(sizes) <= 1e-12).all()
        for start in range(20, 400, 40):
            decay = float(law.decay(t[start]))
            assert decay >= 0
            assert (sizes[start:] <= sizes[start] + 1e-12 - decay * np.log(t[start:] / t[start])).all()
