"""Tests ε at δ of Laplace noise on vectors: exact in a box, one coordinate as the worst whole move, close bounds."""

import itertools
import math
from functools import reduce

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.bandit.statistics import BoundedVector
from distrust.common.mechanisms import MechanismSpec
from distrust.common.mechanisms.families.laplace import LaplaceLike
from distrust.common.noise.polya import DiscreteLaplace
from distrust.common.privacy.laplace import continuous_box_epsilon, laplace_box_epsilon
from distrust.common.privacy.products import product_epsilon
from distrust.common.wire import Norm
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
