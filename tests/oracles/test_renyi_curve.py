"""Tests Rényi divergences of shuffled messages: the integral over hockey sticks, its bounds, and the ε they save."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.composition import compose
from distrust.common.dp.accounting.profile import PROFILE_ORDERS, response_renyi
from distrust.common.dp.accounting.techniques.amplification import renyi
from distrust.common.dp.accounting.techniques.amplification.blanket import blanket_epsilon, extreme_delta
from distrust.common.dp.accounting.techniques.amplification.clones import (
    antipodal_epsilon,
    clones_curve,
    clones_delta,
    clones_epsilon,
)
from distrust.common.dp.accounting.techniques.amplification.randomizers import added_noise, laplace_on_grid
from distrust.common.dp.accounting.techniques.amplification.renyi import (
    blanket_renyi,
    clones_renyi,
    concentrated_renyi,
    curve_renyi,
    pair_tail,
)
from distrust.common.dp.accounting.techniques.amplification.vectors import Crowd
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, zcdp_epsilon
from distrust.common.dp.accounting.techniques.hockey_stick import law_epsilon
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.shuffled.gaussian import shuffled_gaussian_renyi
from distrust.common.dp.mechanisms.shuffled.laplace import scalar_epsilon
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.polya import DiscreteLaplace
from tests.support.planned import planned
from tests.support.randomizers import tabulated
from tests.support.shuffled_laws import Array, random_table, responses, shuffled, true_delta

Curve = Callable[[mpmath.mpf], mpmath.mpf]


def response_curve(local: float) -> Curve:
    e0 = mpmath.mpf(local)
    return lambda e: max(mpmath.mpf(0), (mpmath.exp(e0) - mpmath.exp(e)) / (mpmath.exp(e0) + 1))


def gaussian_curve(ratio: float) -> Curve:
    r = mpmath.mpf(ratio)
    return lambda e: mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)


def laplace_curve(local: float) -> Curve:
    e0 = mpmath.mpf(local)
    return lambda e: max(mpmath.mpf(0), 1 - mpmath.exp((e - e0) / 2))


def laplace_renyi(local: float, order: float) -> mpmath.mpf:
    """Return the Rényi divergence of Laplace noise (Mironov 2017, Table II)."""
    a, e = mpmath.mpf(order), mpmath.mpf(local)
    whole = (a * mpmath.exp((a - 1) * e) + (a - 1) * mpmath.exp(-a * e)) / (2 * a - 1)
    return mpmath.log(whole) / (a - 1)


def response_exact(local: float, order: float) -> mpmath.mpf:
    a, p = mpmath.mpf(order), 1 / (1 + mpmath.exp(-mpmath.mpf(local)))
    return mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)


CURVES = [
    pytest.param(response_curve(1.5), lambda a: response_exact(1.5, a), 1.5, id="randomized-response"),
    pytest.param(laplace_curve(0.8), lambda a: laplace_renyi(0.8, a), 0.8, id="laplace"),
    pytest.param(gaussian_curve(0.5), lambda a: mpmath.mpf(a) / 8, 40.0, id="gaussian"),
]


@pytest.mark.parametrize(("curve", "truth", "last"), CURVES)
@pytest.mark.parametrize("order", [1.25, 2.0, 8.0])
@pytest.mark.few(4)
def test_a_renyi_divergence_is_an_integral_over_the_hockey_sticks(
    curve: Curve, truth: Callable[[float], mpmath.mpf], last: float, order: float
) -> None:
    """Sason & Verdú's formula with ε = ln γ, by quadrature. The pairs are symmetric, so one curve serves both sides."""
    with mpmath.workdps(30):
        a = mpmath.mpf(order)

        def inside(e: mpmath.mpf) -> mpmath.mpf:
            return (mpmath.exp((a - 1) * e) + mpmath.exp(-a * e)) * curve(e)

        whole = 1 + a * (a - 1) * mpmath.quad(inside, mpmath.linspace(0, last, 21))
        assert mpmath.almosteq(mpmath.log(whole) / (a - 1), truth(order), 1e-12)


@pytest.mark.parametrize(("curve", "truth", "last"), CURVES)
@pytest.mark.parametrize("points", [4, 30, 400])
def test_chords_are_above_the_divergence_and_close_to_it_when_they_are_many(
    curve: Curve, truth: Callable[[float], mpmath.mpf], last: float, points: int
) -> None:
    """The Gaussian's curve ends at ε = 40, beyond which its mass is below 1e-1300."""
    epsilons = np.geomspace(last / 4000, last, points)
    deltas = np.array([float(curve(mpmath.mpf(e))) for e in epsilons])
    for order in (1.25, 2.0, 8.0):
        result, exact = curve_renyi(epsilons, deltas, order), float(truth(order))
        assert result >= exact
        assert points < 400 or result <= 1.01 * exact
    doubled = curve_renyi(epsilons, np.minimum(2 * deltas, 1), 2.0)
    assert doubled > curve_renyi(epsilons, deltas, 2.0)


def test_large_orders_do_not_overflow() -> None:
    epsilons = np.linspace(0.1, 50, 300)
    result = curve_renyi(epsilons, np.where(epsilons < 50, 0.5, 0.0), 128.0)
    assert 49 < result < 50.1


@pytest.mark.parametrize(("rho", "order", "start"), [(0.1, 2.0, 1.0), (1.0, 4.0, 12.0), (0.01, 32.0, 1.5)])
def test_the_tail_is_above_the_gaussian_s_own(rho: float, order: float, start: float) -> None:
    """A Gaussian of that ρ is ρ-zCDP. Its own integral from ε on is at most the tail, and at least a 40th of it."""
    with mpmath.workdps(30):
        a, curve = mpmath.mpf(order), gaussian_curve(math.sqrt(2 * rho))

        def inside(e: mpmath.mpf) -> mpmath.mpf:
            return (mpmath.exp((a - 1) * e) + mpmath.exp(-a * e)) * curve(e)

        ends = [start + k * math.sqrt(rho) for k in range(0, 40, 2)]
        exact = float(mpmath.log(a * (a - 1) * mpmath.quad(inside, ends)))
    assert exact <= pair_tail(rho, order, start) <= exact + math.log(40)


@pytest.mark.parametrize(("local", "users"), [(0.5, 1), (2.0, 3), (1.0, 1000), (4.0, 1000), (3.0, 100_000)])
def test_the_quick_curve_of_the_clones_is_above_the_slow_one_and_near_it(local: float, users: int) -> None:
    epsilons = np.linspace(0.01, 0.95, 25) * local
    quick = clones_curve(epsilons, local, users)
    slow = np.array([clones_delta(float(e), local, users) for e in epsilons])
    assert np.all(quick >= slow * (1 - 1e-9) - 1e-21)
    felt = slow > 1e-18
    assert np.all(quick[felt] <= 1.1 * slow[felt])


@pytest.mark.parametrize(("seed", "outputs", "users"), [(1, 3, 4), (2, 2, 9), (3, 4, 3)])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.5])
def test_the_quick_tail_of_the_blanket_is_above_the_truth(seed: int, outputs: int, users: int, epsilon: float) -> None:
    masses = random_table(seed, 2, outputs)
    result = max(extreme_delta(tabulated(masses), pair, epsilon, users) for pair in ((0, 1), (1, 0)))
    assert true_delta(masses, users, epsilon) <= result <= 1


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 9.0])
def test_far_out_one_message_has_to_outweigh_all_the_others(epsilon: float) -> None:
    """A thousand messages at ε have at least one message's δ at ε + ln 1000, and a close upper bound."""
    randomizer = added_noise(DiscreteGaussian(2.0).pmf(1e-280), 2)
    result = extreme_delta(randomizer, (0, 2), epsilon, 1000)

    def alone(factor: float) -> float:
        return float(np.maximum(randomizer.masses[0] - factor * randomizer.masses[2], 0).sum())

    assert alone(1000 * math.exp(epsilon)) <= result <= alone(1000 * math.expm1(epsilon) / 8)


def exact_renyi(masses: Array, users: int, order: float) -> float:
    """Return the largest Rényi divergence over all inputs, by enumeration of the shuffler's outcomes."""
    worst, inputs = 0.0, range(len(masses))
    for others in itertools.combinations_with_replacement(inputs, users - 1):
        laws = [shuffled(masses, (x, *others)) for x in inputs]
        for one, other in itertools.permutations(laws, 2):
            logs = [order * math.log(p) + (1 - order) * math.log(other[counts]) for counts, p in one.items()]
            worst = max(worst, float(np.logaddexp.reduce(logs)) / (order - 1))
    return worst


@pytest.mark.parametrize("users", [1, 2, 5])
@pytest.mark.parametrize("local", [0.3, 1.5, 4.0])
@pytest.mark.parametrize("order", [1.25, 2.0, 16.0])
def test_shuffled_responses_stay_below_the_clones_and_those_below_one_message(
    users: int, local: float, order: float
) -> None:
    result = clones_renyi(local, users, (order,))[0]
    assert exact_renyi(responses(local), users, order) <= result * (1 + 1e-12)
    assert result <= 1.01 * response_renyi(local, order) + 1e-3


@pytest.mark.parametrize(("seed", "inputs", "outputs", "users"), [(1, 2, 3, 4), (2, 3, 3, 3), (3, 2, 2, 7)])
def test_any_table_s_shuffled_messages_stay_below_the_blanket(seed: int, inputs: int, outputs: int, users: int) -> None:
    masses = random_table(seed, inputs, outputs)
    local = max(float(np.log(a / b).max()) for a, b in itertools.permutations(masses, 2))
    orders = (1.5, 2.0, 8.0)
    result = blanket_renyi(tabulated(masses), users, local**2 / 2, orders)
    for order, bound in zip(orders, result, strict=True):
        assert exact_renyi(masses, users, order) <= bound


@pytest.mark.parametrize(("scale", "precision"), [(0.7, 1), (2.0, 4)])
def test_laplace_messages_put_between_the_ends_are_no_less_private_and_lose_nothing(
    scale: float, precision: int
) -> None:
    """The blanket's ε stays the same. No mass is left out, which high orders need for their rare outcomes."""
    cut, whole = laplace_on_grid(scale, precision), added_noise(DiscreteLaplace(scale).pmf(), precision)
    assert cut.masses.sum(axis=1) == pytest.approx(1, rel=1e-14)
    assert cut.lost == 0
    assert cut.gamma == pytest.approx(whole.gamma, rel=1e-12)
    assert blanket_epsilon(cut, 1e-4, 100) == pytest.approx(blanket_epsilon(whole, 1e-4, 100), rel=1e-4)


@pytest.mark.parametrize("users", [2, 4])
def test_laplace_messages_stay_below_their_blanket_and_that_below_the_clones(users: int) -> None:
    randomizer = laplace_on_grid(0.5, 1)
    orders = (1.5, 2.0, 16.0)
    result = blanket_renyi(randomizer, users, 2.0, orders, 2.0)
    for order, bound, loose in zip(orders, result, clones_renyi(2.0, users, orders), strict=True):
        assert exact_renyi(randomizer.masses, users, order) <= bound < loose


@pytest.mark.parametrize("users", [1, 3])
def test_concentrated_messages_stay_below_their_bound(users: int) -> None:
    """Randomized response is ½ε₀²-zCDP, so the bound for concentrated messages covers it."""
    result = concentrated_renyi(users, 0.5, (1.5, 4.0), lambda delta: zcdp_epsilon(0.5, delta)[0], lambda *_: 1.0)
    for order, bound in zip((1.5, 4.0), result, strict=True):
        assert exact_renyi(responses(1.0), users, order) <= bound


def test_no_share_of_delta_alone_gives_less_than_all_that_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are left out where one of the bound's two parts is above the least by then. Points differ a little."""

    def of(*shares: float) -> list[float]:
        monkeypatch.setattr(renyi, "LOST_DELTAS", shares)
        orders = (1.25, 4.0, 16.0)
        return concentrated_renyi(10**5, 0.05, orders, lambda delta: zcdp_epsilon(0.05, delta)[0], lambda *_: 1.0)

    each = tuple(renyi.LOST_DELTAS)
    least = of(*each)
    for share in each:
        assert all(one <= 1.02 * alone for one, alone in zip(least, of(share), strict=True))


class Counted:
    """Calls of a function, which goes on being called, and what they add up to."""

    def __init__(self, function: Callable[..., Any], size: Callable[..., int]) -> None:
        self.function, self.size, self.calls, self.total = function, size, 0, 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls, self.total = self.calls + 1, self.total + self.size(*given)
        return self.function(*given, **named)


def test_a_curve_of_many_pairs_takes_the_ffts_of_the_farthest_pair_and_few_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million clients at ε = 1, δ = 1e-6 and g = 4: FFTs for all six pairs are 180, of 31 million points."""
    ffts = Counted(np.fft.rfft, lambda law: law.size)
    monkeypatch.setattr(np.fft, "rfft", ffts)
    randomizer = added_noise(DiscreteGaussian(2.684).pmf(1e-280), 4)
    blanket_renyi(randomizer, 10**6, 16 / (2 * 2.684), PROFILE_ORDERS)
    assert ffts.calls <= 60
    assert ffts.total <= 10**7


def test_a_delta_that_falls_slowly_takes_a_third_of_the_ffts_for_the_same_divergences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fifth of a step of noise: δ falls by a digit in several nats, which 0.2 nats at a time take 123 FFTs."""
    randomizer = added_noise(DiscreteGaussian(0.06).pmf(1e-280), 1)
    orders, calls, found = (1.25, 1.5, 2.0, 8.0), [], []
    for fall in (0.0, renyi.FALL):
        ffts = Counted(np.fft.rfft, lambda law: law.size)
        with monkeypatch.context() as patched:
            patched.setattr(renyi, "FALL", fall)
            patched.setattr(np.fft, "rfft", ffts)
            found.append(blanket_renyi(randomizer, 1000, 1 / 0.12, orders))
        calls.append(ffts.calls)
    assert calls[1] < calls[0] / 3
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_a_curve_of_vectors_looks_at_two_shares_of_delta_for_an_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 shares at each of 139 to 156 values of ε below their ε₀ would be 3,325 bounds of the clones."""
    clones = Counted(clones_curve, lambda epsilons, *_: epsilons.size)
    monkeypatch.setattr(renyi, "clones_curve", clones)
    concentrated_renyi(1000, 0.5, (2.0,), lambda delta: zcdp_epsilon(0.5, delta)[0], lambda *_: 1.0)
    assert clones.total <= 300


def planned_mechanism(name: str, clients: int, dimension: int = 1) -> Mechanism:
    spec = MechanismSpec(name=name, epsilon=1.0, delta=1e-6)
    statistic = Reward() if dimension == 1 else BoundedVector(dimension=dimension, norm="l2", bound=0.5)
    return planned(spec, clients, statistic=statistic)


@pytest.mark.parametrize(
    ("name", "dimension", "saved"),
    [
        ("shuffled-laplace", 1, 90),
        ("shuffled-sphere", 4, 90),
        ("shuffled-gaussian", 1, 600),
        ("shuffled-gaussian", 4, 15),
    ],
)
def test_ten_thousand_clients_have_far_less_than_one_message(name: str, dimension: int, saved: float) -> None:
    """Order 2 at ε = 1, δ = 1e-6. Without another honest client the batch tells as much as the message."""
    mechanism = planned_mechanism(name, 10_000, dimension)
    together, alone = mechanism.privacy().profile().known, mechanism.privacy(10_000, 9_999).profile().known
    assert dict(together)[2.0] < dict(alone)[2.0] / saved
    assert all(a <= 1.01 * b for (_, a), (_, b) in zip(together, alone, strict=True))  # both are bounds
    by_order = [epsilon for _, epsilon in together]
    assert by_order == sorted(by_order)
    assert [order for order, _ in together] == list(PROFILE_ORDERS)
    assert mechanism.privacy().profile().rdp_how == "bound"


def test_returning_clients_are_charged_by_it() -> None:
    """A hundred rounds of (1, 1e-6) at δ = 1e-4 cost 89.7 by the worst pair, and about 11 by Rényi, at any δ."""
    mechanism = planned_mechanism("shuffled-laplace", 10_000)
    plain, full = mechanism.privacy().promise, mechanism.privacy().composable
    assert plain.rdp == ()
    assert full == plain.model_copy(update={"rdp": mechanism.privacy().profile().known})
    assert (compose(((plain, 100),), 1e-4).epsilon or 0) > 89
    assert (compose(((full, 100),), 1e-4).epsilon or math.inf) < 12
    assert compose(((plain, 100),), 1e-5).epsilon is None
    assert (compose(((full, 100),), 1e-5).epsilon or math.inf) < 14


@pytest.mark.parametrize(("variance", "users"), [(1.5, 2), (0.6, 2), (4.0, 2), (1.5, 50), (0.6, 1000)])
def test_shuffled_gaussian_divergences_are_not_below_what_any_law_has(variance: float, users: int) -> None:
    """If all others send one value, the divergence is at least one message's less α/(α - 1) · ln n."""
    rho = 1 / (2 * variance)
    result = shuffled_gaussian_renyi(variance, Crowd(Grid(1, 1, "linf"), 1, users))
    for order, bound in zip(PROFILE_ORDERS, result, strict=True):
        assert bound >= order * rho - order / (order - 1) * math.log(users) - 1e-9, order


@pytest.mark.parametrize(("shift", "delta"), [(200, 1e-15), (210, 1e-15), (300, 4.7e-13), (120, 1e-6)])
def test_one_discrete_gaussian_far_out_is_as_private_as_continuous_noise(shift: int, delta: float) -> None:
    result = law_epsilon(DiscreteGaussianSum(1e4, 1), shift, delta)
    assert result == pytest.approx(gaussian_epsilon(shift / 100, delta), rel=1e-4)


def test_more_messages_hide_more_and_two_inputs_are_randomized_response_for_up_to_a_billion() -> None:
    """On a grid of one step the bound is that of opposite answers, which another computation has without a grid."""
    crowds = (10**4, 10**6, 10**9)
    result = [scalar_epsilon(6.0, 1, 1e-6, honest, 0.0) for honest in crowds]
    assert result == sorted(result, reverse=True)
    for honest, epsilon in zip(crowds, result, strict=True):
        assert 1 <= epsilon / antipodal_epsilon(1e-6, 6.0, honest) < 1.002
        assert epsilon < clones_epsilon(1e-6, 6.0, honest)
