"""Tests exact accounting against 50-digit arithmetic, to nine digits, and noise laws against closed forms."""

import math

import mpmath
import numpy as np
import pytest

from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at, from_rdp, hockey_stick, pure_epsilon, rdp
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.law import Pmf
from distrust.common.dp.noise.polya import DiscreteLaplace
from distrust.common.dp.noise.skellam import Skellam


@pytest.fixture(autouse=True)
def _fifty_digits():  # noqa: ANN202
    with mpmath.workdps(50):
        yield


def oracle_delta(masses: list[mpmath.mpf], shift: int, epsilon: float) -> float:
    """Return δ(ε), the larger of both directions, with zeros outside."""
    zeros = [mpmath.mpf(0)] * shift
    p, q, factor = masses + zeros, zeros + masses, mpmath.exp(mpmath.mpf(epsilon))
    forth = mpmath.fsum(max(a - factor * b, 0) for a, b in zip(p, q, strict=True))
    back = mpmath.fsum(max(b - factor * a, 0) for a, b in zip(p, q, strict=True))
    return float(max(forth, back))


def skellam(variance: float, reach: int) -> list[mpmath.mpf]:
    half = [mpmath.exp(-variance) * mpmath.besseli(k, variance) for k in range(reach + 1)]
    return half[:0:-1] + half


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
@pytest.mark.parametrize(("variance", "shift"), [(100.0, 10), (17.5, 3), (0.5, 1)])
def test_skellam_hockey_stick(variance: float, shift: int, epsilon: float) -> None:
    got = hockey_stick(Skellam(variance).pmf(), shift, epsilon)
    assert got == pytest.approx(oracle_delta(skellam(variance, 150), shift, epsilon), rel=1e-9, abs=2e-22)


@pytest.mark.parametrize(("trials", "chance", "shift"), [(200, 0.5, 12), (300, 0.2, 5), (11, 0.5, 4), (60, 0.45, 1)])
def test_binomial_hockey_stick_counts_its_bounded_support(trials: int, chance: float, shift: int) -> None:
    p = mpmath.mpf(chance)
    masses = [mpmath.binomial(trials, x) * p**x * (1 - p) ** (trials - x) for x in range(trials + 1)]
    pmf = Binomial(trials, chance).pmf()
    for epsilon in (0.2, 1.0, 50.0):
        assert hockey_stick(pmf, shift, epsilon) == pytest.approx(oracle_delta(masses, shift, epsilon), rel=1e-9)
    assert hockey_stick(pmf, shift, 1e3) >= float(mpmath.fsum(masses[:shift])) * (1 - 1e-12)


@pytest.mark.parametrize("order", [1.25, 2.0, 8.0, 64.0])
@pytest.mark.parametrize(("variance", "shift"), [(100.0, 10), (4.0, 3), (0.5, 1)])
@pytest.mark.few(5)
def test_skellam_renyi_divergence(variance: float, shift: int, order: float) -> None:
    reach = math.ceil(64 * shift + 15 * math.sqrt(variance)) + 60
    masses = skellam(variance, reach)
    moved = zip(masses[shift:], masses[: len(masses) - shift], strict=True)
    want = mpmath.log(mpmath.fsum(p**order * q ** (1 - order) for p, q in moved)) / (order - 1)
    (got,) = rdp(Skellam(variance).pmf(least=reach), shift, [order])
    assert got == pytest.approx(float(want), rel=1e-9)


def test_an_asymmetric_law_takes_the_worse_direction() -> None:
    pmf = Pmf(0, np.log([0.5, 0.3, 0.15, 0.05]), 0.0)
    forth = 0.5 + max(0.0, 0.3 - math.e * 0.5)
    back = 0.05 + (0.5 - 0.3 * math.e if 0.3 * math.e < 0.5 else 0.0)
    assert hockey_stick(pmf, 1, 1.0) == pytest.approx(max(forth, back))
    assert hockey_stick(Pmf(0, pmf.logs[::-1], 0.0), 1, 1.0) == pytest.approx(max(forth, back))


def test_lost_mass_is_added_to_delta() -> None:
    pmf = DiscreteLaplace(2.0).pmf()
    base = hockey_stick(pmf, 1, 0.1)
    assert hockey_stick(Pmf(pmf.first, pmf.logs, 0.25), 1, 0.1) == pytest.approx(base - pmf.lost + 0.25)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("shift", [1, 32])
def test_discrete_laplace_is_pure(epsilon: float, shift: int) -> None:
    pmf = DiscreteLaplace(shift / epsilon).pmf()
    assert pure_epsilon(pmf, shift) == pytest.approx(epsilon, rel=1e-12)
    assert hockey_stick(pmf, shift, epsilon * (1 + 1e-12)) < 1e-12
    assert hockey_stick(pmf, shift, epsilon / 2) > 1e-3


def test_no_finite_epsilon_where_the_supports_do_not_meet() -> None:
    assert pure_epsilon(Binomial(3).pmf(), 4) == math.inf
    assert epsilon_at(Binomial(10).pmf(), 5, 1e-6) == math.inf
    assert epsilon_at(Binomial(10**6).pmf(), 1, 0.01) == 0.0


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-2])
def test_epsilon_at_inverts_the_hockey_stick(delta: float) -> None:
    pmf = Skellam(150.0).pmf()
    epsilon = epsilon_at(pmf, 10, delta)
    assert hockey_stick(pmf, 10, epsilon) <= delta < hockey_stick(pmf, 10, epsilon * (1 - 1e-8))


def test_conversion_of_renyi_is_sound_for_skellam() -> None:
    """The (ε, δ) from Rényi orders is never below the exact one, and not far above."""
    variance, shift = 100.0, 10
    orders = [1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    pairs = list(zip(orders, rdp(Skellam(variance).pmf(least=400), shift, orders), strict=True))
    for delta in (1e-6, 1e-3):
        exact = epsilon_at(Skellam(variance).pmf(), shift, delta)
        assert exact <= from_rdp(pairs, delta) < 1.35 * exact + 0.1


def test_agrees_with_dp_accounting() -> None:
    """The library computes on a grid of privacy losses, and is pessimistic by 1e-5 at most."""
    from dp_accounting.pld.privacy_loss_distribution import from_two_probability_mass_functions  # noqa: PLC0415 - slow to import

    pmf = Skellam(30.0).pmf()
    upper = {int(x): float(m) for x, m in zip(pmf.support, np.log(pmf.masses), strict=True)}
    lower = {x + 5: m for x, m in upper.items()}
    shared = set(upper) & set(lower)
    loss = from_two_probability_mass_functions(
        {x: lower[x] for x in shared},
        {x: upper[x] for x in shared},
        symmetric=False,
        value_discretization_interval=1e-5,
    )
    for epsilon in (0.3, 1.0):
        assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(hockey_stick(pmf, 5, epsilon), rel=2e-4)
