"""Tests the exact calibration of central and local Laplace and Gaussian noise, on the grid and as floating point."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.mechanisms import (
    MECHANISMS,
    Mechanism,
    MechanismSpec,
)
from distrust.common.dp.noise.continuous import Gaussian, Laplace
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from tests.support.planned import planned

REAL = tuple(name for name, kind in MECHANISMS.items() if kind.takes_noise)

FALSE_ALARM = 1e-7


def planned_mechanism(name: str, dimension: int | None = None, **fields: object) -> Mechanism:
    spec = MechanismSpec.model_validate({"name": name, "epsilon": 0.8, **fields})
    statistic = Reward() if dimension is None else BoundedVector(dimension=dimension, bound=3.0)
    return planned(spec, 500, 400, statistic)


@pytest.mark.parametrize("terms", [1, 2, 7])
@pytest.mark.parametrize("p", [0.3, 1e-4, 1e-12])
def test_laplace_sums_have_the_quantiles_of_forty_digits(terms: int, p: float) -> None:
    q = Laplace(3.0, terms).quantile(p) / 3
    with mpmath.workdps(40):
        # the density of a sum of n: e^-x Σ_k C(n-1+k, k) x^(n-1-k) 2^-(n+k) / (n-1-k)!, integrated term by term
        tail = mpmath.fsum(
            mpmath.binomial(terms - 1 + k, k)
            * mpmath.gammainc(terms - k, q)
            / (mpmath.mpf(2) ** (terms + k) * mpmath.factorial(terms - 1 - k))
            for k in range(terms)
        )
        assert float(2 * tail) == pytest.approx(p, rel=1e-9)


def test_gaussian_quantiles() -> None:
    for p in (0.5, 1e-3, 1e-12):
        with mpmath.workdps(40):
            assert float(mpmath.erfc(Gaussian(2.0).quantile(p) / 2 / mpmath.sqrt(2))) == pytest.approx(p, rel=1e-10)


@pytest.mark.parametrize(
    ("law", "cdf"),
    [(Gaussian(2.0), stats.norm(scale=2.0).cdf), (Laplace(0.7), stats.laplace(scale=0.7).cdf)],
)
def test_continuous_draws_follow_their_law(law: Gaussian | Laplace, cdf: object) -> None:
    """Kolmogorov-Smirnov test with a fixed seed: false alarm 1e-7."""
    assert stats.kstest(law.sample(UnsafeSeededStream(5), 200_000), cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("dimension", [None, 6])
@pytest.mark.parametrize("name", ["central-gaussian", "local-gaussian"])
def test_the_continuous_gaussian_is_the_analytic_one(name: str, dimension: int | None) -> None:
    mechanism = planned_mechanism(name, dimension, delta=1e-6, noise="continuous")
    promise = mechanism.privacy().promise
    assert promise.kind == "approximate"
    assert 0.8 * (1 - 1e-6) <= (promise.epsilon or 0.0) <= 0.8
    with mpmath.workdps(50):
        deltas = []
        for square in (mechanism.grid.unrounded, mechanism.grid.squared_l2):  # without rounding, with the worst one
            ratio = mpmath.sqrt(square / mpmath.mpf(mechanism.variance))
            tails = mpmath.ncdf(ratio / 2 - 0.8 / ratio), mpmath.ncdf(-ratio / 2 - 0.8 / ratio)
            deltas.append(float(tails[0] - mpmath.exp(0.8) * tails[1]))
        assert deltas[0] <= 1e-6
        assert deltas[1] >= 1e-6 * (1 - 1e-5)


def test_the_textbook_gaussian_needs_epsilon_below_one_and_more_noise() -> None:
    paper, exact = (
        planned_mechanism("central-gaussian", delta=1e-6, calibration=which) for which in ("paper", "exact")
    )
    g = paper.precision
    assert paper.variance == pytest.approx(g * g * 2 * math.log(1.25e6) / 0.64)
    assert paper.privacy().promise.epsilon < exact.privacy().promise.epsilon
    for epsilon in (1.0, 10.0):
        with pytest.raises(BadParameter, match=r"\(0, 1\)"):
            planned_mechanism("local-gaussian", delta=1e-6, calibration="paper", epsilon=epsilon)


@pytest.mark.parametrize("name", REAL)
def test_continuous_noise_is_loud(name: str) -> None:
    words = {"delta": 1e-6} if "gaussian" in name else {}
    assert "UNSAFE" in planned_mechanism(name, **words, noise="continuous").privacy().promise.assumptions[0]
    assert "UNSAFE" not in " ".join(planned_mechanism(name, **words).privacy().promise.assumptions)


def test_continuous_noise_is_refused_where_no_paper_has_it() -> None:
    with pytest.raises(BadParameter, match=r"mechanism\.noise"):
        planned_mechanism("distributed-polya", noise="continuous")


@pytest.mark.parametrize("delta", [None, 0.0, 0.5])
@pytest.mark.parametrize("name", ["central-gaussian", "local-gaussian"])
def test_gaussian_noise_without_a_delta_is_refused(name: str, delta: float | None) -> None:
    with pytest.raises(BadParameter, match="delta"):
        planned_mechanism(name, delta=delta)


@pytest.mark.parametrize("name", REAL)
def test_the_grid_adds_a_hundredth_of_the_variance_at_most(name: str) -> None:
    mechanism = planned_mechanism(name, **({"delta": 1e-6} if "gaussian" in name else {}))
    rounding = 500 / 4 * ((mechanism.high - mechanism.low) / mechanism.precision) ** 2
    assert rounding <= 0.0101 * mechanism.error(500).std ** 2


def test_rewards_in_minus_one_to_one_have_sensitivity_two() -> None:
    """FREE prints Lap(1/ε) for them, which would give 2ε."""
    spec = MechanismSpec(name="central-laplace", epsilon=0.5)
    signed = BoundedVector(dimension=1, norm="linf", bound=1.0)
    mechanism = planned(spec, 500, 400, signed)
    assert mechanism.error(500).std == pytest.approx(math.sqrt(2) * 2 / 0.5, rel=0.01)
    assert np.isclose(mechanism.privacy().promise.epsilon, 0.5)
