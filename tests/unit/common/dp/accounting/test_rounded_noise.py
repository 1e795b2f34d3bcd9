"""Tests that clients' continuous noise is rounded without bias, and that balls are costed on and off grids."""

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.techniques.gaussian import largest_ratio
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.local.additive import LocalGaussian, LocalLaplace
from distrust.common.dp.noise.continuous import Gaussian, Laplace, Rounded
from distrust.common.randomness import UnsafeSeededStream
from tests.support.planned import planned

REACH = 60  # steps beyond which one message's mass is below 1e-20 here
FALSE_ALARM = 1e-8
SNAPPED = 4.8e-7
"""Most that `snap_up` adds to a least scale or variance, relatively."""

Floats = NDArray[np.float64]


def length(norm: str, dimension: int) -> float:
    """Return the largest ℓ₁ distance of two vectors of the ball of radius 1."""
    return 2 * {"l1": 1, "l2": math.sqrt(dimension), "linf": dimension}[norm]


def planned_mechanism(name: str, clients: int, dimension: int = 1, norm: str = "linf", /, **fields: Any) -> Mechanism:
    delta = {"delta": 1e-6} if "gaussian" in name else {}
    spec = MechanismSpec(name=name, **delta, **fields)
    vector = BoundedVector(dimension=dimension, norm=norm)
    statistic = Reward() if dimension == 1 else vector
    return planned(spec, clients, statistic=statistic)


def message(law: Gaussian | Laplace, value: float) -> Floats:
    """Return the masses of ⌊value + draw + U⌋ at -REACH … REACH. It is at most k if U < k + 1 - value - draw."""
    sums = integral(law, np.arange(-REACH - 1.0, REACH + 2) - value)
    return np.asarray(np.diff(sums, 2), dtype=np.float64)


def integral(law: Gaussian | Laplace, x: Floats) -> Floats:
    """Return the integral of the distribution function, from far below up to x."""
    if isinstance(law, Laplace):
        return np.maximum(x, 0) + law.scale / 2 * np.exp(-np.abs(x) / law.scale)
    z = x / law.std
    whole = x * ndtr(z) + law.std * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return np.asarray(whole, dtype=np.float64)


@pytest.mark.parametrize("value", [0.1, 0.3, 0.5, 0.77])
@pytest.mark.parametrize(
    ("name", "epsilon", "precision"),
    [("local-laplace", 8.0, 1), ("local-laplace", 20.0, 3), ("local-gaussian", 8.0, 1), ("local-gaussian", 1.0, 1)],
)
def test_a_sum_of_values_between_the_steps_is_not_biased(
    name: str, epsilon: float, precision: int, value: float
) -> None:
    """The nearest step would miss by hundreds. The law's own bound: a false alarm once in 10⁸."""
    mechanism = planned_mechanism(name, 10_000, epsilon=epsilon, precision=precision, noise="continuous")
    stream = UnsafeSeededStream(5, name, str(epsilon), str(value))
    total = mechanism.randomize(np.full((10_000, 1), value), stream).sum(axis=0, dtype=np.uint64)
    estimate = mechanism.estimate(total % np.uint64(mechanism.modulus), 10_000, stream)
    assert abs(float(estimate[0]) - 10_000 * value) <= mechanism.error(10_000).quantile(FALSE_ALARM)


CASES = [
    *[
        pytest.param(Laplace(0.125), Laplace(0.125, terms), terms, id=f"small-laplace-{terms}")
        for terms in (1, 2, 7, 40)
    ],
    pytest.param(Laplace(1.5), Laplace(1.5, 7), 7, id="laplace"),
    pytest.param(Gaussian(0.2), Gaussian(0.2), 1, id="small-gaussian-1"),
    pytest.param(Gaussian(0.2), Gaussian(0.2 * math.sqrt(9)), 9, id="small-gaussian-9"),
    pytest.param(Gaussian(4.0), Gaussian(4.0 * math.sqrt(20)), 20, id="gaussian"),
]


@pytest.mark.parametrize(("one", "law", "terms"), CASES)
def test_the_law_of_rounded_noise_is_within_its_bound_and_has_its_deviation(
    one: Gaussian | Laplace, law: Gaussian | Laplace, terms: int
) -> None:
    """The law itself, by convolution, for values everywhere between two steps; the middle has the largest deviation."""
    rounded = Rounded(law, terms)
    quantiles = {p: rounded.quantile(p) for p in (0.5, 0.01, 1e-6, 1e-9)}
    for value in (0.0, 0.2, 0.5, 0.9):
        masses = reduce(np.convolve, [message(one, value)] * terms)
        gaps = np.arange(masses.size) - terms * (REACH + value)
        spread = math.sqrt(float(masses @ gaps**2))
        assert float(masses @ gaps) == pytest.approx(0, abs=1e-9)
        assert spread <= rounded.std * (1 + 1e-9)
        if value == 0.5:
            assert spread == pytest.approx(rounded.std, rel=1e-5)
        for p, q in quantiles.items():
            assert float(masses[np.abs(gaps) > q].sum()) <= p


@pytest.mark.parametrize("p", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("law", [Laplace(5.0, 1000), Gaussian(7.0 * math.sqrt(1000))])
def test_on_a_fine_grid_the_bound_is_a_twentieth_above_the_noise(law: Gaussian | Laplace, p: float) -> None:
    rounded = Rounded(law, 1000)
    assert rounded.quantile_how == "bound"
    assert law.quantile(p) < rounded.quantile(p) <= 1.05 * law.quantile(p)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("dimension", [3, 20])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", ["local-laplace", "central-laplace"])
def test_a_ball_takes_a_hundredth_more_laplace_noise_on_the_grid(
    name: str, norm: str, dimension: int, epsilon: float
) -> None:
    mechanism = planned_mechanism(name, 1000, dimension, norm, epsilon=epsilon)
    terms = 1000 if name == "local-laplace" else 1
    paper = math.sqrt(2 * terms) * length(norm, dimension) / epsilon
    rounding = 1000 / 4 * (2 / mechanism.precision) ** 2
    assert 0.99 * paper**2 <= mechanism.error(1000).std ** 2 <= 1.0101 * paper**2
    assert rounding <= 0.0101 * paper**2
    promised = mechanism.privacy().promise.epsilon
    assert promised is not None
    assert epsilon * (1 - 1.01 * SNAPPED) <= promised <= epsilon  # rounding costs a hundredth at most, as scale⁻²


@pytest.mark.parametrize("dimension", [3, 20])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(("name", "epsilon"), [("local-gaussian", 1.0), ("central-gaussian", 8.0)])
def test_a_ball_takes_a_hundredth_more_gaussian_noise_on_the_grid(
    name: str, norm: str, dimension: int, epsilon: float
) -> None:
    mechanism = planned_mechanism(name, 1000, dimension, norm, epsilon=epsilon)
    terms = 1000 if name == "local-gaussian" else 1
    analytic = terms * (2 / largest_ratio(epsilon, 1e-6)) ** 2
    assert analytic <= mechanism.error(1000).std ** 2 <= 1.0102 * analytic


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("precision", [1, 4])
def test_continuous_noise_on_the_values_themselves_pays_for_no_rounding(norm: str, precision: int) -> None:
    fields = {"epsilon": 1.0, "precision": precision, "noise": "continuous"}
    laplace = planned_mechanism("local-laplace", 1000, 20, norm, **fields)
    gaussian = planned_mechanism("local-gaussian", 1000, 20, norm, **fields)
    assert isinstance(laplace, LocalLaplace)
    assert isinstance(gaussian, LocalGaussian)
    assert laplace.real_law().scale * laplace.step == pytest.approx(length(norm, 20), rel=1e-12)
    across = 2 * math.sqrt(20 if norm == "linf" else 1)
    least = across / largest_ratio(1.0, 1e-6)
    assert least <= gaussian.real_law().std * gaussian.step <= least * (1 + SNAPPED / 2)
    for mechanism, excess in ((laplace, 1e-12), (gaussian, 1.1 * SNAPPED / 2)):  # ε falls as std to the power of 1.08
        assert mechanism.rounding == 0  # it is in the error's law
        promised = mechanism.privacy().promise.epsilon
        assert promised is not None
        assert 1 - excess <= promised <= 1
