"""Tests the proven bounds for vectors against enumeration: all pairs of inputs, rounded, outcome by outcome."""

import itertools
import math

import numpy as np
import pytest
from mpmath import mp
from numpy.typing import NDArray

from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at
from distrust.common.dp.accounting.techniques.products import product_epsilon
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.accounting.techniques.vector_bounds import (
    central,
    grid_by_moments,
    vector_epsilon,
    vector_rdp,
    whole,
    worst_log_moment,
)
from distrust.common.dp.mechanisms.shuffled.binomial import binomial_epsilon
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.skellam import Skellam
from distrust.common.wire import Norm

NORMS: tuple[Norm, ...] = ("l1", "l2", "linf")
ORDER = {"l1": 1, "l2": 2, "linf": np.inf}


def rounded(position: float, pmf: NDArray[np.float64], precision: int) -> NDArray[np.float64]:
    """Return the law of ⌊w⌋ + Ber(w - ⌊w⌋) + noise."""
    low, up = math.floor(position), position - math.floor(position)
    law = np.zeros(pmf.size + precision + 1)
    law[low : low + pmf.size] += (1 - up) * pmf
    law[low + 1 : low + 1 + pmf.size] += up * pmf
    return law


def joint(laws: tuple[NDArray[np.float64], ...]) -> NDArray[np.float64]:
    out = laws[0]
    for law in laws[1:]:
        out = np.multiply.outer(out, law)
    return out


def worst_delta(trials: int, chance: float, grid: Grid, epsilon: float) -> float:
    """Return the largest δ(ε) over all pairs of inputs whose coordinates are on a grid of thirds of a step."""
    precision = grid.precision
    pmf = np.array([math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)])
    ticks = [i / 3 for i in range(3 * precision + 1)]
    moves = [(a, b) for a, b in itertools.product(ticks, ticks)]
    laws = {tick: rounded(tick, pmf, precision) for tick in ticks}
    worst = 0.0
    for pairs in itertools.combinations_with_replacement(moves, grid.dimension):
        if np.linalg.norm([a - b for a, b in pairs], ord=ORDER[grid.norm]) > precision + 1e-9:
            continue
        here, there = (joint(tuple(laws[pair[side]] for pair in pairs)) for side in (0, 1))
        worst = max(worst, float(np.maximum(here - math.exp(epsilon) * there, 0).sum()))
    return worst


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("trials", "chance", "ball", "delta"),
    [
        pytest.param(40, 0.5, (2, 2), 1e-3, id="two-coordinates"),
        pytest.param(24, 0.5, (3, 2), 1e-2, id="three-steps"),
        pytest.param(30, 0.5, (1, 3), 1e-4, id="three-coordinates"),
        pytest.param(40, 0.4, (2, 2), 1e-3, id="unfair-coin"),
    ],
)
def test_no_pair_of_inputs_beats_the_proven_epsilon(
    trials: int, chance: float, ball: tuple[int, int], delta: float, norm: Norm
) -> None:
    grid = Grid(*ball, norm)
    epsilon = binomial_epsilon(trials, chance, grid, delta)
    assert math.isfinite(epsilon)
    result = worst_delta(trials, chance, grid, epsilon)
    assert 0 < result <= delta
    if norm == "linf" and chance == 0.5:  # composed from the worst corner to its opposite: the bound is tight
        assert result >= delta * 0.998


@pytest.mark.parametrize(("norm", "excess"), [("l1", 0.15), ("l2", 0.25)])
def test_the_proven_epsilon_is_near_the_worst_pair_s(norm: Norm, excess: float) -> None:
    """On a coarse grid ε is near the loss of the worst pair of grid points. Rényi orders and rounding add the rest."""
    epsilon = binomial_epsilon(400, 0.5, Grid(4, 2, norm), 1e-4)
    lower = worst_pair_epsilon(Binomial(400).pmf().masses, 4, norm, 1e-4)
    assert lower <= epsilon <= lower * (1 + excess)


def worst_pair_epsilon(pmf: NDArray[np.float64], precision: int, norm: Norm, delta: float) -> float:
    """Return the largest ε at δ over moves of two coordinates between grid points."""

    def spent(shifts: tuple[int, int]) -> float:
        laws = [(np.pad(pmf, (0, s)), np.pad(pmf, (s, 0))) for s in shifts]
        here, there = (np.multiply.outer(laws[0][side], laws[1][side]) for side in (0, 1))
        low, high = 0.0, 20.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            over = float(np.maximum(here - math.exp(middle) * there, 0).sum()) > delta
            low, high = (middle, high) if over else (low, middle)
        return low

    steps = range(precision + 1)
    return max(
        spent((a, b)) for a in steps for b in steps if a and np.linalg.norm((a, b), ord=ORDER[norm]) <= precision
    )


@pytest.mark.parametrize(("trials", "shift", "count"), [(200, 5, 1), (200, 5, 2), (60, 2, 3), (24, 1, 4)])
def test_composed_coordinates_agree_with_every_outcome_added_up(trials: int, shift: int, count: int) -> None:
    """At the returned ε the sum over all outcomes, from 40-digit probabilities, is at most δ and above 0.998 δ."""
    delta = 1e-4
    epsilon = product_epsilon(Binomial(trials).pmf(), shift, count, delta)
    with mp.workdps(40):
        mass = np.array([float(mp.binomial(trials, k) / mp.mpf(2) ** trials) for k in range(trials + 1)])
    here, there = joint((np.pad(mass, (0, shift)),) * count), joint((np.pad(mass, (shift, 0)),) * count)
    exact = float(np.maximum(here - math.exp(epsilon) * there, 0).sum())
    assert delta * 0.998 <= exact <= delta


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("precision", "dimension"), [(1, 4), (3, 3), (5, 2), (40, 2)])
def test_the_moment_of_every_move_is_below_its_bound(norm: Norm, precision: int, dimension: int) -> None:
    """The moment is the product of the coordinates' rounded moments, for moves in the ball on a grid and at random."""
    losses, _ = central(Skellam(400.0).pmf(), precision, 1e-9)
    order = 9.0
    moments = np.exp([losses.at(s, order) for s in range(precision + 2)])
    bound = worst_log_moment(losses, order, Grid(precision, dimension, norm))
    random = np.random.default_rng(4)
    raw = np.abs(random.standard_normal((4000, dimension))) ** random.uniform(0.2, 6, (4000, 1))
    moves = raw / np.linalg.norm(raw, ord=ORDER[norm], axis=1, keepdims=True) * precision
    corners = np.array(list(itertools.product(range(precision + 1), repeat=dimension))) if precision <= 5 else moves
    moves = np.concatenate((moves, corners[np.linalg.norm(corners, ord=ORDER[norm], axis=1) <= precision]))
    whole_steps = np.floor(np.minimum(moves, precision)).astype(int)
    parts = moves - whole_steps
    spent = np.log((1 - parts) * moments[whole_steps] + parts * moments[whole_steps + 1]).sum(axis=1)
    assert spent.max() <= bound
    assert bound <= spent.max() * (1.2 if norm == "l2" else 1.01)


def test_the_moment_between_computed_shifts_lies_below_the_chord() -> None:
    """ln M is convex in the shift, on which shifts above sixteen rest: fair and unfair binomial, and Skellam."""
    for law in (Binomial(3000), Binomial(3000, 0.2), Skellam(900.0)):
        losses, _ = central(law.pmf(), 60, 1e-9, both=True)
        for order in (1.1, 4.0, 30.0):
            logs = np.array([losses.at(s, order) for s in range(61)])
            assert np.diff(logs, 2).min() >= -1e-9


@pytest.mark.parametrize(("dimension", "precision"), [(3, 8), (20, 40)])
def test_renyi_of_a_box_and_of_an_l1_ball_is_that_of_the_law(dimension: int, precision: int) -> None:
    """The worst move of a box is from corner to corner. That of an ℓ₁ ball is in one coordinate."""
    losses = whole(Skellam(9.0 * precision**2).pmf(least=60 * precision + 500), 45 * precision + 30)
    one = losses.at(precision, 8.0) / 7
    assert vector_rdp(losses, 8.0, Grid(precision, dimension, "linf")) == pytest.approx(dimension * one)
    assert one <= vector_rdp(losses, 8.0, Grid(precision, dimension, "l1")) <= one * (1 + 1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_the_grid_that_is_chosen_costs_a_tenth_at_most(norm: Norm) -> None:
    for dimension in (2, 20, 400):
        g = grid_by_moments(dimension, norm, math.log(1e6))
        fine, scale = 8 * g, 6.0 * math.sqrt(dimension if norm == "linf" else 1)
        coarse_epsilon, fine_epsilon = (
            vector_epsilon(Skellam((steps * scale) ** 2).pmf(), Grid(steps, dimension, norm), 1e-6)
            for steps in (g, fine)
        )
        assert coarse_epsilon <= fine_epsilon * 1.11


def test_one_coordinate_is_computed_as_before() -> None:
    assert binomial_epsilon(500, 0.5, Grid(7, 1, "l2"), 1e-6) == epsilon_at(Binomial(500).pmf(), 7, 1e-6)


def test_too_few_bits_promise_nothing() -> None:
    for norm in NORMS:
        assert math.isinf(binomial_epsilon(8, 0.5, Grid(9, 4, norm), 1e-6))
        assert math.isinf(binomial_epsilon(12, 0.5, Grid(2, 4, norm), 1e-6))


@pytest.mark.parametrize(("chance", "norm"), [(0.35, "l2"), (0.41, "l2"), (0.37, "l1")])
def test_an_epsilon_that_a_quick_search_just_misses_is_proven_by_a_closer_one(chance: float, norm: Norm) -> None:
    """Where the quick search ends differs between processors by more. A bound well above what is enough stays."""
    pmf, grid = Binomial(800, chance).pmf(), Grid(8, 4, norm)
    quick = vector_epsilon(pmf, grid, 1e-5, both=True)
    close = vector_epsilon(pmf, grid, 1e-5, both=True, requested=quick * (1 - 1e-12))
    assert quick * (1 - 1e-4) < close < quick * (1 - 1e-7)
    assert vector_epsilon(pmf, grid, 1e-5, both=True, requested=close * (1 + 1e-9)) == close
    assert vector_epsilon(pmf, grid, 1e-5, both=True, requested=close * (1 - 1e-9)) == close
    assert vector_epsilon(pmf, grid, 1e-5, both=True, requested=quick / 1.01) == quick
    assert vector_epsilon(pmf, grid, 1e-5, both=True, requested=quick) == quick


@pytest.mark.parametrize("dimension", [4, 12])
def test_a_divergence_that_a_quick_search_just_misses_is_proven_by_a_closer_one(dimension: int) -> None:
    grid, orders = Grid(10, dimension, "l2"), (1.5, 3.0, 8.0, 16.0, 24.0)
    losses = whole(Skellam(300.0).pmf(least=800), 400)
    for order in orders:
        quick = vector_rdp(losses, order, grid)
        close = vector_rdp(losses, order, grid, quick * (1 - 1e-12))
        assert quick * (1 - 1e-3) < close <= quick
        assert vector_rdp(losses, order, grid, close * (1 - 1e-9)) == close
        assert vector_rdp(losses, order, grid, quick) == quick
    gaps = [vector_rdp(losses, one, grid) / vector_rdp(losses, one, grid, 0.0) - 1 for one in orders]
    assert max(gaps) < 1e-3
