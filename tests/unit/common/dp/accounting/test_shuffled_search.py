"""Tests that searches of the shuffle family end for all legal cohorts, keep the promise, and are tight."""

import math
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.techniques.amplification.randomizers import MOST_CELLS, added_noise, laplace_on_grid
from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at, hockey_stick
from distrust.common.dp.accounting.techniques.searches import snap_down
from distrust.common.dp.accounting.techniques.sensitivity import Grid, laplace_scale
from distrust.common.dp.mechanisms import (
    Mechanism,
    MechanismName,
    MechanismSpec,
)
from distrust.common.dp.mechanisms.shuffled.binomial import ShuffledBinomial, binomial_epsilon
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.law import Pmf
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.wire import Norm
from tests.support.planned import planned
from tests.support.randomizers import blanket_delta

NAMES: tuple[MechanismName, ...] = ("shuffled-laplace", "shuffled-sphere", "shuffled-gaussian", "shuffled-binomial")


def planned_mechanism(
    name: str, n: int, epsilon: float, delta: float, *, dimension: int = 1, norm: Norm = "l2", **fields: Any
) -> Mechanism:
    spec = MechanismSpec(name=name, epsilon=epsilon, delta=delta, **fields)
    statistic = Reward() if dimension == 1 else BoundedVector(dimension=dimension, norm=norm)
    return planned(spec, n, statistic=statistic)


def test_a_large_epsilon_is_planned_for_crowds_of_every_size() -> None:
    """The tilt of the blanket's sum is 1e-9 there: a search in absolute steps took it for 0."""
    for n in (2, 20, 100, 1000):
        mechanism = planned_mechanism("shuffled-laplace", n, 20.0, 1e-6)
        assert (mechanism.privacy().promise.epsilon or math.inf) <= 20.0
        assert math.isfinite(blanket_delta(laplace_on_grid(laplace_scale(20.0, 8, 1), 8), 19.0, n))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@example(name="shuffled-laplace", size=1.0, epsilon=math.exp(3.21875), delta=math.exp(-9.0), dimension=1)
@given(
    name=st.sampled_from(NAMES),
    size=st.floats(0, math.log(3000)),
    epsilon=st.floats(math.log(1e-3), math.log(50)).map(math.exp),
    delta=st.floats(math.log(1e-18), math.log(0.4)).map(math.exp),
    dimension=st.sampled_from((1, 1, 3)),
)
def test_what_is_planned_keeps_the_epsilon_that_was_asked_for(
    name: str, size: float, epsilon: float, delta: float, dimension: int
) -> None:
    """Every legal n, ε and δ is planned within the promise, or refused as a whole with the field named."""
    try:
        spent = (
            planned_mechanism(name, round(math.exp(size)), epsilon, delta, dimension=dimension)
            .privacy()
            .promise.epsilon
        )
    except BadParameter as error:
        assume(error.field not in {"mechanism", "mechanism.epsilon", "support of the noise"})
        raise
    assert spent is not None
    assert spent <= epsilon


@pytest.mark.parametrize(("dimension", "norm"), [(1, "linf"), (4, "l1"), (4, "linf")])
def test_shuffled_laplace_reports_no_digit_more_than_was_asked_for(dimension: int, norm: Norm) -> None:
    mechanism = planned_mechanism("shuffled-laplace", 1000, 1.0, 1e-6, dimension=dimension, norm=norm)
    assert 1 - 1e-5 <= (mechanism.privacy().promise.epsilon or 0) <= 1.0
    assert 1 - 1e-5 <= (mechanism.privacy().profile(delta=1e-6).approximate.epsilon or 0) <= 1.0


def test_bits_take_the_least_chance_that_hides() -> None:
    """Two bits with p = 0.034 where fair ones would have 2.8 times the deviation; p is drawn as it is counted."""
    mechanism = planned_mechanism("shuffled-binomial", 1000, 1.0, 1e-6, precision=1)
    assert isinstance(mechanism, ShuffledBinomial)
    p = mechanism.chance
    assert (mechanism.coins, mechanism.bits) == (1, 2)
    assert mechanism.error(1000).std == pytest.approx(5.731, abs=1e-3)
    below = snap_down(p)
    assert below < p <= below * (1 + 1e-6)
    deltas = [hockey_stick(Binomial(1000, chance).pmf(), 1, 1.0) for chance in (below, p)]
    assert deltas[1] <= 1e-6 < deltas[0]
    assert mechanism.privacy().promise.epsilon == epsilon_at(Binomial(1000, p).pmf(), 1, 1e-6) <= 1.0
    drawn = mechanism.client_law().sample(UnsafeSeededStream(1, "bits"), 10**6).mean()
    assert abs(float(drawn) - p) < 6e-3 * p * 6  # six deviations: false alarm 2e-9


@pytest.mark.parametrize(
    ("n", "epsilon", "dimension", "precision", "saved"),
    [(1000, 1.0, 1, None, 0.02), (100_000, 1.0, 4, 1, 0.9), (20, 1.0, 1, None, 0.0), (2, 20.0, 1, None, 0.0)],
)
def test_a_biased_bit_stays_fair_where_it_gains_nothing(
    n: int, epsilon: float, dimension: int, precision: int | None, saved: float
) -> None:
    mechanism = planned_mechanism("shuffled-binomial", n, epsilon, 1e-6, dimension=dimension, precision=precision)
    assert isinstance(mechanism, ShuffledBinomial)
    fair = math.sqrt(n * mechanism.coins) / 2 * mechanism.step
    assert (mechanism.chance == 0.5) is (saved == 0.0)
    assert mechanism.error(n).std <= (1 - saved) * fair
    grid = Grid(mechanism.precision, dimension, "l2" if dimension > 1 else "linf")
    assert binomial_epsilon(n * (mechanism.coins - 1 or 1), 0.1**9, grid, 1e-6) > epsilon  # hardly any noise


def test_outputs_of_wide_noise_share_cells_and_hide_as_much() -> None:
    wide, other = DiscreteGaussian(3000.0**2).pmf(), DiscreteGaussian(300.0**2).pmf()
    cut = added_noise(wide, 10)
    assert MOST_CELLS <= cut.masses.shape[1] <= 2 * MOST_CELLS + 2
    assert cut.gamma == pytest.approx(added_noise(other, 1).gamma, rel=1e-3)
    deltas = [blanket_delta(added_noise(pmf, shift), 1e-3, 100) for pmf, shift in ((wide, 10), (other, 1))]
    assert deltas[0] == pytest.approx(deltas[1], rel=2e-3)


def test_cells_bound_the_outputs_that_share_them() -> None:
    pmf = DiscreteGaussian(2000.0**2).pmf()
    cut = added_noise(pmf, 2)
    whole = [Pmf(pmf.first + x, pmf.logs, 0.0).masses for x in range(3)]
    assert all(
        math.fsum(row) == pytest.approx(math.fsum(law), abs=1e-12) for row, law in zip(cut.masses, whole, strict=True)
    )
    means = cut.masses / cut.blanket
    assert (cut.low <= means * (1 + 1e-12)).all()
    assert (means <= cut.high * (1 + 1e-12)).all()


@pytest.mark.slow
def test_every_pair_of_inputs_is_hidden_where_the_farthest_is_not_the_worst() -> None:
    """At n = 10⁶ and ε = 1 inputs two steps apart are told apart better than those four steps apart."""
    mechanism = planned_mechanism("shuffled-gaussian", 1_000_000, 1.0, 1e-6, precision=4)
    assert mechanism.privacy().promise.epsilon == 1.0
