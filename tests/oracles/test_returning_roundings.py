"""Tests what clients of several batches pay for the rounding of their vectors, against clients that adapt to it."""

import itertools
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_ndtr
from scipy.stats import binom

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.dp.accounting.factorization import factorization
from distrust.common.dp.accounting.returning import Stretched, Visits, Weights, returning_epsilon
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, steepest_slope
from distrust.common.dp.accounting.techniques.gaussian_vectors import LATTICE, rounded_epsilon
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms.central.prefix_factorization import PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Tree

D = 20
GRID = Grid(24, D, "l2")
"""Steps of the grid that is planned for a tree over 141 batches, in a ball of 20 coordinates (5.37 in each)."""

EQUAL = (GRID.precision / math.sqrt(D), 4.5, 5.0, 0.5, -4.5, -5.0)
"""Vectors of D equal coordinates: the longest, those that rounding moves most, and whole ones."""

Outcomes = list[tuple[float, int]]
Rows = NDArray[np.float64]


PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "privacy" / "returning.md"


def rounded(coordinate: float, count: int = D) -> Outcomes:
    """Return the law of the number of coordinates, of `count` equal ones, that are rounded up."""
    chances = binom.pmf(np.arange(count + 1), count, coordinate - math.floor(coordinate))
    return [(float(chance), ups) for ups, chance in enumerate(chances) if chance > 1e-14]


def squared(coordinate: float, ups: int) -> int:
    below = math.floor(coordinate)
    return D * below**2 + ups * (2 * below + 1)


def hockey_stick(square: Rows | float, epsilon: Rows) -> Rows:
    """Return Φ(r/2 - ε/r) - e^ε Φ(-r/2 - ε/r) for r² = `square` and ε of either sign."""
    ratio = np.sqrt(np.maximum(square, 1e-9))
    near, far = log_ndtr(ratio / 2 - epsilon / ratio), log_ndtr(-ratio / 2 - epsilon / ratio)
    return np.asarray(np.exp(near) * -np.expm1(epsilon + far - near))


@pytest.mark.parametrize("coordinate", EQUAL)
def test_a_rounding_costs_no_more_than_it_is_charged_at_any_loss_and_its_mean_is_not_enough(coordinate: float) -> None:
    """E H(S' - z + Z, l) ≤ H(S', l) + η, for both ways to pay and amounts that are left."""
    weights, variance, eta = Weights(3.0, 3.0, 3.0), 1000.0, 1e-9
    known, upfront = Stretched(GRID, weights.total, 0.0, 1, weights).charges
    chances, lengths = np.array([(chance, squared(coordinate, ups)) for chance, ups in rounded(coordinate)]).T
    center, losses = float(chances @ lengths), np.linspace(-30, 60, 300)
    for one, amounts, before in (
        (known, weights.fullest * lengths, 0.0),
        (upfront, weights.fullest * np.maximum(0.0, lengths - center), weights.added * GRID.rounded_moments[0]),
    ):
        charge = one.mean - before + one.spread * steepest_slope(one.least / variance, eta) / variance
        for more in (0.0, 300.0, 2000.0):

            def mean_of(charged: Rows, left: float = before + more) -> Rows:
                return hockey_stick((left + charged[:, np.newaxis]) / variance, losses)

            after = chances @ mean_of(amounts)
            assert (after <= mean_of(np.array([charge]))[0] + eta).all()
            if coordinate % 1:
                assert (after > mean_of(np.array([chances @ amounts]))[0] + eta).any()


@pytest.mark.parametrize("coordinate", EQUAL)
def test_the_moments_of_what_a_rounding_is_charged_are_no_larger_than_stated(coordinate: float) -> None:
    law = [(chance, squared(coordinate, ups)) for chance, ups in rounded(coordinate)]
    center = sum(chance * length for chance, length in law)
    known, upfront = Stretched(GRID, 2.0, 0.0, 1, Weights(2.0, 2.0, 2.0)).charges
    later = upfront._replace(mean=upfront.mean - 2.0 * GRID.rounded_moments[0])
    for rate in np.exp(np.linspace(-12, -2, 40)):
        for one, amounts in ((known, (2.0 * x for _, x in law)), (later, (2.0 * max(0.0, x - center) for _, x in law))):
            moment = sum(p * mpmath.exp(rate * amount) for (p, _), amount in zip(law, amounts, strict=True))
            assert float(mpmath.log(moment)) <= one.log_moment(float(rate)) + 1e-12


@pytest.mark.parametrize(("square", "delta"), [(0.01, 1e-6), (0.5, 1e-9), (4.0, 1e-3), (90.0, 1e-6)])
def test_the_steepest_slope_is_that_at_the_least_square_and_delta_and_no_other_is_larger(
    square: float, delta: float
) -> None:
    """Derivatives of ln δ in 50 digits, at every ratio and ε where δ is no smaller."""
    most = steepest_slope(square, delta)

    def log_delta(r2: mpmath.mpf, epsilon: float) -> mpmath.mpf:
        r = mpmath.sqrt(r2)
        near, far = mpmath.ncdf(r / 2 - epsilon / r), mpmath.ncdf(-r / 2 - epsilon / r)
        return mpmath.log(near - mpmath.exp(epsilon) * far)

    with mpmath.workdps(50):
        for factor in (1, 1.1, 2, 30):
            last = gaussian_epsilon(math.sqrt(factor * square), delta)
            for epsilon in (1e-6, last / 4, last / 2, 0.9 * last, last * (1 - 1e-12)):
                at = mpmath.mpf(factor) * square
                slope = float(mpmath.diff(lambda r2, e=epsilon: log_delta(r2, e), at))
                assert slope <= most * (1 + 1e-9)
                if factor == 1 and epsilon > 0.99 * last:
                    assert slope == pytest.approx(most, rel=1e-6)


def test_no_slope_is_stated_where_delta_is_out_of_reach_or_the_proof_does_not_hold() -> None:
    assert steepest_slope(0.01, 0.9) == math.inf
    assert steepest_slope(0.01, 0.0395) == math.inf  # ε is between 0 and r²/2
    assert steepest_slope(1e9, 1e-6) == math.inf


def nodes(batches: int) -> list[range]:
    """Return all complete dyadic runs of batches: what the tree releases."""
    levels = range(batches.bit_length())
    return [range(i << level, (i + 1) << level) for level in levels for i in range(batches >> level)]


@pytest.mark.parametrize("batches", range(2, 10))
def test_the_weights_hold_for_all_sets_of_batches_by_brute_force(batches: int) -> None:
    own = factorization(batches)
    column = own.column()
    columns = np.array([np.concatenate((np.zeros(start), column[: batches - start])) for start in range(batches)])
    inside = np.array([[float(batch in node) for node in nodes(batches)] for batch in range(batches)])
    for times in range(2, batches + 1):
        chosen = [list(some) for some in itertools.combinations(range(batches), times)]
        fewer = [list(some) for some in itertools.combinations(range(batches), times - 1)]
        visits = Visits(Grid(1, 1, "linf"), batches, times)
        tree = Weights(visits.weight, visits.fullest, visits.weight - Visits(visits.grid, batches, times - 1).weight)
        for weights, rows in ((own.returning(times), columns), (tree, inside)):
            products = rows @ rows.T
            sums = [products[np.ix_(some, some)].sum(axis=1) for some in chosen]
            longest, before = max(one.sum() for one in sums), max(products[np.ix_(s, s)].sum() for s in fewer)
            fullest = max(total.max() for total in sums)
            assert weights.total == pytest.approx(longest, rel=1e-9)
            assert weights.added == pytest.approx(longest - before, rel=1e-9)
            assert fullest * (1 - 1e-9) <= weights.fullest
        assert own.returning(times).added <= own.weight(times) - own.weight(times - 1) + 1e-12


def second_roundings(first: float, ups: int, second: float) -> Rows:
    """Return chances, |R₂|² and R₁·R₂ of a second vector, the first having `ups` coordinates rounded up."""
    below, own = math.floor(second), math.floor(first)
    rows = [
        (one * other, squared(second, i + j), own * (D * below + i + j) + ups * below + i)
        for one, i in rounded(second, ups)
        for other, j in rounded(second, D - ups)
    ]
    return np.array(rows).T


def worst_of_two_batches(epsilon: float, variance: float) -> float:
    """Return δ of a client in both batches of a stream of two, which takes the worse vector after all that it saw.

    Its first leaf tells its rounding and a loss. Then come the second leaf and the node above both.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(40)
    worst = 0.0
    for first in EQUAL:
        total = 0.0
        for chance, ups in rounded(first):
            alone = squared(first, ups)
            left = epsilon - alone / variance / 2 - math.sqrt(alone / variance) * points
            best = np.zeros(points.size)
            for second in EQUAL:
                chances, own, product = (row[:, np.newaxis] for row in second_roundings(first, ups, second))
                later = (alone + 2 * own + 2 * product) / variance
                best = np.maximum(best, (chances * hockey_stick(later, left)).sum(axis=0))
            total += chance * float(best @ weights) / math.sqrt(2 * math.pi)
        worst = max(worst, total)
    return worst


@pytest.mark.parametrize("share", [3.0, 30.0])
def test_the_worst_client_that_adapts_its_second_vector_is_within_its_epsilon_and_nearly_at_it(share: float) -> None:
    move, variance, delta = Visits(GRID, 2, 2), share * GRID.unrounded, 1e-3
    result = returning_epsilon(move, variance, delta)
    assert worst_of_two_batches(result, variance) <= delta
    assert worst_of_two_batches(result / 1.06, variance) > delta
    assert result < 0.93 * rounded_epsilon(move, variance, delta)


@pytest.mark.parametrize("rate", [1e-5, 1e-4, 1e-3])
def test_a_moment_of_a_client_that_chooses_its_second_batch_by_its_first_rounding_is_as_stated(rate: float) -> None:
    """Every first batch of four, and the worst second one and vector for each rounding of the first."""
    inside = np.array([[batch in node for node in nodes(4)] for batch in range(4)], dtype=float)
    products, worst = inside @ inside.T, 0.0
    for first, place in itertools.product(EQUAL, range(3)):
        total = 0.0
        for chance, ups in rounded(first):
            best, alone = 0.0, squared(first, ups)
            for second, other in itertools.product(EQUAL, range(place + 1, 4)):
                chances, own, product = second_roundings(first, ups, second)
                square = products[place, place] * alone + products[other, other] * own
                square += 2 * products[place, other] * product
                best = max(best, float(chances @ np.exp(rate * square)))
            total += chance * best
        worst = max(worst, total)
    stated = Visits(GRID, 4, 2).log_moment(rate)
    assert 0.9 * stated < math.log(worst) <= stated


def test_what_roundings_are_charged_for_unlikely_losses_is_in_epsilon() -> None:
    """A vector of 16 half-integers that fills its ball: at δ = 10⁻¹² its mean length would allow a third of its δ."""
    grid, variance, delta = Grid(18, 16, "l2"), 328.0, 1e-12
    mean, _ = grid.rounded_moments
    assert mean == variance
    chances, ups = np.array(rounded(4.5, 16)).T
    result = returning_epsilon(Stretched(grid, 1.0, 0.0, 1, Weights(1.0, 1.0, 1.0)), variance, delta)
    squares, at = (16 * 16 + 9 * ups) / variance, np.array(result)
    assert delta / 3 < float(chances @ hockey_stick(squares, at)) <= delta
    assert float(chances @ hockey_stick(squares, np.array(gaussian_epsilon(1.0, delta)))) > 2.5 * delta


STREAMS = [(name, batches) for name in ("tree", "prefix-factorization") for batches in (141, 1024)]


def planned(name: str, batches: int) -> Tree | PrefixFactorization:
    query = PrivacyQuery(clients=20_000 // batches, epsilon=1.0, delta=1e-6, batches=batches)
    mechanism = query.planned(name, "exact", ContextualSum(features=5))
    assert isinstance(mechanism, Tree | PrefixFactorization)
    return mechanism


def weight(mechanism: Tree | PrefixFactorization, times: int) -> float:
    if isinstance(mechanism, Tree):
        return Visits(mechanism.grid, mechanism.batches, times).weight
    return mechanism.factors.weight(times)


@pytest.mark.parametrize(("name", "batches"), STREAMS)
def test_several_vectors_cost_little_more_than_without_rounding_and_less_than_with_the_worst(
    name: str, batches: int
) -> None:
    mechanism = planned(name, batches)
    stream = mechanism.privacy().stream
    assert stream is not None
    spent = [stream.joint(times).promise.epsilon or 0.0 for times in (1, 2, 3, 5, 12, 20)]
    assert spent == sorted(spent)
    for times, epsilon in zip((2, 3, 5, 12, 20), spent[1:], strict=True):
        ratios = [
            math.sqrt(weight(mechanism, times) * square / mechanism.variance)
            for square in (mechanism.grid.unrounded, mechanism.grid.squared_l2)
        ]
        least, worst = (gaussian_epsilon(ratio, 1e-6) for ratio in ratios)
        assert least < epsilon < 1.055 * least
        assert epsilon < 0.85 * worst


def in_a_ball(name: str, batches: int, precision: int | None = None) -> Tree | PrefixFactorization:
    query = PrivacyQuery(
        clients=142 if batches == 141 else 20,
        epsilon=1.0,
        delta=1e-6,
        batches=batches,
        dimension=D,
        norm="l2",
        low=-1.0,
        precision=precision,
    )
    mechanism = query.planned(name, "exact")
    assert isinstance(mechanism, Tree | PrefixFactorization)
    return mechanism


@pytest.mark.parametrize(("name", "batches"), STREAMS)
def test_four_times_as_many_steps_take_the_documented_share_of_epsilon_off(name: str, batches: int) -> None:
    """docs/concepts/privacy/prefix-sums.md: 1.1 to 1.2 % of 5 batches and 1.4 to 1.5 % of 20, for two bits."""
    own, finer = (in_a_ball(name, batches, precision) for precision in (None, 4 * GRID.precision))
    assert finer.modulus.bit_length() == own.modulus.bit_length() + 2
    for times, share in ((5, 0.0115), (20, 0.0145)):
        spent = []
        for mechanism in (own, finer):
            stream = mechanism.privacy().stream
            assert stream is not None
            spent.append(stream.joint(times).promise.epsilon or 0.0)
        assert 1 - spent[1] / spent[0] == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(("name", "batches"), STREAMS)
def test_the_documented_table_has_the_epsilon_of_clients_of_several_batches(name: str, batches: int) -> None:
    mechanism = in_a_ball(name, batches)
    stream = mechanism.privacy().stream
    assert mechanism.grid == GRID
    assert stream is not None
    lines = PAGE.read_text("utf-8").splitlines()
    for times in (2, 5, 20):
        squares = (GRID.unrounded, GRID.squared_l2)
        least, worst = (
            gaussian_epsilon(math.sqrt(weight(mechanism, times) * square / mechanism.variance), 1e-6)
            for square in squares
        )
        figures = (f"{one:#.4g}" for one in (least, stream.joint(times).promise.epsilon or 0.0, worst))
        assert f"| `{name}`, M = {batches:,} | {times} | {' | '.join(figures)} |" in lines


@pytest.mark.parametrize("name", ["tree", "prefix-factorization"])
def test_no_number_of_batches_costs_more_than_the_worst_roundings(name: str) -> None:
    """Also where the last batch adds little, and in a ball of few steps, where more is charged than can be added."""
    for precision in (1, 3, 28, 400):
        for times in (2, 7, 12, 13):
            query = PrivacyQuery(clients=50, epsilon=1.0, delta=1e-6, batches=13, precision=precision)
            mechanism = query.planned(name, "exact", ContextualSum(features=5))
            assert isinstance(mechanism, Tree | PrefixFactorization)
            stream = mechanism.privacy().stream
            assert stream is not None
            spent = stream.joint(times)
            variance = mechanism.variance - (LATTICE if name == "tree" else 0)
            ratio = math.sqrt(weight(mechanism, times) * mechanism.grid.squared_l2 / variance)
            assert (spent.promise.epsilon or 0.0) <= gaussian_epsilon(ratio, 1e-6) * 1.001
            for order, divergence in spent.profile(1e-6).rdp:
                assert divergence is not None
                assert divergence <= order * ratio**2 / 2 * 1.001


def test_a_box_has_no_roundings_to_charge() -> None:
    for grid in (Grid(3, D, "linf"), Grid(3, 1, "l2"), Grid(3, D, "l2", rounded=False)):
        move = Visits(grid, 8, 3)
        assert move.charges == ()
        assert move.log_moment(0.1) == 0.1 * move.squared_l2
        assert returning_epsilon(move, 50.0, 1e-6) == math.inf
