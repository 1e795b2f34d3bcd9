"""Tests the promises that every mechanism keeps, in both calibrations, via every intermediary that it allows."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from distrust.common.bandit.statistics import Reward
from distrust.common.dp.mechanisms import (
    MECHANISMS,
    AnyMechanism,
    Mechanism,
    MechanismSpec,
    plan,
)
from distrust.common.dp.mechanisms.central.additive import UnsafeIdentity
from distrust.common.errors import BadParameter, TooSmall
from distrust.common.modular import sum_rows
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.wire import Message

EXACT_ONLY = tuple(name for name, kind in MECHANISMS.items() if kind.calibrations == ("exact",))

REAL = tuple(name for name, kind in MECHANISMS.items() if kind.takes_noise)

NEEDS: dict[str, dict[str, float]] = {
    "identity": {},
    "central-laplace-discrete": {"epsilon": 1.0},
    "central-laplace": {"epsilon": 1.0},
    "central-gaussian": {"epsilon": 0.9, "delta": 1e-6},
    "local-laplace-discrete": {"epsilon": 1.0},
    "local-laplace": {"epsilon": 1.0},
    "local-sphere": {"epsilon": 1.0},
    "local-gaussian": {"epsilon": 0.9, "delta": 1e-6},
    "distributed-polya": {"epsilon": 1.0},
    "distributed-skellam": {"epsilon": 1.0, "delta": 1e-6},
    "distributed-discrete-gaussian": {"epsilon": 1.0, "delta": 1e-6},
    "shuffled-binomial": {"epsilon": 1.0, "delta": 1e-6},
    "shuffled-gaussian": {"epsilon": 0.1, "delta": 0.02},  # CTX Theorem B.1 asks for B ≥ 16 e^ε₀ ln(4/δ)
    "shuffled-laplace": {"epsilon": 0.3, "delta": 1e-6},
    "shuffled-sphere": {"epsilon": 0.3, "delta": 1e-6},
    "relaxed-secagg-shuffle": {"epsilon": 1.0},
    "tree": {"epsilon": 0.9, "delta": 1e-6, "batches": 20},
    "prefix-factorization": {"epsilon": 0.9, "delta": 1e-6, "batches": 20},
}
SLOW = {"shuffled-gaussian", "relaxed-secagg-shuffle"}  # seconds for each new size of cohort
CLIENTS, FLOOR, OVERFLOW_PROBABILITY = 300, 240, 1e-9


@cache
def planned_mechanism(name: str, calibration: str, intermediary: str, noise: str = "grid") -> Mechanism:
    fields = {"name": name, "calibration": calibration, "via": intermediary, **NEEDS[name]}
    spec = MechanismSpec.model_validate(fields if noise == "grid" else {**fields, "noise": noise})
    return plan(
        spec,
        clients=CLIENTS,
        min_survivors=FLOOR + 20,
        min_honest=FLOOR,
        overflow_probability=OVERFLOW_PROBABILITY,
        statistic=Reward(),
    )


@pytest.fixture
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    """Return the mechanism of these words, planned for the first test that needs it, which may take a second."""
    return planned_mechanism(*request.param)


ALL = [
    pytest.param((name, calibration, intermediary), id=f"{name}-{calibration}-{intermediary}")
    for name, kind in MECHANISMS.items()
    for calibration in (("exact",) if name in EXACT_ONLY else ("exact", "paper"))
    for intermediary in kind.vias
] + [pytest.param((name, "exact", "shuffler", "continuous"), id=f"{name}-continuous") for name in REAL]
every = pytest.mark.parametrize("mechanism", ALL, indirect=True)
# These send one of two points that they drew first (test_sphere). They add no noise to the data.
ANSWERS = ("local-sphere", "shuffled-sphere")
ADDITIVE = [case for case in ALL if not str(case.id).startswith(ANSWERS)]
ADAPTER: TypeAdapter[Mechanism] = TypeAdapter(AnyMechanism)


def rewards(count: int = CLIENTS) -> NDArray[np.float64]:
    return np.random.default_rng(5).random((count, 1))


def opened(mechanism: Mechanism, messages: NDArray[np.uint64], seed: int) -> float:
    total = np.array([sum(messages[:, 0].tolist()) % mechanism.modulus], dtype=np.uint64)
    return float(mechanism.estimate(total, len(messages), UnsafeSeededStream(seed, "analyzer"))[0])


def errors(mechanism: Mechanism, data: NDArray[np.float64], seed: str) -> NDArray[np.float64]:
    """Return the errors of the estimates of 400 cohorts with the same data.

    They are drawn together: rows of a draw are independent, and tests/unit/common/dp/mechanisms/test_drawn_together.py
    says that they give what cohorts get one by one.
    """
    cohorts, count = 400, len(data)
    messages = mechanism.randomize(np.tile(data, (cohorts, 1)), UnsafeSeededStream(5, seed))
    totals = sum_rows(messages.reshape(cohorts, count, 1), mechanism.modulus)
    noise = mechanism.server_randomness(UnsafeSeededStream(5, seed, "analyzer"), cohorts)
    estimates: NDArray[np.float64] = mechanism.estimate_with(totals, count, noise)[:, 0]
    return estimates - float(data.sum())


@every
@pytest.mark.few(20)
def test_messages_are_numbers_below_the_modulus(mechanism: Mechanism) -> None:
    messages = mechanism.randomize(rewards(), UnsafeSeededStream(1))
    assert messages.shape == (CLIENTS, 1)
    assert messages.dtype == np.uint64
    assert int(messages.max()) < mechanism.modulus
    assert mechanism.modulus <= 2**mechanism.bits or mechanism.width is not None


@every
def test_the_estimate_is_unbiased_with_the_stated_deviation(mechanism: Mechanism) -> None:
    """400 cohorts; the mean of the errors within 5.5 standard errors: false alarm below 1e-7 a case."""
    for survivors in (FLOOR, CLIENTS):
        data, law = rewards(survivors), mechanism.error(survivors)
        deviation = math.hypot(law.std, math.sqrt(survivors) / (2 * mechanism.precision))
        result = errors(mechanism, data, "mean")
        assert abs(np.mean(result)) <= 5.5 * deviation / 20 + 1e-9, survivors
        assert np.std(result) <= 1.5 * deviation + 1e-9, survivors
        assert np.std(result) >= 0.6 * law.std, survivors


@every
def test_wider_than_the_quantile_is_rare(mechanism: Mechanism) -> None:
    """At most 21 of 400 errors of an all-zero cohort are beyond the 1% quantile: false alarm below 1e-9."""
    far = mechanism.error(CLIENTS).quantile(0.01) + 1e-9
    assert np.count_nonzero(abs(errors(mechanism, np.zeros((CLIENTS, 1)), "tail")) > far) <= 21


@every
def test_quantiles_fall_and_stay_below_the_assumed_tail(mechanism: Mechanism) -> None:
    law = mechanism.error(CLIENTS)
    sigma, h = law.sub_exponential
    before = math.inf
    for p in (1e-12, 1e-9, 1e-6, 1e-3, 0.1):
        q = law.quantile(p)
        assert q <= before
        assert q <= sigma * math.sqrt(math.log(2 / p)) + h * math.log(2 / p) + mechanism_step(mechanism)
        before = q


def mechanism_step(mechanism: Mechanism) -> float:
    return (mechanism.high - mechanism.low) / mechanism.precision


@every
def test_the_wire_gives_back_the_same_mechanism_with_the_same_draws(mechanism: Mechanism) -> None:
    text = mechanism.model_dump_json()
    back = ADAPTER.validate_json(text)
    assert back == mechanism
    assert type(back) is type(mechanism)
    first, again = (m.randomize(rewards(), UnsafeSeededStream(9)) for m in (mechanism, back))
    assert np.array_equal(first, again)
    assert ADAPTER.validate_python(mechanism.model_dump(mode="json")) == mechanism


class Carrier(Message):
    """Any message that holds a mechanism."""

    mechanism: AnyMechanism


@every
def test_the_mechanism_travels_inside_a_message(mechanism: Mechanism) -> None:
    carrier = Carrier(mechanism=mechanism)
    assert Carrier.model_validate_json(carrier.model_dump_json()) == carrier


@every
def test_below_the_floor_nothing_is_estimated(mechanism: Mechanism) -> None:
    total = np.zeros(1, dtype=np.uint64)
    with pytest.raises(TooSmall, match="nothing is released"):
        mechanism.estimate(total, FLOOR - 1, UnsafeSeededStream(1))
    with pytest.raises(BadParameter, match="survivors"):
        mechanism.estimate(total, CLIENTS + 1, UnsafeSeededStream(1))


@every
def test_a_total_that_cannot_be_one_is_refused(mechanism: Mechanism) -> None:
    with pytest.raises(BadParameter, match="total"):
        mechanism.estimate(np.array([mechanism.modulus], dtype=np.uint64), CLIENTS, UnsafeSeededStream(1))
    with pytest.raises(BadParameter, match="total"):
        mechanism.estimate(np.zeros(2, dtype=np.uint64), CLIENTS, UnsafeSeededStream(1))


@every
def test_nan_and_infinities_are_refused(mechanism: Mechanism) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        data = rewards()
        data[17, 0] = bad
        with pytest.raises(BadParameter, match="vectors"):
            mechanism.randomize(data, UnsafeSeededStream(1))
    with pytest.raises(BadParameter, match="vectors"):
        mechanism.randomize(np.zeros((CLIENTS, 2)), UnsafeSeededStream(1))


@every
def test_values_outside_the_range_count_as_its_ends(mechanism: Mechanism) -> None:
    outside = np.array([[-3.0], [0.0], [1.0], [7.0]])
    inside = np.array([[0.0], [0.0], [1.0], [1.0]])
    first, second = (mechanism.randomize(x, UnsafeSeededStream(2)) for x in (outside, inside))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("mechanism", ADDITIVE, indirect=True)
def test_the_noise_is_drawn_before_the_data_is_seen(mechanism: Mechanism) -> None:
    """The noise of a message is the same for every value on the grid, the client's own and the others'."""
    low, high = np.zeros((50, 1)), np.ones((50, 1))
    first, second = (mechanism.randomize(x, UnsafeSeededStream(4)).astype(object) for x in (low, high))
    assert set(((second - first) % mechanism.modulus).ravel()) == {mechanism.precision}


@every
def test_more_survivors_never_weaken_and_colluders_never_help(mechanism: Mechanism) -> None:
    def epsilon(survivors: int | None = None, colluders: int = 0) -> float:
        value = mechanism.privacy(survivors, colluders).promise.epsilon
        return math.inf if value is None else value

    assert epsilon(CLIENTS) <= epsilon() * (1 + 1e-9)
    assert epsilon(FLOOR + 7, 7) == pytest.approx(epsilon())
    assert epsilon(FLOOR, 60) >= epsilon() * (1 - 1e-9)


UNCOVERED: tuple[dict[str, object], ...] = (
    {"modulus": 5},  # below the sum
    {"floor": CLIENTS + 1},
    {"low": 2.0},  # an empty range
    {"wrap": 0.0},
    {"precision": 0},
    {"surprise": 1},
    {"name": "nonsense"},
)


@every
def test_the_wire_refuses_what_no_theorem_covers(mechanism: Mechanism) -> None:
    document = mechanism.model_dump(mode="json")
    for change in UNCOVERED:
        with pytest.raises(ValidationError):
            ADAPTER.validate_python({**document, **change})


@every
def test_the_wire_refuses_an_epsilon_out_of_range(mechanism: Mechanism) -> None:
    if mechanism.name == "identity":
        return
    for epsilon in (-1.0, 0.0, 1e-9, 1e9):
        with pytest.raises(ValidationError, match="epsilon"):
            ADAPTER.validate_python({**mechanism.model_dump(mode="json"), "epsilon": epsilon})


@every
def test_the_wire_refuses_a_delta_out_of_range_another_calibration_and_too_long_a_stream(mechanism: Mechanism) -> None:
    changes: list[tuple[str, object]] = []
    if mechanism.takes_delta is not None:
        changes += [("delta", delta) for delta in (-1e-6, 0.0, 1e-19, 0.5)]
        changes += [("delta", None)] if mechanism.takes_delta == "needed" else []
    changes += [("calibration", "paper")] if mechanism.calibrations == ("exact",) else []
    changes += [("modulus", 2**62 // 20 + 1)] if mechanism.takes_batches else []
    for field, value in changes:
        with pytest.raises(ValidationError, match=field):
            ADAPTER.validate_python({**mechanism.model_dump(mode="json"), field: value})


@every
def test_planned_cohorts_of_ends_stay_within_the_tail(mechanism: Mechanism) -> None:
    far = mechanism.error(CLIENTS).quantile(1e-12) + 1e-9
    for value in (mechanism.low, mechanism.high):
        messages = mechanism.randomize(np.full((CLIENTS, 1), value), UnsafeSeededStream(6))
        assert abs(opened(mechanism, messages, 6) - CLIENTS * value) <= far


@given(st.lists(st.integers(0, 1), min_size=1, max_size=60), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_identity_adds_zeros_and_ones_exactly(values: list[int], seed: int) -> None:
    n = len(values)
    mechanism = plan(
        MechanismSpec(name="identity"),
        clients=n,
        min_survivors=n,
        min_honest=n,
        overflow_probability=0.5,
        statistic=Reward(),
    )
    assert isinstance(mechanism, UnsafeIdentity)
    assert opened(
        mechanism, mechanism.randomize(np.array([values], dtype=float).T, UnsafeSeededStream(seed)), 0
    ) == sum(values)


@given(
    st.sampled_from(sorted(set(MECHANISMS) - SLOW)),
    st.integers(2, 40),
    st.floats(0.05, 5),
    st.integers(1, 64),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_zero_and_full_cohorts_stay_within_the_tail(name: str, n: int, epsilon: float, g: int, seed: int) -> None:
    """For any parameters, no estimate misses by more than the 1e-12 quantile."""
    fields: dict[str, object] = {"name": name, "precision": g}
    if name != "identity":
        fields["epsilon"] = epsilon
    if MECHANISMS[name].takes_delta == "needed":
        fields["delta"] = 1e-3
    if MECHANISMS[name].takes_batches:
        fields["batches"] = 9
    mechanism = plan(
        MechanismSpec.model_validate(fields),
        clients=n,
        min_survivors=n,
        min_honest=n,
        overflow_probability=1e-12,
        statistic=Reward(),
    )
    far = mechanism.error(n).quantile(1e-12) + 1e-9
    for value in (0.0, 1.0):
        got = opened(mechanism, mechanism.randomize(np.full((n, 1), value), UnsafeSeededStream(seed)), seed)
        assert abs(got - n * value) <= far
