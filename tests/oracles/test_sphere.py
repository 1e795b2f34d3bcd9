"""Tests the mechanism for ℓ₂ balls: an exact coin chooses one of a symmetric pair of points."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import hyp0f1

from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.families.sphere import (
    SphereSum,
    coin,
    coin_epsilon,
    direction_log_moment,
    directions,
    radius,
)
from distrust.common.dp.mechanisms.local.sphere import LocalSphere
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.specs.base import EVENTS_A_BATCH
from distrust.server.policies.elimination import exact_radius
from distrust.server.policies.noise_width import noise_width
from tests.support.planned import planned

FALSE_ALARM = 1e-7


def planned_mechanism(dimension: int = 4, epsilon: float = 1.5, bound: float = 2.0, **fields: Any) -> LocalSphere:
    spec = MechanismSpec(name="local-sphere", epsilon=epsilon, **fields)
    statistic = BoundedVector(dimension=dimension, bound=bound)
    mechanism = planned(spec, 500, 400, statistic)
    assert isinstance(mechanism, LocalSphere)
    return mechanism


def answers(mechanism: LocalSphere, x: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the clients' messages as points in data units, shape (count, dimension)."""
    messages = mechanism.randomize(np.tile(x, (count, 1)), UnsafeSeededStream(seed)).astype(np.int64)
    assert messages.max() <= mechanism.precision
    return (messages - mechanism.precision / 2) * mechanism.step


@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 1.0, 8.0, 50.0])
def test_the_coin_never_loses_more_than_epsilon(epsilon: float) -> None:
    cases = coin(epsilon)
    with mpmath.workdps(60):
        assert mpmath.log(mpmath.mpf(cases) / (2**64 - cases)) <= epsilon
        if epsilon < 40:
            assert mpmath.log(mpmath.mpf(cases + 1) / (2**64 - cases - 1)) > epsilon
    assert coin_epsilon(cases) == pytest.approx(min(epsilon, 64 * math.log(2)), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 500])
def test_the_radius_is_the_paper_s(dimension: int) -> None:
    """GLB Lemma 2.2 as printed: R (√π/2) (e^ε + 1)/(e^ε - 1) · dΓ((d+1)/2)/Γ(d/2 + 1)."""
    with mpmath.workdps(40):
        d, e = mpmath.mpf(dimension), mpmath.exp(mpmath.mpf("0.7"))
        want = (
            3 * mpmath.sqrt(mpmath.pi) / 2 * (e + 1) / (e - 1) * d * mpmath.gamma((d + 1) / 2) / mpmath.gamma(d / 2 + 1)
        )
    assert radius(3.0, dimension, 0.7) == pytest.approx(float(want), rel=1e-12)


class Flipped:
    """A stream whose words have their last bit flipped."""

    def __init__(self) -> None:
        self._stream = UnsafeSeededStream(4)

    def bytes(self, count: int) -> bytes:
        return self._stream.bytes(count)

    def words(self, count: int) -> np.ndarray:
        return self._stream.words(count) ^ np.uint64(1)


def test_directions_are_symmetric_to_the_last_bit_and_uniform() -> None:
    """Kolmogorov-Smirnov tests of each coordinate in three dimensions, uniform by Archimedes: false alarm 1e-7."""
    points = directions(UnsafeSeededStream(4), 100_000, 3)
    assert np.array_equal(directions(Flipped(), 100_000, 3), -points)  # type: ignore[arg-type]
    assert np.linalg.norm(points, axis=1) == pytest.approx(1.0)
    for axis in range(3):
        assert stats.kstest(points[:, axis], stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM


def test_two_vectors_are_answered_with_the_same_or_the_opposite_point() -> None:
    """The stream fixes a pair ±u for any x, and x decides only the choice between them."""
    mechanism = planned_mechanism()
    first = answers(mechanism, np.array([2.0, 0, 0, 0]), 500, 3)
    second = answers(mechanism, np.array([-0.3, 1.0, 0.5, 0]), 500, 3)
    near = np.abs(first - second).max(axis=1) <= mechanism.step * 1.01
    mirrored = np.abs(first + second).max(axis=1) <= mechanism.step * 1.01
    assert (near | mirrored).all()
    assert near.any()
    assert mirrored.any()


@pytest.mark.parametrize("length", [2.0, 0.5])
def test_the_half_is_chosen_by_the_coin(length: float) -> None:
    """The share of answers on x's side is p for the longest vectors, nearer to 1/2 for shorter: false alarm 1e-7."""
    mechanism = planned_mechanism(precision=2**20)
    x = np.array([0.6, 0.0, -0.8, 0.0]) * length
    ahead = int((answers(mechanism, x, 40_000, 8) @ x > 0).sum())
    p, keep = 1 / (1 + math.exp(-1.5)), 0.5 + length / 4
    assert stats.binomtest(ahead, 40_000, keep * p + (1 - keep) * (1 - p)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("dimension", [1, 2, 12])
def test_answers_lie_on_the_sphere_and_are_unbiased(dimension: int) -> None:
    """The mean of 40,000 is within 5.5 standard errors in every coordinate: false alarm below 1e-6."""
    mechanism = planned_mechanism(dimension, precision=2**20)
    x = np.full(dimension, 1.2 / math.sqrt(dimension))
    points = answers(mechanism, x, 40_000, 2)
    assert np.linalg.norm(points, axis=1) == pytest.approx(mechanism.radius, rel=1e-4)
    law = mechanism.error(400)
    assert np.abs(points.mean(axis=0) - x).max() <= 5.5 * law.std / math.sqrt(400 * 40_000)
    assert points.std(axis=0).max() <= law.std / 20 * 1.03


@pytest.mark.parametrize("precision", [None, 7])
def test_one_coordinate_is_one_bit_and_nothing_is_rounded(precision: int | None) -> None:
    mechanism = planned_mechanism(1, precision=precision)
    messages = mechanism.randomize(np.linspace(-2, 2, 500)[:, np.newaxis], UnsafeSeededStream(6))
    assert set(messages.ravel()) == {0, mechanism.precision}
    assert mechanism.precision == (precision or 1)
    assert mechanism.modulus == 500 * mechanism.precision + 1
    assert mechanism.rounding == 0
    total, ones = messages.sum(axis=0), int((messages > 0).sum())
    result = mechanism.estimate(total, 500, UnsafeSeededStream(0))
    assert result == pytest.approx((2 * ones - 500) * mechanism.radius, rel=1e-12)


@pytest.mark.parametrize("dimension", [2, 12])
def test_more_coordinates_are_rounded_by_a_hundredth_of_the_variance(dimension: int) -> None:
    mechanism = planned_mechanism(dimension)
    assert mechanism.rounding**2 <= 0.01 * mechanism.radius**2 / dimension
    assert mechanism.rounding**2 >= 0.007 * mechanism.radius**2 / dimension


def leaning(size: float, dimension: int, share: float, angle: float) -> float:
    """Return ln E e^(λ(V - E V)) for λ = `size`, a vector at `angle` to the direction, `share` = s of its half-sphere.

    By quadrature over τ = ⟨u, x⟩/|x|. The rest of u is uniform on a sphere of one dimension less.
    """
    along, across, half = size * math.cos(angle), size * math.sin(angle), (dimension - 1) / 2

    def mean(inner: Callable[[float], float]) -> float:
        def at(phi: float) -> float:
            rest = hyp0f1(half, (across * math.cos(phi)) ** 2 / 4)
            return float(math.cos(phi) ** (dimension - 2) * inner(math.sin(phi)) * rest)

        return float(quad(at, 0, math.pi / 2, epsabs=0, epsrel=1e-12)[0])

    whole = quad(lambda phi: math.cos(phi) ** (dimension - 2), 0, math.pi / 2, epsabs=0, epsrel=1e-12)[0]
    mu = quad(lambda phi: math.sin(phi) * math.cos(phi) ** (dimension - 2), 0, math.pi / 2)[0] / whole
    even, odd = mean(lambda tau: math.cosh(along * tau)), mean(lambda tau: math.sinh(along * tau))
    return float(math.log((even + share * odd) / whole) - share * along * mu)


@pytest.mark.parametrize("dimension", [2, 3, 5, 20])
@pytest.mark.parametrize("size", [0.3, 2.0, 9.0])
@pytest.mark.parametrize("most", [0.1, 0.9])
def test_no_vector_has_a_larger_moment_than_the_bound_s_and_one_reaches_it(
    dimension: int, size: float, most: float
) -> None:
    """Chernoff's bound rests on `direction_log_moment`. The oracle draws vectors of all lengths and angles."""
    mu = 1 / radius(1.0, dimension, 60.0)
    bound = direction_log_moment(size, dimension, most * mu)
    rng = np.random.default_rng(dimension)
    for share, angle in zip(rng.uniform(0, most, 40), rng.uniform(0, math.pi, 40), strict=True):
        assert leaning(size, dimension, float(share), float(angle)) <= bound + 1e-10
    away = [leaning(size, dimension, float(share), math.pi) for share in np.linspace(0, most, 60)]
    assert max(away) == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("terms", [1, 20, 1000, 100_000])
@pytest.mark.parametrize("dimension", [2, 30])
def test_the_bound_is_below_hoeffding_s_and_bennett_s_and_above_the_normal_law_s(terms: int, dimension: int) -> None:
    law = SphereSum(terms, dimension, 1.0, 0.4 / math.sqrt(dimension))
    for p in (0.1, 1e-6, 1e-12):
        q, log = law.quantile(p), math.log(2 / p)
        bennett = q * 2 / law.std**2
        assert q <= math.sqrt(2 * terms * log)
        assert law.std**2 / 4 * ((1 + bennett) * math.log1p(bennett) - bennett) <= log * (1 + 1e-9)
        assert q <= terms * (1 + law.reach)
        if terms >= 1000:
            assert q >= stats.norm.isf(p / 2) * law.std
        if terms == 100_000:
            assert q <= math.sqrt(2 * log) * law.std * (1 + 1e-4)
    draws = directions(UnsafeSeededStream(1), 20_000, dimension)[:, 0] if terms == 1 else np.zeros(1)
    assert (np.abs(draws) > law.quantile(1e-3)).mean() <= 0.004


def test_the_guarantee_is_the_coin_s() -> None:
    promise = planned_mechanism().privacy().promise
    assert promise.kind == "pure"
    assert promise.model == "local"
    assert promise.epsilon == pytest.approx(1.5, rel=1e-15)
    assert promise.epsilon <= 1.5


@pytest.mark.parametrize("survivors", [20, 300])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("p", [0.1, 1e-3, 1e-9, 1e-12])
def test_the_quantile_of_one_coordinate_is_that_of_the_worst_data(survivors: int, epsilon: float, p: float) -> None:
    """Equal values are the worst (Hoeffding 1956, Theorem 5). For their binomial sum a lower quantile fails."""
    mechanism = planned_mechanism(1, epsilon)
    law, width = mechanism.error(survivors), 2 * mechanism.radius
    most = 1 / (1 + math.exp(-epsilon))
    chances = np.linspace(1 - most, most, 20_001)

    def beyond(q: float) -> float:
        above = stats.binom.sf(np.floor(survivors * chances + q), survivors, chances)
        below = stats.binom.cdf(np.ceil(survivors * chances - q) - 1, survivors, chances)
        return float((above + below).max())

    q = law.quantile(p)
    assert beyond(q / width * (1 + 1e-9)) <= p
    assert beyond(q / width - 0.1) > p
    assert noise_width([law], np.array([[1.0], [3.0]]), p, joint=True) == pytest.approx([q, 3 * q])
    sampling = math.sqrt(math.log(2 / p) / survivors / 2)
    assert exact_radius(survivors, law, 1, 1, EVENTS_A_BATCH * p) == pytest.approx(sampling + q / survivors)
