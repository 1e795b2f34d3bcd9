"""Tests the analytic Gaussian mechanism and zCDP with high precision, and discrete Gaussian noise by the theorems."""

import math
from typing import Any

import mpmath
import pytest

from distrust.common.dp.accounting.guarantee import GUARANTEE_ORDERS
from distrust.common.dp.accounting.laws.gaussian_sums import sum_divergences
from distrust.common.dp.accounting.techniques.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    largest_ratio,
    zcdp_epsilon,
    zcdp_rho,
)
from distrust.common.dp.accounting.techniques.hockey_stick import hockey_stick, rdp
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.distributed.additive import DistributedDiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum, is_gaussian
from tests.support.planned import planned

SNAPPED = 4.8e-7
"""The largest share of the least variance that `snap_up` adds to it."""


def oracle_delta(ratio: float, epsilon: float) -> float:
    with mpmath.workdps(60):
        r, e = mpmath.mpf(ratio), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r))


@pytest.mark.parametrize("ratio", [1e-3, 0.05, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.1, 1.0, 10.0])
def test_the_analytic_gaussian_agrees_with_sixty_digits(ratio: float, epsilon: float) -> None:
    want = oracle_delta(ratio, epsilon)
    assert gaussian_delta(ratio, epsilon) == pytest.approx(want, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-9), (1.0, 1e-6), (10.0, 0.25), (0.5, 0.4)])
def test_the_searches_invert_it_and_round_towards_privacy(epsilon: float, delta: float) -> None:
    ratio = largest_ratio(epsilon, delta)
    assert oracle_delta(ratio, epsilon) <= delta * (1 + 1e-12)
    assert oracle_delta(ratio * (1 + 1e-10), epsilon) > delta
    assert gaussian_epsilon(ratio, delta) == pytest.approx(epsilon, rel=1e-9)
    assert oracle_delta(ratio, gaussian_epsilon(ratio, delta)) <= delta * (1 + 1e-12)


def test_zcdp_agrees_with_dp_accounting() -> None:
    from dp_accounting.rdp import rdp_privacy_accountant  # noqa: PLC0415 - slow to import

    orders = [1 + x / 50 for x in range(1, 4000)]
    for rho, delta in ((0.01, 1e-6), (0.5, 1e-6), (2.0, 1e-3)):
        want, _ = rdp_privacy_accountant.compute_epsilon(orders, [rho * order for order in orders], delta)
        assert zcdp_epsilon(rho, delta)[0] == pytest.approx(want, rel=1e-4)
        assert zcdp_rho(zcdp_epsilon(rho, delta)[0], delta) == pytest.approx(rho, rel=1e-8)


@pytest.mark.parametrize(("variance", "shift"), [(100.0, 10), (17.5, 3), (0.5, 1)])
def test_discrete_gaussian_hockey_stick_and_renyi(variance: float, shift: int) -> None:
    """δ agrees with 50 digits. Rényi divergences of orders with whole αg have their closed form, exactly ρ-zCDP."""
    with mpmath.workdps(50):
        masses = [mpmath.exp(-mpmath.mpf(x * x) / (2 * mpmath.mpf(variance))) for x in range(-160, 161)]
        whole = mpmath.fsum(masses)
        for epsilon in (0.1, 1.0, 3.0):
            pairs = zip(masses[shift:], masses[: len(masses) - shift], strict=True)
            want = mpmath.fsum(max(p - mpmath.exp(epsilon) * q, 0) for p, q in pairs) / whole
            got = hockey_stick(DiscreteGaussian(variance).pmf(), shift, epsilon)
            assert got == pytest.approx(float(want), rel=1e-9, abs=2e-22)
    reach = 4 * shift + math.ceil(15 * math.sqrt(variance)) + 20
    got = rdp(DiscreteGaussian(variance).pmf(least=reach), shift, [2.0, 4.0])
    assert got == pytest.approx([shift**2 / variance, 2 * shift**2 / variance], rel=1e-9)


@pytest.mark.parametrize(("variance", "terms"), [(3.95, 2), (2.62, 10**6), (2.2, 1000)])
def test_the_shortcut_to_one_gaussian_is_the_same_law(variance: float, terms: int) -> None:
    """The laws agree just above the threshold of `is_gaussian`, and just below, where the Fourier sum computes."""
    assert is_gaussian(variance, terms)
    below = variance
    while is_gaussian(below, terms):
        below *= 0.99
    pmf = DiscreteGaussianSum(below, terms).pmf()
    assert pmf.logs == pytest.approx(DiscreteGaussian(below * terms).pmf().logs[: pmf.logs.size], abs=2e-9)


def planned_mechanism(calibration: str = "exact", clients: int = 1000, **fields: Any) -> DistributedDiscreteGaussian:
    spec = MechanismSpec(name="distributed-discrete-gaussian", calibration=calibration, epsilon=1.0, **fields)
    mechanism = planned(spec, clients)
    assert isinstance(mechanism, DistributedDiscreteGaussian)
    return mechanism


@pytest.mark.parametrize("precision", [1, 3, 40])
def test_exact_shares_meet_epsilon_and_delta_and_no_less_noise_does(precision: int) -> None:
    """With 0/1 rewards a share's deviation is a ninth of a step, so calibration uses the exact law of the sum."""
    mechanism = planned_mechanism(delta=1e-6, precision=precision)
    share = mechanism.variance / 1000
    assert hockey_stick(DiscreteGaussianSum(share, 1000).pmf(), precision, 1.0) <= 1e-6
    assert hockey_stick(DiscreteGaussianSum(share * (1 - SNAPPED), 1000).pmf(), precision, 1.0) > 1e-6
    promise = mechanism.privacy().promise
    assert promise.kind == "approximate"
    assert promise.epsilon is not None
    assert 1 - 2e-6 <= promise.epsilon <= 1


@pytest.mark.parametrize(("precision", "excess"), [(1, SNAPPED), (3, SNAPPED), (None, 1e-12)])
def test_exact_shares_meet_concentrated_privacy_at_every_order_and_no_less_noise_does(
    precision: int | None, excess: float
) -> None:
    """At g = 1 a share is so small that the divergence falls 7.5 times as fast as the noise grows."""
    mechanism = planned_mechanism(precision=precision)
    promise = mechanism.privacy().promise
    assert promise.kind == "renyi"
    assert [order for order, _ in promise.rdp] == list(GUARANTEE_ORDERS)
    assert max(2 * epsilon / order for order, epsilon in promise.rdp) <= 1
    less = sum_divergences(mechanism.share * (1 - excess), 1000, mechanism.grid)
    assert max(2 * epsilon / order for order, epsilon in less) > 1


def test_the_paper_s_shares_do_not_keep_their_claim_where_its_lemma_is_silent() -> None:
    """The variance is g²/(nε²) = 0.001 a client. Almost all clients draw 0, and the sum hides no client."""
    promise = planned_mechanism("paper", precision=1, delta=1e-6).privacy().promise
    assert promise.claimed == 1
    assert promise.epsilon > 400


def test_the_paper_s_own_grid_keeps_its_claim() -> None:
    mechanism = planned_mechanism("paper", clients=400)
    assert mechanism.precision == 200
    for order, epsilon in mechanism.privacy().promise.rdp:
        assert epsilon == pytest.approx(order / 2, rel=1e-12)
