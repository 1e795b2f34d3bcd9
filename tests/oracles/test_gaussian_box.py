"""Tests ε of discrete Gaussian noise on vectors: exact in a box, elsewhere by continuous noise of variance 3/2 less."""

import math
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.accounting.techniques.gaussian import zcdp_epsilon
from distrust.common.dp.accounting.techniques.gaussian_vectors import (
    BLUR,
    LATTICE,
    box_fits,
    gaussian_box_epsilon,
    lattice_epsilon,
    lattice_variance,
    log_delta,
)
from distrust.common.dp.accounting.techniques.products import product_epsilon
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec, plan
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian

MECHANISMS = ("central-gaussian", "local-gaussian", "distributed-discrete-gaussian", "tree")


@dataclass(frozen=True)
class WholeMove:
    """A move by whole numbers whose squares add up to `squared_l2`."""

    squared_l2: int
    dimension: int

    @property
    def unrounded(self) -> int:
        return self.squared_l2

    def log_moment(self, rate: float) -> float:
        return rate * self.squared_l2


def enumerated(variance: float, move: tuple[int, ...], epsilon: float) -> float:
    """Return δ(ε) of a vector's move, outcome by outcome."""
    reach = math.ceil(8 * math.sqrt(variance)) + max(move)
    x = np.arange(-reach, reach + 1, dtype=np.float64)

    def outcomes(moved: tuple[int, ...]) -> NDArray[np.float64]:
        laws = [np.exp(-((x - one) ** 2) / (2 * variance)) for one in moved]
        size = float(np.exp(-(x**2) / (2 * variance)).sum())
        return np.asarray(reduce(np.multiply.outer, [law / size for law in laws]), dtype=np.float64)

    return float(np.maximum(outcomes(tuple(0 for _ in move)) - math.exp(epsilon) * outcomes(move), 0).sum())


def planned_mechanism(name: str, norm: str = "linf", dimension: int = 20, **more: Any) -> Mechanism:
    fields = {"name": name, "epsilon": 0.8, "delta": 1e-6, **({"batches": 7} if name == "tree" else {}), **more}
    statistic = BoundedVector(dimension=dimension, norm=norm)
    spec = MechanismSpec.model_validate(fields)
    return plan(spec, clients=500, min_survivors=500, min_honest=500, overflow_probability=1e-9, statistic=statistic)


@pytest.mark.parametrize("variance", [0.7, 3.0, 11.0])
@pytest.mark.parametrize(("dimension", "precision"), [(2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
def test_the_sum_of_a_box_tells_what_all_its_coordinates_tell(
    variance: float, dimension: int, precision: int, epsilon: float
) -> None:
    want = enumerated(variance, (precision,) * dimension, epsilon)
    assert math.exp(log_delta(variance, Grid(precision, dimension, "linf"), epsilon)) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(("variance", "dimension", "precision"), [(20.0, 3, 2), (900.0, 20, 5), (6e4, 20, 60)])
@pytest.mark.parametrize("delta", [0.2, 1e-3, 1e-8])
def test_epsilon_of_a_box_is_just_below_the_composed_losses(
    variance: float, dimension: int, precision: int, delta: float
) -> None:
    grid = Grid(precision, dimension, "linf")
    result = gaussian_box_epsilon(variance, grid, delta)
    composed = product_epsilon(DiscreteGaussian(variance).pmf(), precision, dimension, delta)
    assert result <= composed <= result * (1 + 1e-4) + 1e-6
    assert log_delta(variance, grid, result) <= math.log(delta) < log_delta(variance, grid, result * (1 - 1e-8))


@pytest.mark.parametrize("square", [1, 4, 9, 25])
@pytest.mark.parametrize("variance", [1.6, 4.0, 30.0])
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-6])
def test_no_whole_move_in_a_disc_beats_continuous_noise_of_a_little_less(
    square: int, variance: float, delta: float
) -> None:
    epsilon = lattice_epsilon(WholeMove(square, 2), variance, delta)
    moves = product(range(math.isqrt(square) + 1), repeat=2)
    worst = max(enumerated(variance, move, epsilon) for move in moves if move[0] ** 2 + move[1] ** 2 <= square)
    assert worst <= delta


def test_the_odds_of_rounding_add_up_to_the_same_wherever_one_stands() -> None:
    """BLUR is above ln((1 + τ)²/(1 - τ)), and so above ln(1 + τ), for τ of the module's proof with fifty digits."""
    with mpmath.workdps(50):
        even = mpmath.sqrt(2 * mpmath.pi * LATTICE)
        sums = [mpmath.fsum(mpmath.exp(-((k - y) ** 2) / (2 * LATTICE)) for k in range(-40, 41)) for y in (0, 0.5)]
        off = max(abs(total / even - 1) for total in sums)
        assert mpmath.log((1 + off) ** 2 / (1 - off)) < BLUR < 1.2 * mpmath.log((1 + off) ** 2 / (1 - off))


@given(
    st.floats(0.01, 30),
    st.floats(1e-12, 0.4),
    st.integers(1, 10**6),
    st.integers(1, 10**5),
)
def test_the_variance_for_an_epsilon_keeps_it(epsilon: float, delta: float, square: int, coordinates: int) -> None:
    move = WholeMove(square, coordinates)
    variance = lattice_variance(move, epsilon, delta)
    assert lattice_epsilon(move, variance, delta) <= epsilon * (1 + 1e-10)
    assert zcdp_epsilon(square / (2 * variance), delta)[0] >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dimension", [3, 20])
def test_noise_in_a_box_is_exactly_calibrated(name: str, dimension: int) -> None:
    mechanism = planned_mechanism(name, dimension=dimension)
    result = mechanism.privacy().profile(delta=1e-6).approximate
    assert result.how == "exact"
    assert result.epsilon == mechanism.privacy().promise.epsilon == pytest.approx(0.8, rel=2e-6)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_noise_on_the_grid_is_no_larger_than_in_reals(norm: str) -> None:
    grid, reals = (
        planned_mechanism("central-gaussian", norm, precision=60, noise=noise) for noise in ("grid", "continuous")
    )
    assert grid.variance == pytest.approx(reals.variance, abs=2.0)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_noise_in_a_ball_keeps_what_was_asked_and_is_labelled_a_bound(name: str, norm: str) -> None:
    mechanism = planned_mechanism(name, norm)
    result = mechanism.privacy().profile(delta=1e-6).approximate
    assert result.how == "bound"
    assert result.epsilon == mechanism.privacy().promise.epsilon
    assert 0.8 * (1 - 2e-6) <= (result.epsilon or 0) <= 0.8


def test_a_tree_is_all_of_its_nodes_and_coordinates() -> None:
    """At depth 2 in a box of two coordinates a batch makes four moves of g, enumerated outcome by outcome."""
    tree = planned_mechanism("tree", dimension=2, batches=2, precision=1, epsilon=2.0, delta=0.01)
    epsilon = tree.privacy().promise.epsilon
    assert epsilon is not None
    assert enumerated(tree.variance, (1, 1, 1, 1), epsilon) == pytest.approx(0.01, rel=1e-8)  # type: ignore[union-attr]


def test_a_box_whose_sum_is_too_wide_gets_the_bound() -> None:
    grid = Grid(40, 1000, "linf")
    assert not box_fits(3e7, grid)
    mechanism = planned_mechanism("central-gaussian", dimension=1000, precision=1500)
    result = mechanism.privacy().profile(delta=1e-6).approximate
    assert result.how == "bound"
    assert result.epsilon == pytest.approx(0.8, rel=2e-6)
