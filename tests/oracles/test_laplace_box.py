"""Tests ε at δ of Laplace noise on vectors: exact in a box, one coordinate as the worst whole move, close bounds."""

import itertools
import math
from functools import reduce

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as loss
from numpy.typing import NDArray

from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.accounting.composition import compose
from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.accounting.laws.laplace import RepeatedLaplace, continuous_box_epsilon, laplace_box_epsilon
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger
from distrust.common.dp.accounting.techniques.products import product_epsilon
from distrust.common.dp.calculator.promise import guaranteed
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import MechanismSpec, promise_of
from distrust.common.dp.mechanisms.families.laplace import LaplaceLike
from distrust.common.dp.noise.polya import DiscreteLaplace
from distrust.common.wire import Norm
from tests.oracles.test_repeated_releases import adaptive_delta
from tests.support import exact_laws as laws
from tests.support.planned import planned

Array = NDArray[np.float64]
NINE_DIGITS = 1e-9


def planned_mechanism(
    name: str, dimension: int, norm: Norm = "linf", clients: int = 1000, min_honest: int = 1000
) -> LaplaceLike:
    spec = MechanismSpec(name=name, epsilon=1.0)
    statistic = BoundedVector(dimension=dimension, norm=norm, bound=1.0)
    mechanism = planned(spec, clients, min_honest, statistic)
    assert isinstance(mechanism, LaplaceLike)
    return mechanism


def box_delta(scale: float, shift: int, dimension: int, epsilon: float) -> mpmath.mpf:
    """Return δ(ε) from the noise itself: losses of all x within 70 scales, and each combination of coordinates."""
    reach = math.ceil(70 * scale) + shift
    masses = laws.discrete_laplace(scale, reach)
    losses: dict[int, mpmath.mpf] = {}
    for x, mass in zip(range(-reach, reach + 1), masses, strict=True):
        loss = abs(x - shift) - abs(x)
        losses[loss] = losses.get(loss, mpmath.mpf(0)) + mass
    total, e = mpmath.mpf(0), mpmath.mpf(epsilon)
    for several in itertools.combinations_with_replacement(sorted(losses), dimension):
        ways = math.factorial(dimension) // math.prod(math.factorial(several.count(one)) for one in set(several))
        mass = reduce(lambda a, b: a * b, (losses[one] for one in several)) * ways
        total += mass * max(mpmath.mpf(0), 1 - mpmath.exp(e - sum(several) / mpmath.mpf(scale)))
    return total


@pytest.mark.parametrize(("scale", "shift", "dimension"), [(2.0, 1, 2), (7.5, 3, 3), (3.0, 4, 2), (0.4, 2, 4)])
@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.1])
def test_the_box_is_exact_to_nine_digits(scale: float, shift: int, dimension: int, delta: float) -> None:
    with mpmath.workdps(50):
        result = laplace_box_epsilon(scale, shift, dimension, delta)
        assert box_delta(scale, shift, dimension, result) <= delta
        assert box_delta(scale, shift, dimension, result * (1 - NINE_DIGITS)) > delta


@pytest.mark.parametrize("name", ["central-laplace-discrete", "local-laplace-discrete", "distributed-polya"])
def test_the_profile_of_a_box_has_it_and_says_that_it_is_exact(name: str) -> None:
    """Composed losses agree to nine digits here, and not to 3e-5 only, because no loss of the sum is near ε."""
    mechanism = planned_mechanism(name, 20)
    approximate = mechanism.privacy().profile(delta=1e-6).approximate
    assert approximate.how == "exact"
    assert approximate.epsilon is not None
    assert approximate.epsilon < 0.9
    composed = product_epsilon(DiscreteLaplace(mechanism.scale).pmf(), mechanism.precision, 20, 1e-6)
    with mpmath.workdps(50):
        for epsilon in (approximate.epsilon, composed):
            assert box_delta(mechanism.scale, mechanism.precision, 20, epsilon) <= 1e-6
            assert box_delta(mechanism.scale, mechanism.precision, 20, epsilon * (1 - NINE_DIGITS)) > 1e-6


def test_more_honest_clients_than_the_floor_hide_more_of_a_box_too() -> None:
    mechanism = planned_mechanism("distributed-polya", 20, clients=100, min_honest=80)
    few, many = (mechanism.privacy(n).profile(delta=1e-6).approximate for n in (80, 100))
    assert (few.how, many.how) == ("exact", "bound")
    assert (many.epsilon or math.inf) < 0.95 * (few.epsilon or 0)
    assert (mechanism.privacy(60).profile(delta=1e-6).approximate.epsilon or 0) > (few.epsilon or math.inf)


def losses(scale: float, shift: int) -> tuple[Array, Array]:
    """Return the masses of 0 … shift under the law and its shift, with the tails added to the ends."""
    beta, x = math.exp(-1 / scale), np.arange(1, shift)
    inner = (1 - beta) / (1 + beta) * beta**x
    law = np.concatenate(([1 / (1 + beta)], inner, [beta**shift / (1 + beta)]))
    return law, law[::-1]


def overlap(law: Array, other: Array, epsilon: float) -> float:
    return math.exp(-epsilon / 2) * float(np.minimum(law, math.exp(epsilon) * other).sum())


@pytest.mark.parametrize("scale", [0.3, 1.0, 9.0])
@pytest.mark.parametrize(("s", "t"), [(1, 1), (1, 4), (3, 3), (5, 2)])
def test_two_moves_overlap_as_the_formula_says_and_so_never_less_than_their_sum(scale: float, s: int, t: int) -> None:
    beta = math.exp(-1 / scale)
    (p, q), (a, b) = losses(scale, s), losses(scale, t)
    both, mirrored = np.convolve(p, a), np.convolve(q, b)
    one, other = losses(scale, s + t)
    for j in range(s + t + 1):
        epsilon, alone = (s + t - 2 * j) / scale, math.exp(-(s + t) / (2 * scale))
        gain = (1 - beta) / (1 + beta) * min(j, s, t, s + t - j)
        assert overlap(both, mirrored, epsilon) == pytest.approx(alone * (1 + gain), rel=1e-12)
        assert overlap(one, other, epsilon) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("scale", [0.5, 3.0, 20.0])
def test_no_split_of_a_whole_move_tells_more_than_the_move(scale: float) -> None:
    """Seven steps are split over up to three coordinates, and compared at 101 values of ε."""
    one, other = losses(scale, 7)
    splits = [split for n in (2, 3) for split in itertools.combinations_with_replacement(range(1, 7), n)]
    for split in (split for split in splits if sum(split) == 7):
        laws_of = [losses(scale, part) for part in split]
        law, shifted = (reduce(np.convolve, [pair[i] for pair in laws_of]) for i in (0, 1))
        for epsilon in np.linspace(-7, 7, 101) / scale:
            assert overlap(law, shifted, epsilon) >= overlap(one, other, epsilon) * (1 - 1e-13)


@pytest.mark.parametrize(("loss", "delta"), [(0.3, 1e-3), (1.5, 1e-6), (0.05, 0.02)])
def test_continuous_noise_in_a_box_is_bounded_by_the_grid_s_and_closely(loss: float, delta: float) -> None:
    """δ of two coordinates by quadrature over the first one's noise. δ of one is 1 - e^((ε - loss)/2), 0 or 1 - e^ε."""
    whole = mpmath.mpf(loss)

    def single(e: mpmath.mpf) -> mpmath.mpf:
        return 1 - mpmath.exp(min(mpmath.mpf(0), (e - whole) / 2, e))

    def both(e: mpmath.mpf) -> mpmath.mpf:
        kinks = sorted({mpmath.mpf(0), whole, *(x for x in ((2 * whole - e) / 2, -e / 2) if 0 < x < whole)})
        inside = mpmath.quad(lambda x: mpmath.exp(-x) / 2 * single(e - whole + 2 * x), kinks)
        return single(e - whole) / 2 + inside + mpmath.exp(-whole) / 2 * single(e + whole)

    result = continuous_box_epsilon(loss, 2, delta)
    with mpmath.workdps(30):
        assert both(mpmath.mpf(result)) <= delta
        assert both(mpmath.mpf(result) * (1 - mpmath.mpf("1e-5"))) > delta


@pytest.mark.parametrize(
    ("norm", "dimension", "delta", "apart"),
    [
        ("l1", 4, 1e-6, 1.001),
        ("l1", 20, 1e-6, 1.003),
        ("l1", 20, 0.01, 1.01),
        ("l2", 4, 1e-6, 1.001),
        ("l2", 20, 1e-6, 1.12),
    ],
)
def test_the_bounds_of_balls_are_near_the_best_whole_move(
    norm: Norm, dimension: int, delta: float, apart: float
) -> None:
    """The best move has k coordinates, each of ⌊g/k⌋ steps for ℓ₁ and of ⌊g/√k⌋ steps for ℓ₂, with the best k."""
    mechanism = planned_mechanism("central-laplace-discrete", dimension, norm)
    g, result = mechanism.precision, mechanism.privacy().profile(delta=delta).approximate
    moves = [(k, g // k if norm == "l1" else math.isqrt(g * g // k)) for k in range(1, dimension + 1)]
    best = max(laplace_box_epsilon(mechanism.scale, step, k, delta) for k, step in moves if step > 0)
    assert result.how == "bound"
    assert best <= (result.epsilon or 0) <= apart * best


def lattice_masses(scale: float, shift: int, count: int) -> dict[int, mpmath.mpf]:
    """Return the masses of the sum of `count` losses, in units of 1/scale, by convolving those of the noise itself."""
    reach = math.ceil(130 * scale) + shift
    one: dict[int, mpmath.mpf] = {}
    for x, mass in zip(range(-reach, reach + 1), laws.discrete_laplace(scale, reach), strict=True):
        moved = abs(x - shift) - abs(x)
        one[moved] = one.get(moved, mpmath.mpf(0)) + mass
    total = {0: mpmath.mpf(1)}
    for _ in range(count):
        after: dict[int, mpmath.mpf] = {}
        for (at, mass), (more, chance) in itertools.product(total.items(), one.items()):
            after[at + more] = after.get(at + more, mpmath.mpf(0)) + mass * chance
        total = after
    return total


def lattice_delta(masses: dict[int, mpmath.mpf], scale: float, epsilon: float) -> mpmath.mpf:
    """Return δ(ε) of losses with these masses."""
    e = mpmath.mpf(epsilon)
    return sum(mass * max(0, 1 - mpmath.exp(e - at / mpmath.mpf(scale))) for at, mass in masses.items())


def test_a_hundred_releases_have_the_epsilon_of_their_law_to_nine_digits() -> None:
    """Losses composed on a grid give 4.698150."""
    names = ("central-laplace-discrete", "distributed-polya")
    laws_of = [planned(MechanismSpec(name=name, epsilon=0.1), 1000).privacy().repeated for name in names]
    assert laws_of == [RepeatedLaplace(40.0, 4, 1)] * 2
    result = RepeatedLaplace(40.0, 4, 1).epsilon(100, 1e-6)
    assert result == pytest.approx(4.697277, abs=5e-7)
    with mpmath.workdps(50):
        mass = lattice_masses(40.0, 4, 100)
        assert lattice_delta(mass, 40.0, result) <= 1e-6
        assert lattice_delta(mass, 40.0, result * (1 - NINE_DIGITS)) > 1e-6


def test_the_longest_box_has_rounding_errors_within_its_share_of_delta() -> None:
    """4,096 losses of two steps: every factor's errors are multiplied the most often."""
    scale, n = 40.0, 4096
    result = laplace_box_epsilon(scale, 2, n, 1e-6)
    with mpmath.workdps(50):
        one = lattice_masses(scale, 2, 1)
        most, none, least = (one[at] for at in (2, 0, -2))
        powers = [most**n]  # of (most + none z + least z²)^n, by the recurrence of such powers
        for k in range(1, 2 * n + 1):
            before = (n - k + 1) * none * powers[k - 1] + (2 * n - k + 2) * least * (powers[k - 2] if k > 1 else 0)
            powers.append(before / (k * most))
        masses = {2 * (n - k): power for k, power in enumerate(powers)}
        assert sum(powers) == pytest.approx(1, abs=1e-30)
        assert lattice_delta(masses, scale, result) <= 1e-6
        assert lattice_delta(masses, scale, result * (1 - NINE_DIGITS)) > 1e-6


@pytest.mark.parametrize(("scale", "shift", "times"), [(2.0, 2, 2), (0.7, 2, 3), (3.0, 1, 3)])
def test_several_releases_cost_what_the_worst_adaptive_client_reaches(scale: float, shift: int, times: int) -> None:
    """The client chooses every move, up or down, by the earlier releases. Noise beyond 40 scales has mass 10⁻¹⁷."""
    reach = math.ceil(40 * scale)
    places = np.arange(-reach, reach + 1)
    masses = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(places) / scale)
    moves = [move for move in range(-shift, shift + 1) if move]
    shifted = [math.tanh(1 / (2 * scale)) * np.exp(-np.abs(places - move) / scale) for move in moves]
    pairs = [(masses, law) for law in shifted]
    result = RepeatedLaplace(scale, shift, 1).epsilon(times, 0.01)
    assert adaptive_delta(pairs, result, times) <= 0.01
    assert adaptive_delta(pairs, result * (1 - 1e-6), times) > 0.01


@pytest.mark.parametrize(("loss_of_one", "times"), [(0.1, 100), (1.0, 12), (0.5, 2)])
def test_releases_in_reals_cost_a_little_more_than_the_library_s_losses_rounded_downwards(
    loss_of_one: float, times: int
) -> None:
    grid = 1e-4
    one = loss.from_laplace_mechanism(
        1.0, sensitivity=loss_of_one, value_discretization_interval=grid, pessimistic_estimate=False
    )
    theirs = one.self_compose(times).get_epsilon_for_delta(1e-6)
    result = RepeatedLaplace(1 / loss_of_one, 1, 1, continuous=True).epsilon(times, 1e-6)
    assert theirs <= result <= 1.002 * theirs + times * grid


@pytest.mark.parametrize(
    ("name", "survivors"),
    [
        ("local-laplace-discrete", 100),
        ("central-laplace-discrete", 100),
        ("distributed-polya", 80),
        ("distributed-polya", 100),
    ],
)
def test_the_ledger_and_the_calculator_charge_several_releases_by_their_law(name: str, survivors: int) -> None:
    mechanism = planned_mechanism(name, 2, clients=100, min_honest=80)
    law = mechanism.privacy(survivors).repeated
    assert law == mechanism.privacy().repeated
    assert law is not None
    exact = laplace_box_epsilon(mechanism.scale, mechanism.precision, 10, 0.01)
    once = promise_of(mechanism, composable=True)
    paid = Entry("round", 100, 5, once, laws=(law,))
    ledger = PrivacyLedger(5, BudgetSpec(epsilon=exact, delta=0.01)).spend(paid)
    assert (ledger.total.kind, ledger.total.epsilon) == ("approximate", exact)
    assert exact < 0.97 * (compose(((once, 5),), 0.01).epsilon or 0.0)
    query = PrivacyQuery(clients=100, epsilon=1.0, dimension=2, survivors=survivors, contributions=5, target_delta=0.01)
    assert guaranteed(mechanism, query).epsilon == exact


def test_no_law_of_several_releases_is_known_in_a_ball_of_less_noise_and_of_too_many_losses() -> None:
    assert planned_mechanism("local-laplace-discrete", 4, "l2").privacy().repeated is None
    assert planned_mechanism("distributed-polya", 2, clients=100, min_honest=80).privacy(79).repeated is None
    law = RepeatedLaplace(100.0, 10, 1)
    assert math.isfinite(law.epsilon(819, 1e-6))
    assert math.isinf(law.epsilon(820, 1e-6))
    assert law.joined(law) == law
    assert law.joined(RepeatedLaplace(101.0, 10, 1)) is None
