"""The ℓ₂-ball mechanism: an exact coin over symmetric pairs of points."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from common.mechanisms import LocalSphere, MechanismSpec, plan
from common.mechanisms.local_sphere import coin, coin_epsilon
from common.mechanisms.sphere_noise import SphereSum, directions, radius
from common.randomness import UnsafeSeededStream
from common.statistics import BoundedVector

FALSE_ALARM = 1e-7


def made(dimension: int = 4, epsilon: float = 1.5, bound: float = 2.0, **words: object) -> LocalSphere:
    spec = MechanismSpec.model_validate({"name": "local-sphere", "epsilon": epsilon, **words})
    statistic = BoundedVector(dimension=dimension, bound=bound)
    mechanism = plan(spec, clients=500, least=400, floor=400, wrap=1e-6, statistic=statistic)
    assert isinstance(mechanism, LocalSphere)
    return mechanism


def answers(mechanism: LocalSphere, x: np.ndarray, count: int, seed: int) -> np.ndarray:
    """What the clients send, as points in data units."""
    messages = mechanism.randomize(np.tile(x, (count, 1)), UnsafeSeededStream(seed)).astype(np.int64)
    half = mechanism.modulus // 2
    signed = np.where(messages > half, messages - mechanism.modulus, messages)
    return (signed - mechanism.precision / 2) * mechanism.step


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
    """GLB Lemma 2.2, as it is printed: R (√π/2) (e^ε + 1)/(e^ε - 1) · dΓ((d+1)/2)/Γ(d/2 + 1)."""
    with mpmath.workdps(40):
        d, e = mpmath.mpf(dimension), mpmath.exp(mpmath.mpf("0.7"))
        want = (
            3 * mpmath.sqrt(mpmath.pi) / 2 * (e + 1) / (e - 1) * d * mpmath.gamma((d + 1) / 2) / mpmath.gamma(d / 2 + 1)
        )
    assert radius(3.0, dimension, 0.7) == pytest.approx(float(want), rel=1e-12)


class Flipped:
    """A stream whose words have their last bit turned."""

    def __init__(self) -> None:
        self._stream = UnsafeSeededStream(4)

    def bytes(self, count: int) -> bytes:
        return self._stream.bytes(count)

    def words(self, count: int) -> np.ndarray:
        return self._stream.words(count) ^ np.uint64(1)


def test_directions_are_symmetric_to_the_last_bit_and_uniform() -> None:
    """Kolmogorov and Smirnov on one coordinate in three dimensions, uniform by Archimedes: false alarm 1e-7."""
    points = directions(UnsafeSeededStream(4), 100_000, 3)
    assert np.array_equal(directions(Flipped(), 100_000, 3), -points)  # type: ignore[arg-type]
    assert np.linalg.norm(points, axis=1) == pytest.approx(1.0)
    for axis in range(3):
        assert stats.kstest(points[:, axis], stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM


def test_two_vectors_are_answered_with_the_same_or_the_opposite_point() -> None:
    """Whatever x, the stream fixes a pair ±u; only the choice between them can tell x."""
    mechanism = made()
    first = answers(mechanism, np.array([2.0, 0, 0, 0]), 500, 3)
    second = answers(mechanism, np.array([-0.3, 1.0, 0.5, 0]), 500, 3)
    near = np.abs(first - second).max(axis=1) <= mechanism.step * 1.01
    mirrored = np.abs(first + second).max(axis=1) <= mechanism.step * 1.01
    assert (near | mirrored).all()
    assert near.any()
    assert mirrored.any()


@pytest.mark.parametrize("length", [2.0, 0.5])
def test_the_half_is_chosen_by_the_coin(length: float) -> None:
    """Answers ahead of x: p for the longest vectors, nearer to 1/2 for shorter ones. Binomial, false alarm 1e-7."""
    mechanism = made(precision=2**20)
    x = np.array([0.6, 0.0, -0.8, 0.0]) * length
    ahead = int((answers(mechanism, x, 40_000, 8) @ x > 0).sum())
    p, keep = 1 / (1 + math.exp(-1.5)), 0.5 + length / 4
    assert stats.binomtest(ahead, 40_000, keep * p + (1 - keep) * (1 - p)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("dimension", [1, 2, 12])
def test_answers_lie_on_the_sphere_and_are_unbiased(dimension: int) -> None:
    """Mean of 40,000 within 5.5 standard errors in every coordinate: false alarm below 1e-6."""
    mechanism = made(dimension, precision=2**20)
    x = np.full(dimension, 1.2 / math.sqrt(dimension))
    points = answers(mechanism, x, 40_000, 2)
    assert np.linalg.norm(points, axis=1) == pytest.approx(mechanism.radius, rel=1e-4)
    law = mechanism.error(400)
    assert np.abs(points.mean(axis=0) - x).max() <= 5.5 * law.std / math.sqrt(400 * 40_000)
    assert points.std(axis=0).max() <= law.std / 20 * 1.03


@pytest.mark.parametrize("terms", [1, 20, 100_000])
@pytest.mark.parametrize("dimension", [1, 30])
def test_the_bound_covers_sums_and_is_not_silly(terms: int, dimension: int) -> None:
    law = SphereSum(terms, dimension, 1.0)
    for p in (0.1, 1e-6, 1e-12):
        q = law.quantile(p)
        assert q <= math.sqrt(2 * terms * math.log(2 / p)) * (1 + 1e-12)
        if terms == 100_000:
            assert stats.norm.isf(p / 2) * law.std <= q <= 1.6 * stats.norm.isf(p / 2) * law.std
    draws = directions(UnsafeSeededStream(1), 20_000, dimension)[:, 0] if terms == 1 else np.zeros(1)
    assert (np.abs(draws) > law.quantile(1e-3)).mean() <= 0.004


def test_the_guarantee_is_the_coin_s() -> None:
    promise = made().guarantee()
    assert promise.kind == "pure"
    assert promise.model == "local"
    assert promise.epsilon == pytest.approx(1.5, rel=1e-15)
    assert promise.epsilon <= 1.5


@pytest.mark.parametrize("terms", [20, 300])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("p", [0.1, 1e-3, 1e-9])
def test_the_bound_on_the_error_holds_for_the_worst_data_and_is_not_far_above(
    terms: int, epsilon: float, p: float
) -> None:
    """One coordinate: the worst data are equal values (Hoeffding 1956, Theorem 5), and the sum is a binomial."""
    law = SphereSum(terms, 1, radius(1.0, 1, epsilon))
    bound = law.quantile(p) / (2 * law.radius)  # in answers that fell the other way
    most = 1 / (1 + math.exp(-epsilon))
    chances = np.linspace(1 - most, most, 2001)

    def beyond(q: float) -> float:
        above = stats.binom.sf(np.floor(terms * chances + q), terms, chances)
        below = stats.binom.cdf(np.ceil(terms * chances - q) - 1, terms, chances)
        return float((above + below).max())

    assert beyond(bound) <= p
    assert beyond(bound / 1.5 - 1) > p
