"""Tests the ε of several releases, of bits or with Gaussian noise, against the worst client that adapts to them."""

import itertools
import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as loss
from numpy.typing import NDArray
from scipy.stats import binom

from distrust.common.bandit.statistics import Reward
from distrust.common.dp.accounting.composition import compose
from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.accounting.laws.gaussian_sums import RepeatedGaussian, repeated_gaussian
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms import Mechanism, plan, promise_of
from distrust.common.dp.mechanisms.families.base import MechanismSpec
from distrust.common.dp.mechanisms.families.gaussian import GaussianLike
from distrust.common.dp.mechanisms.shuffled.binomial import binomial_epsilon
from distrust.common.errors import BudgetExceeded
from distrust.common.wire import Norm
from distrust.lab.play import in_process
from tests.support.planned import planned
from tests.support.printed import SUM, entry, planned_mechanism

Laws = list[tuple[NDArray[np.float64], NDArray[np.float64]]]


def pairs(trials: int, chance: float, grid: Grid) -> Laws:
    """Return P and Q on the same outcomes, for every whole move inside the grid's ball."""
    g, places = grid.precision, np.arange(-grid.precision, trials + grid.precision + 1)
    own = binom.pmf(places, trials, chance)
    laws: Laws = []
    for move in itertools.product(range(-g, g + 1), repeat=grid.dimension):
        length = {"l1": sum(map(abs, move)), "l2": math.hypot(*move), "linf": max(map(abs, move))}[grid.norm]
        if 0 < length <= g:
            p, q = np.ones(1), np.ones(1)
            for step in move:
                p = np.outer(p, own).ravel()
                q = np.outer(q, binom.pmf(places - step, trials, chance)).ravel()
            laws.append((p, q))
    return laws


def adaptive_delta(laws: Laws, epsilon: float, times: int) -> float:
    """Return the largest Σ (P - e^ε Q)₊ over clients that choose each move by the earlier releases."""
    return float(_worst(laws, np.array([math.exp(epsilon)]), times)[0])


def _worst(laws: Laws, ratios: NDArray[np.float64], times: int) -> NDArray[np.float64]:
    """Return max Σ (P - r Q)₊ for each r. After an outcome x it is P(x) times that of r Q(x)/P(x)."""
    best = np.zeros(ratios.size)
    for p, q in laws:
        if times == 1:
            # The outcomes with P > r Q are the first ones in the order of P/Q: their sums are looked up.
            likelier = np.divide(p, q, out=np.full(p.size, np.inf), where=q > 0)
            order = np.argsort(-likelier)
            counts = np.searchsorted(-likelier[order], -ratios)
            of_p, of_q = (np.concatenate(([0.0], np.cumsum(law[order]))) for law in (p, q))
            best = np.maximum(best, of_p[counts] - ratios * of_q[counts])
            continue
        met = p > 0
        after = ratios[:, np.newaxis] * (q[met] / p[met])
        rest = _worst(laws, after.ravel(), times - 1).reshape(after.shape)
        best = np.maximum(best, rest @ p[met])
    return best


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize(("chance", "slack"), [(0.5, 1.005), (0.3, 1.05)])
@pytest.mark.few(2)
def test_several_numbers_of_bits_cost_no_less_than_the_worst_adaptive_client_and_hardly_more(
    times: int, chance: float, slack: float
) -> None:
    grid, delta = Grid(2, 1, "linf"), 0.01
    result = binomial_epsilon(40, chance, grid, delta, times)
    laws = pairs(40, chance, grid)
    assert adaptive_delta(laws, result, times) <= delta
    assert adaptive_delta(laws, result / slack, times) > delta


@pytest.mark.parametrize("chance", [0.5, 0.3])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_two_vectors_of_bits_cost_no_less_than_the_worst_adaptive_client(norm: Norm, chance: float) -> None:
    grid, delta = Grid(1 if norm == "linf" else 2, 2, norm), 0.02
    result = binomial_epsilon(24, chance, grid, delta, 2)
    assert math.isfinite(result)
    laws = pairs(24, chance, grid)
    assert adaptive_delta(laws, result, 2) <= delta
    assert adaptive_delta(laws, result / 2, 2) > delta


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_several_vectors_of_bits_cost_less_than_their_sum_and_more_than_fewer(norm: Norm, times: int) -> None:
    grid = Grid(30, 5, norm)
    once, fewer, result = (binomial_epsilon(20_000, 0.5, grid, 0.01, count) for count in (1, times - 1, times))
    assert fewer < result < 0.87 * times * once


def gaussian_pairs(variance: float, grid: Grid, moves: Sequence[NDArray[np.float64]]) -> Laws:
    """Return P and Q of N_Z(0, variance) around 0 and around a real move, each rounded at random, both ways."""
    last = math.ceil(9 * math.sqrt(variance)) + grid.precision
    places = np.arange(-last, last + 1)

    def around(center: float) -> NDArray[np.float64]:
        share, wholes = center - math.floor(center), (math.floor(center), math.ceil(center))
        below, above = (np.exp(-((places - whole) ** 2) / (2 * variance)) for whole in wholes)
        return (1 - share) * below / below.sum() + share * above / above.sum()

    laws: Laws = []
    for move in moves:
        assert np.linalg.norm(move) <= grid.precision + 1e-12
        p, q = (reduce(np.outer, [around(one) for one in center]).ravel() for center in (0 * move, move))
        laws += [(p, q), (q, p)]
    return laws


@pytest.mark.parametrize(("variance", "times", "slack"), [(0.6, 2, 1.3), (6.0, 2, 1.01), (6.0, 3, 1.02)])
def test_several_numbers_with_gaussian_noise_cost_no_less_than_the_worst_adaptive_client_and_hardly_more(
    variance: float, times: int, slack: float
) -> None:
    grid, delta = Grid(2, 1, "linf"), 0.01
    result = repeated_gaussian(variance, grid).epsilon(times, delta)
    laws = gaussian_pairs(variance, grid, [np.array([move]) for move in (0.5, 1.0, 1.7, 2.0)])
    assert adaptive_delta(laws, result, times) <= delta
    assert adaptive_delta(laws, result / slack, times) > delta


@pytest.mark.parametrize(("norm", "variance"), [("l2", 8.0), ("l1", 8.0), ("l2", 0.8)])
def test_two_vectors_with_discrete_gaussian_noise_cost_no_less_than_the_worst_adaptive_client(
    norm: Norm, variance: float
) -> None:
    """Moves on the grid, and moves that are rounded at random and may get longer."""
    grid, delta = Grid(2, 2, norm), 0.02
    ends = [(2.0, 0.0), (1.0, 1.0), (0.5, 1.5), (0.3, 0.3), (1.4, 0.6)]
    longer = [(math.sqrt(2), math.sqrt(2)), (1.1, 1.6), (1.0, math.sqrt(3))] if norm == "l2" else []
    result = repeated_gaussian(variance, grid).epsilon(2, delta)
    laws = gaussian_pairs(variance, grid, [np.array(move) for move in ends + longer])
    assert adaptive_delta(laws, result, 2) <= delta
    assert adaptive_delta(laws, result / 3, 2) > delta


@pytest.mark.parametrize("times", [2, 7])
@pytest.mark.parametrize("move", [(1.5, 2.5, 0.5), (0.5, 0.5, 2.9), (math.sqrt(3),) * 3])
def test_rounded_moves_are_longer_than_their_bound_with_the_stated_probability_at_most(
    move: tuple[float, ...], times: int
) -> None:
    """The squared lengths of several independent roundings, by their exact law."""
    grid, one = Grid(3, 3, "l2"), np.zeros(Grid(3, 3, "l2").squared_l2 + 1)
    assert math.hypot(*move) <= grid.precision + 1e-12
    for ups in itertools.product((0, 1), repeat=3):
        weights = [(1 - d % 1, d % 1)[up] for up, d in zip(ups, move, strict=True)]
        one[sum((math.floor(d) + up) ** 2 for up, d in zip(ups, move, strict=True))] += math.prod(weights)
    total = reduce(np.convolve, [one] * times)
    law = repeated_gaussian(1.0, grid, continuous=True)
    for chance in (0.3, 0.01, 1e-4):
        bound = law.squared_ratio(times, chance, 0.0)
        assert total[math.floor(bound) + 1 :].sum() <= chance
    assert law.squared_ratio(7, 0.01, 0.0) < law.squared_ratio(7, 0, 0.0) == 7 * grid.squared_l2


def test_several_discrete_gaussian_numbers_cost_what_the_library_s_composed_losses_do() -> None:
    """Its losses are rounded upwards to a grid of 10⁻⁴."""
    for variance, times, delta in ((30.0, 12, 1e-6), (400.0, 20, 0.1)):
        one = loss.from_discrete_gaussian_mechanism(math.sqrt(variance), sensitivity=3)
        theirs = one.self_compose(times).get_epsilon_for_delta(delta)
        result = repeated_gaussian(variance, Grid(3, 1, "linf")).epsilon(times, delta)
        assert theirs - times * 1e-4 <= result <= 1.003 * theirs


@pytest.mark.parametrize("times", [2, 20, 1000])
def test_several_gaussian_vectors_cost_one_release_that_moves_by_the_root_of_their_number(times: int) -> None:
    """Noise in reals costs that, to six digits; noise on a fine grid at most 1 % more."""
    reals = repeated_gaussian(144 * 300.0**2, Grid(300, 20, "l2", rounded=False))
    ideal = gaussian_epsilon(math.sqrt(times) / 12, 0.01)
    assert ideal <= reals.epsilon(times, 0.01) <= ideal * (1 + 1e-6)
    on_grid = repeated_gaussian(144 * 300.0**2, Grid(300, 20, "l2")).epsilon(times, 0.01)
    assert ideal < on_grid < 1.01 * ideal


def test_twenty_contextual_vectors_with_sigma_12_cost_what_the_analytic_gaussian_mechanism_does() -> None:
    """0.753 at δ = 0.1, and 0.756 on a grid of 400 steps."""
    mechanism = planned_mechanism("local-gaussian", 0.2955599, 20, "exact", delta=0.004, precision=400)
    assert entry(mechanism) == pytest.approx(12, rel=1e-3)
    ideal = gaussian_epsilon(SUM.sensitivity * math.sqrt(20) / 12, 0.1)
    total = PrivacyLedger(20, BudgetSpec(epsilon=2.0, delta=0.1), (cost(mechanism, 20),)).total
    assert (ideal, total.epsilon) == (pytest.approx(0.753, abs=5e-4), pytest.approx(0.756, abs=5e-4))


@pytest.mark.parametrize("name", ["local-gaussian", "central-gaussian", "distributed-discrete-gaussian"])
def test_the_ledger_charges_several_gaussian_releases_as_one_and_below_the_sum_of_their_renyi_curves(name: str) -> None:
    for statistic in (Reward(), SUM):
        mechanism = planned(MechanismSpec(name=name, epsilon=0.5, delta=1e-3), 200, statistic=statistic)
        assert isinstance(mechanism, GaussianLike)
        paid = cost(mechanism)
        ideal = gaussian_epsilon(2 * math.sqrt(mechanism.grid.unrounded / mechanism.variance), 0.01)
        curves = compose(((paid.guarantee, 4),), 0.01).epsilon
        budget = BudgetSpec(epsilon=0.9 * (curves or 0.0), delta=0.01)
        spent = PrivacyLedger(4, budget).spend(paid).total
        assert (spent.kind, spent.delta, spent.rdp) == ("approximate", 0.01, ())
        assert ideal * (1 - 1e-3) <= (spent.epsilon or 0.0) <= 0.9 * (curves or 0.0)


def test_releases_with_different_gaussian_noise_cost_no_less_than_as_many_of_the_worst_and_hardly_more() -> None:
    """The worst adaptive client may also choose which noise comes next: two numbers, two grids."""
    grids, variances = (Grid(3, 1, "linf"), Grid(2, 1, "linf")), (130.0, 50.0)
    draws = [repeated_gaussian(variance, grid) for variance, grid in zip(variances, grids, strict=True)]
    both = draws[0].joined(draws[1])
    assert isinstance(both, RepeatedGaussian)
    assert both == draws[1].joined(draws[0]) == both.joined(draws[0])
    laws = [gaussian_pairs(*one, [np.array([1.0 * one[1].precision])]) for one in zip(variances, grids, strict=True)]
    result = both.epsilon(2, 0.001)
    assert max(draw.epsilon(2, 0.001) for draw in draws) <= result
    assert adaptive_delta(laws[0] + laws[1], result, 2) <= 0.001
    assert adaptive_delta(laws[0] + laws[1], result / 1.05, 2) > 0.001
    assert both.joined(bits(1000).privacy().repeated) is None


def test_an_elimination_that_its_first_round_s_budget_admits_plays_to_its_end() -> None:
    """Its batches grow, so that rounds differ in grid and noise. Four Rényi curves add up to ε = 0.95."""
    words = 'policy = {name = "successive-elimination"}\nreturning = {contributions = 4}\n'
    world = 'run = "run"\nhorizon = 20000\nenvironment = {name = "gaussian-easy", seed = 1}\n'
    noise = 'mechanism = {name = "distributed-discrete-gaussian", epsilon = 0.5, delta = 1e-3}\n'
    result = in_process.run(f"{world}{words}{noise}budget = {{epsilon = 0.77, delta = 0.01}}\n")
    assert len(result.rounds) == 10
    assert 0.76 < (result.guarantee.epsilon or 0.0) <= 0.77


def test_shares_too_small_to_add_up_to_gaussian_noise_are_charged_by_their_renyi_curve() -> None:
    spec = MechanismSpec(name="distributed-discrete-gaussian", epsilon=1.0, delta=1e-3, precision=3)
    assert planned(spec, 1000).privacy().repeated is None


def bits(clients: int) -> Mechanism:
    spec = MechanismSpec(name="shuffled-binomial", epsilon=0.5, delta=1e-3)
    sizes = {"clients": clients, "min_survivors": clients, "min_honest": clients}
    return plan(spec, **sizes, overflow_probability=1e-9, statistic=Reward())


def cost(mechanism: Mechanism, cohorts: int = 4) -> Entry:
    law = mechanism.privacy().repeated
    assert law is not None
    return Entry("round", 10, cohorts, promise_of(mechanism, composable=True), laws=(law,))


def test_the_ledger_charges_a_client_that_returns_by_the_law_of_the_bits() -> None:
    entry = cost(bits(1000))
    spent = PrivacyLedger(3, None, (entry, entry)).total
    generic = compose(((entry.guarantee, 3),))
    law = entry.laws[0]
    assert (spent.kind, spent.delta) == ("approximate", generic.delta)
    assert spent.epsilon == law.epsilon(3, spent.delta)
    assert generic.epsilon is not None
    assert 0.5 < spent.epsilon < 0.8 * generic.epsilon


def test_rounds_with_different_bits_are_charged_by_their_guarantees() -> None:
    first, second = cost(bits(1000)), cost(bits(3000))
    assert first.laws != second.laws
    for others in (second, Entry("round", 10, 4, second.guarantee)):
        spent = PrivacyLedger(3, None, (first, others)).total
        assert spent.epsilon == pytest.approx(compose(((first.guarantee, 3),)).epsilon, rel=1e-6)


def test_the_last_bits_of_epsilon_do_not_add_a_step_to_what_is_composed() -> None:
    """ε is a whole number of steps of the grid on which losses are rounded up. A step is a thousandth of it."""
    guarantee = cost(bits(1000)).guarantee
    assert guarantee.epsilon is not None
    found = []
    for ulps in range(-8, 9):
        near = guarantee.epsilon * (1 + ulps * 2.0**-53)
        for count in (2, 3, 4, 9):
            one = guarantee.model_copy(update={"epsilon": near})
            found.append((count, compose(((one, count),)).epsilon))
    for count in (2, 3, 4, 9):
        same = [epsilon for number, epsilon in found if number == count]
        assert same == pytest.approx([same[0]] * len(same), rel=1e-12)


def test_a_budget_admits_contributions_that_the_law_of_the_bits_pays_for_and_no_more() -> None:
    entry = cost(bits(1000))
    epsilon = entry.laws[0].epsilon(3, 1e-3)
    ledger = PrivacyLedger(3, BudgetSpec(epsilon=epsilon, delta=1e-3)).spend(entry)
    assert (ledger.total.epsilon, ledger.total.delta) == (epsilon, 1e-3)
    with pytest.raises(BudgetExceeded):
        PrivacyLedger(3, BudgetSpec(epsilon=0.999 * epsilon, delta=1e-3)).spend(entry)
    with pytest.raises(BudgetExceeded):
        PrivacyLedger(4, BudgetSpec(epsilon=epsilon, delta=1e-3)).spend(entry)


@pytest.mark.parametrize("times", [1, 10, 100])
def test_roundings_add_up_to_more_than_is_said_with_less_than_the_chance(times: int) -> None:
    """Four coordinates move by half a step each: each is rounded to a whole step or to none with a fair coin."""
    for chance in (0.1, 1e-6, 1e-12):
        assert binom.sf(Grid(1, 4, "l2").at_most(chance, times), 4 * times, 0.5) <= chance
        assert Grid(1, 4, "linf").at_most(chance, times) == 4 * times
    assert Grid(1, 4, "l2").at_most(1e-6, 100) < 320


@pytest.mark.parametrize("grid", [Grid(3, 3, "linf"), Grid(4, 7, "l2", rounded=False)])
def test_moves_that_are_not_rounded_have_bounds_at_rates_whose_square_is_no_double(grid: Grid) -> None:
    assert grid.log_moment(1e160) == 1e160 * grid.squared_l2
    assert repeated_gaussian(1e-200, grid, continuous=True).epsilon(3, 1e-6) == math.inf
