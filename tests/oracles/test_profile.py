"""Tests the profile of every mechanism against 50-digit arithmetic: equal to nine digits, and never below the truth."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.profile import PROFILE_ORDERS, Profile
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism, MechanismSpec
from tests.support import exact_laws as laws
from tests.support.planned import planned

pytestmark = pytest.mark.slow

NINE_DIGITS = 1e-9
DELTA = 1e-6


@pytest.fixture(autouse=True)
def _fifty_digits():  # noqa: ANN202
    with mpmath.workdps(50):
        yield


def planned_mechanism(
    name: str, clients: int = 40, min_honest: int | None = None, dimension: int = 1, **fields: Any
) -> Mechanism:
    spec = MechanismSpec(name=name, **fields)
    least = min_honest or clients
    statistic = Reward() if dimension == 1 else BoundedVector(dimension=dimension, norm="linf", bound=0.5)
    return planned(spec, clients, least, statistic)


def agrees(found: float | None, truth: mpmath.mpf) -> None:
    """Assert that a number is not below the truth, and equal to nine digits."""
    assert found is not None
    assert truth * (1 - mpmath.mpf("1e-15")) <= found <= truth * (1 + NINE_DIGITS)


def check_renyi(profile: Profile, truth: Callable[[float], mpmath.mpf]) -> None:
    assert profile.rdp_how == "exact"
    assert [order for order, _ in profile.rdp] == list(PROFILE_ORDERS)
    for order, result in profile.rdp:
        agrees(result, truth(order))


def check_delta(profile: Profile, delta_at: Callable[[float], mpmath.mpf]) -> None:
    """Assert that ε is enough at δ, and that an ε smaller by a billionth is not."""
    epsilon = profile.approximate.epsilon
    assert epsilon is not None
    assert profile.approximate.how == "exact"
    assert delta_at(epsilon) <= profile.delta * (1 + mpmath.mpf("1e-11"))
    assert delta_at(epsilon * (1 - NINE_DIGITS)) > profile.delta


def check_law(profile: Profile, masses: laws.Law, shift: int) -> None:
    check_renyi(profile, lambda order: laws.renyi_of(masses, shift, order))
    check_delta(profile, lambda epsilon: laws.delta_of(masses, shift, epsilon))


@pytest.mark.parametrize(
    ("name", "epsilon", "precision"),
    [
        *(("distributed-polya", *words) for words in ((0.05, 1), (0.5, 3), (8.0, 20))),
        ("central-laplace-discrete", 0.5, 3),
        ("local-laplace-discrete", 8.0, 20),
    ],
)
def test_discrete_laplace(name: str, epsilon: float, precision: int) -> None:
    mechanism = planned_mechanism(name, epsilon=epsilon, precision=precision)
    profile = mechanism.privacy().profile()
    assert profile.pure.how == "exact"
    assert profile.pure.epsilon == pytest.approx(epsilon, rel=1e-12)
    check_law(profile, laws.discrete_laplace(mechanism.scale, math.ceil(70 * mechanism.scale) + precision), precision)


@pytest.mark.parametrize(("honest", "epsilon", "precision"), [(30, 1.0, 3), (20, 0.3, 1), (1, 2.0, 4), (39, 3.0, 6)])
def test_short_polya_cohorts(honest: int, epsilon: float, precision: int) -> None:
    mechanism = planned_mechanism("distributed-polya", clients=40, epsilon=epsilon, precision=precision)
    profile = mechanism.privacy(honest).profile()
    masses = laws.polya_difference(mpmath.mpf(honest) / 40, mechanism.scale, math.ceil(60 * mechanism.scale))
    middle = len(masses) // 2
    agrees(profile.pure.epsilon, mpmath.log(masses[middle] / masses[middle + precision]))
    assert mechanism.privacy(honest + 1, colluders=1).profile() == profile
    check_law(profile, masses, precision)


def test_more_survivors_than_the_floor_hide_more_in_every_figure_but_the_pure_one() -> None:
    mechanism = planned_mechanism("distributed-polya", clients=60, min_honest=40, epsilon=1.0, precision=4)
    few, many = mechanism.privacy(40).profile(), mechanism.privacy(60).profile()
    masses = laws.polya_difference(mpmath.mpf(60) / 40, mechanism.scale, math.ceil(70 * mechanism.scale))
    assert many.pure == few.pure
    check_delta(many, lambda epsilon: laws.delta_of(masses, 4, epsilon))
    for (order, more), (_, less) in zip(few.known, many.known, strict=True):
        assert laws.renyi_of(masses, 4, order) <= less <= more


@pytest.mark.parametrize("shape", [0.025, 0.3, 0.75, 0.975])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
@pytest.mark.few(5)
def test_the_largest_shift_is_the_worst_for_less_than_one_term_too(shape: float, epsilon: float) -> None:
    """Such noise is not log-concave, so this rests on the proof in `discrete_laplace_profile`."""
    masses = laws.polya_difference(mpmath.mpf(shape), 3.0, 150)
    by_shift = [laws.delta_of(masses, shift, epsilon) for shift in range(1, 9)]
    assert by_shift == sorted(by_shift)
    for order in (1.25, 8.0):
        renyi = [laws.renyi_of(masses, shift, order) for shift in range(1, 9)]
        assert renyi == sorted(renyi)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-3), (1.0, 1e-6), (8.0, 1e-9)])
def test_continuous_laplace(epsilon: float, delta: float) -> None:
    """The oracle integrates between the two kinks. Outside of them the loss is ± ε."""
    profile = planned_mechanism("central-laplace", epsilon=epsilon, noise="continuous").privacy().profile(delta=delta)
    e = mpmath.mpf(epsilon)

    def renyi(order: float) -> mpmath.mpf:
        a = mpmath.mpf(order)
        between = mpmath.quad(lambda x: mpmath.exp(-a * x - (1 - a) * (e - x)) / 2, [0, e])
        return mpmath.log((mpmath.exp((a - 1) * e) + mpmath.exp(-a * e)) / 2 + between) / (a - 1)

    def delta_at(spent: float) -> mpmath.mpf:
        turn = (e - mpmath.mpf(spent)) / 2
        inside = mpmath.quad(lambda x: (mpmath.exp(-x) - mpmath.exp(mpmath.mpf(spent) - e + x)) / 2, [0, turn])
        return (1 - mpmath.exp(mpmath.mpf(spent) - e)) / 2 + inside

    check_renyi(profile, renyi)
    check_delta(profile, delta_at)
    assert profile.pure.epsilon == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-8), (1.0, 1e-6), (5.0, 0.01)])
def test_continuous_gaussian(epsilon: float, delta: float) -> None:
    mechanism = planned_mechanism("central-gaussian", epsilon=epsilon, delta=delta, noise="continuous")
    profile = mechanism.privacy().profile(delta=delta)
    ratio = mechanism.precision / mpmath.sqrt(mechanism.variance)

    def delta_at(spent: float) -> mpmath.mpf:
        e = mpmath.mpf(spent)
        return mpmath.ncdf(ratio / 2 - e / ratio) - mpmath.exp(e) * mpmath.ncdf(-ratio / 2 - e / ratio)

    check_renyi(profile, lambda order: order * ratio**2 / 2)
    check_delta(profile, delta_at)
    assert profile.pure == profile.pure.model_copy(update={"epsilon": None, "how": "exact"})


def test_continuous_noise_that_is_rounded_afterwards_has_bounds_and_says_that_it_is_unsafe() -> None:
    profile = planned_mechanism("local-laplace", epsilon=1.0, noise="continuous").privacy().profile()
    assert {profile.pure.how, profile.approximate.how, profile.rdp_how} == {"bound"}
    assert profile.notes[0].startswith("UNSAFE")


@pytest.mark.parametrize(("epsilon", "precision"), [(0.5, 2), (4.0, 1), (9.0, 1), (30.0, 3)])
def test_one_discrete_gaussian(epsilon: float, precision: int) -> None:
    """At variances of a few hundredths fractional orders lie below the continuous law."""
    mechanism = planned_mechanism("local-gaussian", epsilon=epsilon, delta=DELTA, precision=precision)
    reach = 127 * precision + math.ceil(16 * math.sqrt(mechanism.variance)) + 20
    check_law(mechanism.privacy().profile(delta=DELTA), laws.discrete_gaussian(mechanism.variance, reach), precision)


@pytest.mark.parametrize(("honest", "epsilon", "precision"), [(8, 1.0, 1), (6, 3.0, 2)])
def test_sums_of_small_discrete_gaussian_shares(honest: int, epsilon: float, precision: int) -> None:
    mechanism = planned_mechanism("distributed-discrete-gaussian", 8, epsilon=epsilon, delta=DELTA, precision=precision)
    reach = math.ceil((127 * precision + 60) / honest) + 30
    masses = laws.convolved(laws.discrete_gaussian(mechanism.share, reach), honest)
    check_law(mechanism.privacy(honest).profile(), masses, precision)


@pytest.mark.parametrize(("honest", "epsilon", "precision"), [(40, 1.0, 6), (25, 0.2, 1), (40, 4.0, 3)])
def test_skellam(honest: int, epsilon: float, precision: int) -> None:
    mechanism = planned_mechanism("distributed-skellam", epsilon=epsilon, precision=precision)
    variance = mechanism.variance * honest / 40
    reach = 140 * precision + math.ceil(20 * math.sqrt(variance)) + 80
    check_law(mechanism.privacy(honest).profile(), laws.skellam(variance, reach), precision)


def test_shifts_that_pass_the_end_of_the_usual_support_are_exact_too() -> None:
    mechanism = planned_mechanism("distributed-skellam", epsilon=12.0, precision=3)
    masses = laws.skellam(mechanism.variance, 80)
    check_delta(mechanism.privacy().profile(), lambda epsilon: laws.delta_of(masses, 3, epsilon))


def test_noise_beyond_what_the_stored_law_can_show_is_not_called_exact() -> None:
    one = planned_mechanism("local-gaussian", epsilon=50.0, delta=0.4, precision=40)
    assert one.model_copy(update={"variance": 1e-3}).privacy().profile(delta=1e-6).approximate.how == "bound"


@pytest.mark.parametrize("precision", [1, 5])
def test_binomial_bits_have_an_epsilon_at_delta_and_nothing_else(precision: int) -> None:
    mechanism = planned_mechanism("shuffled-binomial", epsilon=1.0, delta=DELTA, precision=precision)
    profile = mechanism.privacy(35, 5).profile()
    masses = laws.binomial(30 * mechanism.coins, mechanism.chance)
    check_delta(profile, lambda epsilon: laws.delta_of(masses, precision, epsilon))
    assert (profile.pure.epsilon, profile.pure.how) == (None, "exact")
    assert profile.known == ()
    assert "one neighbour only" in profile.notes[0]


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 2.0, 12.0])
def test_a_point_on_the_sphere_is_randomized_response(epsilon: float) -> None:
    profile = planned_mechanism("local-sphere", epsilon=epsilon).privacy().profile(delta=1e-4)
    odds = mpmath.exp(mpmath.mpf(epsilon))
    p, q = odds / (1 + odds), 1 / (1 + odds)

    def renyi(order: float) -> mpmath.mpf:
        a = mpmath.mpf(order)
        return mpmath.log(p**a * q ** (1 - a) + q**a * p ** (1 - a)) / (a - 1)

    check_renyi(profile, renyi)
    check_delta(profile, lambda spent: max(mpmath.mpf(0), p - mpmath.exp(mpmath.mpf(spent)) * q))


def test_a_tree_of_two_levels_is_two_draws_moved_together() -> None:
    mechanism = planned_mechanism("tree", epsilon=2.0, delta=1e-4, precision=1, batches=3)
    profile = mechanism.privacy().profile(delta=1e-4)
    one = laws.discrete_gaussian(mechanism.variance, 40)
    check_renyi(profile, lambda order: 2 * laws.renyi_of(laws.discrete_gaussian(mechanism.variance, 200), 1, order))

    def delta_at(spent: float) -> mpmath.mpf:
        zero, factor = [mpmath.mpf(0)], mpmath.exp(mpmath.mpf(spent))
        pairs = list(zip(one + zero, zero + one, strict=True))
        return mpmath.fsum(max(a * b - factor * c * d, 0) for a, c in pairs for b, d in pairs)

    check_delta(profile, delta_at)


@pytest.mark.parametrize("name", ["central-laplace-discrete", "distributed-skellam", "distributed-discrete-gaussian"])
def test_a_box_of_two_coordinates_is_two_draws_moved_together(name: str) -> None:
    mechanism = planned_mechanism(name, 3, dimension=2, epsilon=2.0, precision=2)
    laws_of = {
        "central-laplace-discrete": lambda: laws.discrete_laplace(mechanism.scale, 200),
        "distributed-skellam": lambda: laws.skellam(mechanism.variance, 400),
        "distributed-discrete-gaussian": lambda: laws.convolved(laws.discrete_gaussian(mechanism.share, 160), 3),
    }
    masses = laws_of[name]()
    check_renyi(mechanism.privacy().profile(), lambda order: 2 * laws.renyi_of(masses, 2, order))
    on_grid = name == "central-laplace-discrete"  # its losses are on a grid: test_laplace_box.py
    assert mechanism.privacy().profile().approximate.how == ("exact" if on_grid else "bound")


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dimension", [1, 3])
@pytest.mark.few(10)
def test_every_profile_is_in_itself_consistent(name: str, dimension: int) -> None:
    """Rényi ε grows with the order up to the pure ε. A larger δ has no larger ε. No honest client, no finite ε."""
    fields: dict[str, Any] = {} if name == "identity" else {"epsilon": 1.0}
    fields |= {"delta": 1e-5} if MECHANISMS[name].takes_delta == "needed" else {}
    fields |= {"batches": 4} if MECHANISMS[name].takes_batches else {}
    mechanism = planned_mechanism(name, 60, 50, dimension=dimension, **fields)
    profile, looser = mechanism.privacy().profile(delta=1e-5), mechanism.privacy().profile(delta=1e-3)
    by_order = [epsilon for _, epsilon in profile.known]
    assert by_order == sorted(by_order)
    if profile.pure.epsilon is not None:
        assert by_order[-1] <= profile.pure.epsilon
        assert profile.approximate.epsilon <= profile.pure.epsilon
    if name == "identity":
        assert profile.approximate.epsilon is None
        return
    assert looser.approximate.epsilon <= profile.approximate.epsilon
    if mechanism.privacy().promise.model == "distributed" or name in {"shuffled-binomial", "relaxed-secagg-shuffle"}:
        no_honest = mechanism.privacy(55, 55).profile()
        assert no_honest.pure.epsilon is no_honest.approximate.epsilon is None
        assert no_honest.known == ()
