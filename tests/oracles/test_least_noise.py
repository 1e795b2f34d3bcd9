"""Tests that calibrated noise is enough and close to the least, by mpmath, enumeration, and noise in reals."""

import itertools
import math
from fractions import Fraction
from functools import reduce

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distrust.common.bandit.statistics import BoundedVector, Reward, Statistic
from distrust.common.dp.accounting.techniques.gaussian import largest_ratio, log_gaussian_delta
from distrust.common.dp.accounting.techniques.gaussian_vectors import (
    LATTICE,
    Covering,
    gaussian_box_epsilon,
    lattice_epsilon,
    rounded_log_delta,
)
from distrust.common.dp.accounting.techniques.hockey_stick import Extensible, rdp, stretched
from distrust.common.dp.accounting.techniques.products import product_epsilon
from distrust.common.dp.accounting.techniques.searches import SNAPPED_BITS
from distrust.common.dp.accounting.techniques.sensitivity import Grid, laplace_scale
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.distributed.skellam import skellam_divergences
from distrust.common.dp.mechanisms.families.base import MechanismName
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.skellam import Skellam
from distrust.common.wire import Norm
from tests.support.planned import planned

BALLS: tuple[Norm, ...] = ("l1", "l2")


def planned_mechanism(
    name: MechanismName,
    epsilon: float,
    delta: float | None = None,
    clients: int = 1000,
    dimension: int = 1,
    *,
    norm: Norm = "linf",
    **more: object,
) -> Mechanism:
    statistic: Statistic = Reward() if dimension == 1 else BoundedVector(dimension=dimension, norm=norm)
    fields = {"name": name, "epsilon": epsilon, "delta": delta, **more}
    spec = MechanismSpec.model_validate(fields)
    return planned(spec, clients, statistic=statistic)


def masses(name: str, variance: float, reach: int) -> list[mpmath.mpf]:
    """Return the law on [-reach, reach], to 40 digits."""
    v = mpmath.mpf(variance)
    if name == "distributed-skellam":
        half = [mpmath.besseli(k, v) * mpmath.exp(-v) for k in range(reach + 1)]
        return [half[abs(k)] for k in range(-reach, reach + 1)]
    weights = [mpmath.exp(-k * k / (2 * v)) for k in range(-reach, reach + 1)]
    whole = mpmath.fsum(weights)
    return [weight / whole for weight in weights]


def oracle(name: str, variance: float, shift: int, epsilon: float) -> float:
    """Return δ(ε) from the definition, on a support that holds both laws."""
    with mpmath.workdps(40):
        law = masses(name, variance, math.ceil(14 * math.sqrt(variance)) + shift + 20)
        pairs = zip(law[: len(law) - shift], law[shift:], strict=True)
        return float(mpmath.fsum(max(q - mpmath.exp(epsilon) * p, 0) for p, q in pairs))


@pytest.mark.parametrize(
    ("name", "clients", "epsilon", "delta", "precision"),
    [
        ("central-gaussian", 1000, 20.0, 1e-18, 219),
        ("central-gaussian", 2, 50.0, 1e-6, None),
        ("distributed-skellam", 2, 50.0, 1e-18, None),
        ("distributed-skellam", 100, 1.0, 1e-18, None),
        ("distributed-discrete-gaussian", 100, 20.0, 1e-12, 30),
    ],
)
def test_the_variance_is_enough_and_a_millionth_less_is_not(
    name: MechanismName, clients: int, epsilon: float, delta: float, precision: int | None
) -> None:
    mechanism = planned_mechanism(name, epsilon, delta, clients, precision=precision)
    variance: float = mechanism.variance  # type: ignore[union-attr]
    assert oracle(name, variance, mechanism.precision, epsilon) <= delta
    assert oracle(name, variance * (1 - 1e-6), mechanism.precision, epsilon) > delta


@pytest.mark.parametrize("clients", [2, 1000, 10**6])
@pytest.mark.parametrize("name", ["central-laplace", "central-laplace-discrete", "local-laplace", "distributed-polya"])
def test_the_smallest_epsilon_that_is_documented_is_planned(name: MechanismName, clients: int) -> None:
    result = planned_mechanism(name, 1e-4, clients=clients).privacy().promise.epsilon
    assert result is not None
    assert result <= 1e-4


@given(st.floats(1e-4, 50), st.integers(1, 10**6), st.integers(1, 100))
def test_a_box_s_scale_is_the_least_double_that_keeps_epsilon(epsilon: float, precision: int, dimension: int) -> None:
    scale = laplace_scale(epsilon, precision, dimension)
    shift = precision * dimension
    assert Fraction(scale) * Fraction(epsilon) >= shift
    assert Fraction(math.nextafter(scale, 0)) * Fraction(epsilon) < shift


def test_a_box_of_a_million_clients_keeps_what_was_asked() -> None:
    """The promise is at most the ε that was asked for: clients with that limit refuse 1.0000014."""
    for epsilon in (1.0, 20.0):
        result = planned_mechanism("central-gaussian", epsilon, 1e-18, 10**6, 20).privacy().promise.epsilon
        assert result is not None
        assert epsilon * (1 - 2e-6) <= result <= epsilon


@pytest.mark.parametrize(
    ("variance", "dimension", "precision"), [(0.7, 2, 1), (20.0, 3, 2), (400.0, 2, 60), (900, 20, 5)]
)
def test_composed_losses_are_at_most_thirty_millionths_too_large(
    variance: float, dimension: int, precision: int
) -> None:
    """The oracle is the exact ε of discrete Gaussian noise in a box."""
    pmf = stretched(DiscreteGaussian(variance), precision)
    for delta in (0.2, 0.01, 1e-6, 1e-18):
        exact = gaussian_box_epsilon(variance, Grid(precision, dimension, "linf"), delta)
        assert exact * (1 - 1e-9) <= product_epsilon(pmf, precision, dimension, delta) <= exact * (1 + 3e-5)


def test_skellam_without_delta_says_the_exact_epsilon() -> None:
    """The promise shows the exact ε at its δ. The Rényi orders give 7 % more: 5.214 for 4.8806 at n = 1000."""
    mechanism = planned_mechanism("distributed-skellam", 1.0, clients=20)
    promise = mechanism.privacy().promise
    assert promise.kind == "renyi"
    assert promise.rdp
    assert promise.epsilon == mechanism.privacy().profile(delta=promise.delta).approximate.epsilon
    assert promise.epsilon is not None
    truth = oracle("distributed-skellam", mechanism.variance, mechanism.precision, promise.epsilon)  # type: ignore[union-attr]
    assert truth == pytest.approx(promise.delta, rel=1e-6)


@given(
    st.lists(st.floats(0, 6), min_size=1, max_size=6),
    st.sampled_from(BALLS),
    st.floats(-12, 1),
)
def test_no_move_s_rounding_has_a_larger_moment(move: list[float], norm: Norm, log_rate: float) -> None:
    size = sum(move) if norm == "l1" else math.sqrt(sum(d * d for d in move))
    precision, rate = max(1, math.ceil(size)), math.exp(log_rate)
    truth = 0.0
    for d in move:
        low, part = math.floor(d), d - math.floor(d)
        truth += rate * low**2 + math.log1p(part * math.expm1(min(600.0, rate * (2 * low + 1))))
    assert truth <= Grid(precision, len(move), norm).log_moment(rate) * (1 + 1e-12) + 1e-12


def outcomes(law: NDArray[np.float64], moves: tuple[int, ...], room: int) -> NDArray[np.float64]:
    """Return the joint law of coordinates with this noise, moved."""
    padded = [np.pad(law, (room + move, room - move)) for move in moves]
    return np.asarray(reduce(np.multiply.outer, padded), dtype=np.float64)


def rounded(law: NDArray[np.float64], values: tuple[float, ...], room: int) -> NDArray[np.float64]:
    """Return the joint law of noise on values that are rounded at random."""
    total = np.zeros((law.size + 2 * room,) * len(values))
    for up in itertools.product((0, 1), repeat=len(values)):
        ways = [value - math.floor(value) for value in values]
        chance = math.prod(way if one else 1 - way for way, one in zip(ways, up, strict=True))
        total += chance * outcomes(law, tuple(math.floor(v) + one for v, one in zip(values, up, strict=True)), room)
    return total


@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-6])
@pytest.mark.parametrize(("variance", "precision"), [(2.0, 1), (9.0, 2), (40.0, 3)])
def test_no_vectors_of_a_disc_beat_the_bound_after_rounding(variance: float, precision: int, delta: float) -> None:
    """δ of the mixtures is enumerated outcome by outcome, for two coordinates and a lattice of starts and moves."""
    law = np.exp(stretched(DiscreteGaussian(variance), 0).logs)
    epsilon = lattice_epsilon(Grid(precision, 2, "l2"), variance, delta)
    room = precision + 1
    for start, part in itertools.product((0.0, 0.3, 0.5), range(5)):
        angle = part * math.pi / 16
        move = (precision * math.cos(angle), precision * math.sin(angle))
        here = rounded(law, (start, start), room)
        there = rounded(law, (start + move[0] - 1e-12, start + move[1]), room)
        assert float(np.maximum(here - math.exp(epsilon) * there, 0).sum()) <= delta


@pytest.mark.parametrize("tolerance", [1e-3, 1e-7])
@pytest.mark.parametrize("variance", [3.0, 30.0])
def test_no_moves_of_skellam_noise_beat_the_gaussian_that_covers_it(variance: float, tolerance: float) -> None:
    pmf = stretched(Skellam(variance), 4)
    enough = Covering(pmf, tolerance).variance(4)
    assert enough < variance
    law = np.exp(Skellam(variance).pmf().logs)
    for moves in ((4, 0), (3, 2), (2, 2), (1, 1), (4, 4)):
        grid = Grid(1, sum(move * move for move in moves), "linf")  # a whole move of that squared length
        for epsilon in (0.0, 0.3, 1.0, 4.0):
            here, there = outcomes(law, (0, 0), 4), outcomes(law, moves, 4)
            truth = float(np.maximum(here - math.exp(epsilon) * there, 0).sum())
            assert truth <= (math.exp(rounded_log_delta(grid, enough, epsilon)) + 2 * tolerance) * (1 + 1e-9)


@pytest.mark.parametrize("tolerance", [1e-4, 5e-11])
@pytest.mark.parametrize(
    "law",
    [Skellam(3.0), Skellam(400.0), DiscreteGaussianSum(0.1, 300), Binomial(1600), Binomial(1601)],
    ids=["steps", "skellam", "small-shares", "fair-bits", "odd-number-of-bits"],
)
def test_every_shift_is_covered_and_not_by_a_hundredth_more_noise(law: Extensible, tolerance: float) -> None:
    """H ≤ G + η at γ = 1, at each kink of H and between, H summed term by term. With more noise in reals it fails."""
    most = 60
    pmf = stretched(law, most)
    enough = Covering(pmf, tolerance).variance(most)

    def surplus(variance: float, shift: int) -> float:
        here, there = np.exp(pmf.logs[:-shift]), np.exp(pmf.logs[shift:])
        losses = pmf.logs[:-shift] - pmf.logs[shift:]
        kinks = np.unique([0.0, *losses[(losses > 0) & (losses < 300)]])
        levels = np.sort([*kinks, *(kinks[1:] + kinks[:-1]) / 2])
        sticks = [float(np.maximum(here - math.exp(level) * there, 0).sum()) for level in levels]
        allowed = [math.exp(log_gaussian_delta(shift / math.sqrt(variance), level)) + tolerance for level in levels]
        return float(np.max(np.array(sticks) / np.array(allowed))) - 1

    shifts = (1, 2, 3, 7, 20, 30, 60)
    assert max(surplus(enough, shift) for shift in shifts) <= 1e-9
    assert max(surplus(enough * 1.01, shift) for shift in shifts) > 1e-9


@pytest.mark.parametrize("norm", [*BALLS, "linf"])
@pytest.mark.parametrize("order", [1.25, 2.0, 8.0])
def test_renyi_of_a_move_of_many_deviations_is_that_of_a_longer_support(order: float, norm: Norm) -> None:
    """A support of (α - 1) shifts only would give 181 for 198.6 at α = 1.25, and lose part of every highest order."""
    law, shift = Skellam(2500.0), 900
    (whole,) = rdp(law.pmf(least=math.ceil(2 * order * shift) + 2000), shift, [order])
    ((_, result),) = skellam_divergences(law.variance, Grid(shift, 2, norm), (order,))
    if norm == "linf":
        assert result == pytest.approx(2 * whole, rel=1e-9)
    else:
        assert whole <= result * (1 + 1e-9)


def test_a_law_that_is_not_known_far_enough_out_is_covered_by_nothing() -> None:
    assert Covering(Skellam(30.0).pmf(1e-6), 1e-7).variance(4) == 0.0
    assert Covering(Binomial(40).pmf(), 1e-7).variance(40) == 0.0


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize(
    ("name", "most"),
    [("central-gaussian", 1.006), ("distributed-discrete-gaussian", 1.011), ("distributed-skellam", 1.012)],
)
def test_balls_of_twenty_coordinates_take_hardly_more_than_noise_in_reals(
    name: MechanismName, norm: Norm, most: float
) -> None:
    """The least deviation of noise in reals, without rounding, is Δ₂ over the largest ratio, exactly."""
    mechanism = planned_mechanism(name, 1.0, 1e-6, 1000, 20, norm=norm)
    least = (mechanism.high - mechanism.low) / largest_ratio(1.0, 1e-6)
    assert least < mechanism.error(1000).std <= most * least
    result = mechanism.privacy().promise.epsilon
    assert result is not None
    assert 1 - 2e-6 <= result <= 1.0


@pytest.mark.parametrize("norm", [*BALLS, "linf"])
def test_calibrated_variances_have_few_bits(norm: Norm) -> None:
    for name in ("central-gaussian", "local-gaussian", "distributed-discrete-gaussian", "distributed-skellam"):
        for dimension in (1, 3):
            variance: float = planned_mechanism(name, 0.7, 1e-5, 200, dimension, norm=norm).variance  # type: ignore[arg-type,union-attr]
            assert math.ldexp(math.frexp(variance)[0], SNAPPED_BITS).is_integer()


def test_rounding_noise_is_what_it_is_said_to_be() -> None:
    """Discrete noise in a ball has the ε of continuous noise whose variance is less by LATTICE."""
    grid = Grid(5, 3, "l2")
    epsilon = lattice_epsilon(grid, 200.0, 1e-6)
    assert rounded_log_delta(grid, 200.0 - LATTICE, epsilon) == pytest.approx(math.log(1e-6), abs=1e-6)
