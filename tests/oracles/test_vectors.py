"""Tests vectors in ℓ₁, ℓ₂ and ℓ∞ balls: the rounding's share of their sensitivity, and their promises."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.techniques.sensitivity import laplace_loss, laplace_scale, squared_l2
from distrust.common.dp.mechanisms import (
    MECHANISMS,
    Mechanism,
    MechanismSpec,
    check_spec,
    plan,
)
from distrust.common.dp.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.wire import Norm

NORMS: tuple[Norm, ...] = ("l1", "l2", "linf")
CLIENTS, FLOOR = 300, 240
ORDER = {"l1": 1, "l2": 2, "linf": np.inf}


def length(vectors: NDArray[Any], norm: Norm) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(vectors, ord=ORDER[norm], axis=-1))


def needs(name: str) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": name,
        "epsilon": 1.0,
        **({"batches": 6} if MECHANISMS[name].takes_batches else {}),
    }
    try:
        check_spec(MechanismSpec.model_validate({**fields, "delta": 1e-6}), BoundedVector(dimension=5))
    except BadParameter:
        return fields
    return {**fields, "delta": 1e-6}


def serves(name: str, norm: Norm) -> bool:
    try:
        check_spec(MechanismSpec.model_validate(needs(name)), BoundedVector(dimension=5, norm=norm))
    except BadParameter:
        return False
    return True


VECTORS = [
    pytest.param(name, norm, id=f"{name}-{norm}")
    for name in MECHANISMS
    for norm in NORMS
    if name not in ("identity", "relaxed-secagg-shuffle") and serves(name, norm)
]


def planned_mechanism(name: str, norm: Norm, bound: float = 2.0, **fields: object) -> Mechanism:
    spec = MechanismSpec.model_validate({**needs(name), **fields})
    statistic = BoundedVector(dimension=5, norm=norm, bound=bound)
    return plan(
        spec, clients=CLIENTS, min_survivors=FLOOR, min_honest=FLOOR, overflow_probability=1e-9, statistic=statistic
    )


def inside(count: int, norm: Norm, bound: float = 2.0) -> NDArray[np.float64]:
    raw = np.random.default_rng(8).uniform(-1, 1, (count, 5))
    return raw / length(raw, norm)[:, None] * bound


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("precision", [1, 2, 3, 4])
def test_no_two_rounded_vectors_are_farther_apart_than_the_bound(norm: Norm, precision: int) -> None:
    """Three coordinates, enumerated: all rounded differences that real differences within g can become."""
    worst = 0
    for shift in itertools.product(range(precision + 1), repeat=3):
        least = np.maximum(np.array(shift) - 1 + 1e-9, 0)  # the smallest real difference that rounds up to it
        if length(least, norm) <= precision:
            worst = max(worst, sum(s * s for s in shift))
    assert worst <= squared_l2(precision, 3, norm)
    assert squared_l2(precision, 3, norm) <= worst + 3


@given(st.sampled_from(NORMS), st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_random_pairs_stay_within_the_rounded_bound(norm: Norm, dimension: int, precision: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    move = random.standard_normal(dimension)
    move *= precision / length(move, norm)
    if np.abs(move).max() > precision:
        return
    start, common = random.uniform(0, 1, dimension), random.uniform(0, 1, dimension)
    shift = np.floor(start + move + common) - np.floor(start + common)
    assert int((shift**2).sum()) <= squared_l2(precision, dimension, norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("precision", "scale"), [(2, 0.7), (3, 2.0), (8, 5.0)])
def test_the_laplace_loss_with_rounding_covers_every_pair(norm: Norm, precision: int, scale: float) -> None:
    """For two coordinates on a grid of tenths, by the log-ratio of the exact laws of rounding and noise, by outcome."""

    def law(w: float) -> NDArray[np.float64]:
        whole, up = math.floor(w), w - math.floor(w)
        y = np.arange(-12, precision + 13)
        mass = (1 - up) * np.exp(-np.abs(y - whole) / scale) + up * np.exp(-np.abs(y - whole - 1) / scale)
        return np.asarray(np.log(mass))

    ticks = [i / 10 for i in range(10 * precision + 1)]
    losses = dict.fromkeys(ticks, 0.0)
    for a, b in itertools.product(ticks, ticks):
        d = round(abs(a - b), 1)
        losses[d] = max(losses[d], float(np.abs(law(a) - law(b)).max()))
    both = [losses[a] + losses[b] for a in ticks for b in ticks if length(np.array([a, b]), norm) <= precision + 1e-9]
    bound = laplace_loss(scale, precision, 2, norm)
    assert max(both) <= bound * (1 + 1e-12)
    if norm != "l2":  # in the other norms the bound is almost reached
        assert bound <= max(both) * 1.02


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_the_laplace_scale_is_the_least_that_keeps_epsilon(norm: Norm, epsilon: float) -> None:
    scale = laplace_scale(epsilon, 50, 7, norm)
    assert laplace_loss(scale, 50, 7, norm) <= epsilon < laplace_loss(scale * (1 - 1e-6), 50, 7, norm)


@pytest.mark.parametrize(("name", "norm"), VECTORS)
@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.few(28)
def test_the_promise_is_kept_in_every_norm(name: str, norm: Norm, calibration: str) -> None:
    """`paper` noise may miss its claim, by a fifth at most on these grids. The promise is computed, so it holds."""
    if name == "shuffled-gaussian" and calibration == "paper":
        with pytest.raises(BadParameter, match=r"must be at most √\(ln\(2/δ\)/B\)"):
            planned_mechanism(name, norm, calibration=calibration, epsilon=0.9)
        return
    if calibration not in MECHANISMS[name].calibrations:
        with pytest.raises(BadParameter, match="must be exact"):
            planned_mechanism(name, norm, calibration=calibration, epsilon=0.9)
        return
    mechanism = planned_mechanism(name, norm, calibration=calibration, epsilon=0.9)
    promise = mechanism.privacy().promise
    spent = promise.epsilon
    if name in ("distributed-skellam", "distributed-discrete-gaussian") and calibration == "paper":
        # their theorems say RDP(α) ≤ αε²/2, for every δ that it is shown at
        spent = math.sqrt(max(2 * one / order for order, one in promise.rdp))
    assert spent is not None
    assert spent <= 0.9 * (1 + 2e-6 if calibration == "exact" else 1.2)
    if calibration == "exact" and isinstance(mechanism, ShuffledBinomial):
        fewer = mechanism.model_copy(update={"coins": mechanism.coins - 1}).privacy().promise.epsilon
        assert fewer is not None
        assert fewer > 0.9  # with one bit less the claim fails
    elif calibration == "exact":
        assert spent == pytest.approx(0.9, rel=1e-5)


@pytest.mark.parametrize("name", ["distributed-skellam", "distributed-discrete-gaussian"])
@pytest.mark.parametrize("norm", NORMS)
def test_without_a_delta_the_noise_is_the_least_that_keeps_every_order(name: str, norm: Norm) -> None:
    promise = planned_mechanism(name, norm, delta=None, epsilon=0.9).privacy().promise
    assert math.sqrt(max(2 * one / order for order, one in promise.rdp)) == pytest.approx(0.9, rel=1e-5)


@pytest.mark.parametrize(("name", "norm"), VECTORS)
def test_sums_of_vectors_come_back(name: str, norm: Norm) -> None:
    """Each coordinate is within the 1e-10 quantile of the noise plus 7 deviations of the rounding."""
    mechanism = planned_mechanism(name, norm)
    data = inside(260, norm)
    messages = mechanism.randomize(data, UnsafeSeededStream(1))
    total = np.array([sum(map(int, column)) % mechanism.modulus for column in messages.T], dtype=np.uint64)
    room = mechanism.error(260).quantile(1e-10) + 7 * math.sqrt(260) * 4 / mechanism.precision / 2
    assert np.abs(mechanism.estimate(total, 260, UnsafeSeededStream(2)) - data.sum(axis=0)).max() < room


@pytest.mark.parametrize(("name", "norm"), VECTORS)
def test_too_long_vectors_are_shortened_before_anything_is_drawn_from_them(name: str, norm: Norm) -> None:
    mechanism = planned_mechanism(name, norm)
    wild = np.array([[1e300, -1e300, 3.0, 0.0, 9.0], [0.1, 0.1, 0.0, -0.1, 0.0], [5.0, 5.0, 5.0, 5.0, 5.0]])
    clamped = mechanism.clamp(wild)
    assert length(clamped, norm) == pytest.approx(np.minimum(length(clamped, norm), 2.0))
    assert length(clamped, norm).max() <= 2.0
    assert clamped[1] == pytest.approx(wild[1])
    assert clamped[2] == pytest.approx(np.full(5, 2.0 / {"l1": 5, "l2": math.sqrt(5), "linf": 1}[norm]))
    first, second = (mechanism.randomize(x, UnsafeSeededStream(3)) for x in (wild, clamped))
    assert np.array_equal(first, second)


def test_short_polya_cohorts_of_vectors_are_bounded_by_their_spread() -> None:
    """With half the shares the bound is between one coordinate's loss and that of the whole box."""
    mechanism = planned_mechanism("distributed-polya", "l1")
    half, whole = mechanism.privacy(FLOOR // 2).promise.epsilon, mechanism.privacy().promise.epsilon
    box = planned_mechanism("distributed-polya", "linf", precision=mechanism.precision)
    assert whole == pytest.approx(1.0)
    assert half is not None
    assert half > 1.5
    assert box.privacy(FLOOR // 2).promise.epsilon is not None


def test_one_coordinate_is_the_same_in_every_norm() -> None:
    assert squared_l2(9, 1, "l1") == squared_l2(9, 1, "l2") == squared_l2(9, 1, "linf") == 81
    assert laplace_loss(3.0, 9, 1, "l2") == laplace_loss(3.0, 9, 1, "linf") == 3.0
    assert Reward().norm == "linf"
