"""Tests the fair bits of vectors in a ball against every outcome of two coordinates, from 50-digit binomials."""

import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.statistics import BoundedVector, Statistic
from distrust.common.dp.accounting.techniques.gaussian import largest_ratio
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.shuffled.binomial import BALL_ROUNDING, ShuffledBinomial, binomial_epsilon
from distrust.common.dp.noise.binomial import FAIR
from distrust.common.wire import Norm
from tests.support.planned import planned


def bits(
    epsilon: float, delta: float, clients: int, statistic: Statistic, precision: int | None = None
) -> ShuffledBinomial:
    spec = MechanismSpec(name="shuffled-binomial", epsilon=epsilon, delta=delta, precision=precision)
    mechanism = planned(spec, clients, statistic=statistic)
    assert isinstance(mechanism, ShuffledBinomial)
    return mechanism


def fair(trials: int, room: int) -> NDArray[np.float64]:
    """Return the law of Bin(trials, 1/2), with `room` empty places before and after it."""
    with mpmath.workdps(50):
        mass = [float(mpmath.binomial(trials, k) / mpmath.mpf(2) ** trials) for k in range(trials + 1)]
    return np.pad(np.array(mass), room)


def attack(trials: int, moved: int, epsilon: float) -> float:
    """Return the largest δ(ε) of whole moves of two coordinates whose ℓ₂ length is at most `moved`."""
    law = fair(trials, moved)
    worst = 0.0
    for a in range(moved + 1):
        b = math.isqrt(moved * moved - a * a)
        if a >= b:
            gaps = np.multiply.outer(law, law) - math.exp(epsilon) * np.multiply.outer(np.roll(law, a), np.roll(law, b))
            worst = max(worst, float(np.maximum(gaps, 0).sum()))
    return worst


@pytest.mark.parametrize(("epsilon", "clients"), [(1.0, 20), (10.0, 20)])
def test_linucb_s_bits_hide_two_coordinates_and_with_a_tenth_less_noise_would_not(epsilon: float, clients: int) -> None:
    """At δ = 0.1. Rényi moments needed 1.54 and 1.19 times the deviation."""
    mechanism = bits(epsilon, 0.1, clients, ContextualSum(features=5))
    trials, moved = clients * mechanism.coins, mechanism.grid.precision
    assert mechanism.chance == FAIR
    assert attack(trials, moved, epsilon) <= 0.1 < attack(round(trials / 1.1**2), moved, epsilon)


@pytest.mark.parametrize(
    ("epsilon", "clients", "before"), [(0.2, 20, 8.2999), (1.0, 20, 3.6069), (10.0, 20, 0.72753), (1.0, 381, 3.0711)]
)
def test_linucb_s_bits_have_hardly_more_noise_than_reals_without_rounding(
    epsilon: float, clients: int, before: float
) -> None:
    """`before` is the deviation by Rényi moments, on the grid and with the p that these led to."""
    mechanism = bits(epsilon, 0.1, clients, ContextualSum(features=5))
    least = math.sqrt(4.5) / largest_ratio(epsilon, 0.1)
    assert least < mechanism.error(clients).std < min(1.04 * least, before / 1.19)
    promised = mechanism.privacy().promise.epsilon
    assert promised is not None
    assert 0.95 * epsilon < promised <= epsilon


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(("epsilon", "delta", "clients"), [(0.3, 1e-3, 100), (4.0, 1e-6, 30), (1.0, 1e-9, 2000)])
def test_one_bit_less_breaks_the_promise(norm: Norm, epsilon: float, delta: float, clients: int) -> None:
    mechanism = bits(epsilon, delta, clients, BoundedVector(dimension=3, norm=norm))
    trials, grid = clients * mechanism.coins, mechanism.grid
    assert mechanism.chance == FAIR
    assert mechanism.coins >= 1 / BALL_ROUNDING
    assert (
        binomial_epsilon(trials, FAIR, grid, delta) <= epsilon < binomial_epsilon(trials - clients, FAIR, grid, delta)
    )


def test_bits_too_few_for_a_covering_are_found_by_moments() -> None:
    """A coarse grid that a run file wants: Gaussian noise that covers so few bits is far less than they are."""
    mechanism = bits(20.0, 1e-6, 10, BoundedVector(dimension=3), precision=1)
    assert binomial_epsilon(10 * mechanism.coins, mechanism.chance, Grid(1, 3, "l2"), 1e-6) <= 20.0
    assert mechanism.coins < 20
