"""Tests labelled bits with an escape mode, as a mechanism."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from distrust.common.dp.mechanisms.families.base import MechanismSpec
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.shuffled.pure import RelaxedSecaggShuffle
from distrust.common.errors import BadParameter, TooSmall
from distrust.common.randomness import UnsafeSeededStream

OVERFLOW_PROBABILITY = 1e-6


def planned(clients: int = 64, min_honest: int | None = None, dimension: int = 1, **words: Any) -> RelaxedSecaggShuffle:
    spec = MechanismSpec.model_validate({"name": "distributed-polya", "epsilon": 1.0, "precision": 1, **words})
    cohort = CohortParams(
        clients, min_honest or clients, dimension, -1.0, 3.0, OVERFLOW_PROBABILITY, spec.calibration, "shuffler"
    )
    return RelaxedSecaggShuffle.plan(spec, cohort)


@pytest.fixture(scope="module")
def stream() -> UnsafeSeededStream:
    return UnsafeSeededStream(3, "relaxed")


def spent(mechanism: RelaxedSecaggShuffle, *case: int) -> float:
    epsilon = mechanism.privacy(*case).promise.epsilon
    assert epsilon is not None
    return epsilon


def changed(mechanism: RelaxedSecaggShuffle, **fields: Any) -> RelaxedSecaggShuffle:
    return RelaxedSecaggShuffle.model_validate({**mechanism.model_dump(), **fields})


@pytest.mark.parametrize("dimension", [1, 3])
@pytest.mark.parametrize("precision", [1, 5])
def test_the_sum_is_right_up_to_the_noise_that_was_promised(
    stream: UnsafeSeededStream, dimension: int, precision: int
) -> None:
    """Each coordinate: |error| ≤ quantile(1e-9) but for rounding, which is exact on the grid; alarms at 7 · 1e-6."""
    mechanism = planned(dimension=dimension, precision=precision)
    steps = np.arange(64 * dimension).reshape(64, dimension) % (precision + 1)
    vectors: NDArray[np.float64] = -1.0 + steps.astype(np.float64) * mechanism.step
    total = mechanism.randomize(vectors, stream).sum(axis=0, dtype=np.uint64) % np.uint64(mechanism.modulus)
    error = mechanism.estimate(total, 64, stream) - vectors.sum(axis=0)
    assert np.all(np.abs(error) <= mechanism.error(64).quantile(1e-9) + 1e-9)


def test_messages_follow_the_law_that_was_certified(stream: UnsafeSeededStream) -> None:
    """Chi-square of 200,000 answers of one value with frequent escapes, false alarm 1e-6."""
    mechanism = changed(planned(), wrap=0.999, escape=0.01)
    design, count = mechanism.design, 200_000
    one = design.one_sided() * (1 - design.overflow())
    law = np.zeros(design.length + 1)
    noise = np.convolve(one, one[::-1]) * (1 - design.escape)
    start = design.center + 1 - design.reach
    law[start : start + noise.size] = noise
    law += (1 - law.sum()) / (design.length + 1)
    answers = mechanism.randomize(np.full((count, 1), 3.0), stream).ravel().astype(np.int64)
    seen = np.bincount(answers, minlength=design.length + 1)
    assert stats.chisquare(seen, law * count).pvalue > 1e-6


def test_an_escape_is_uniform_over_all_counts_and_forgets_the_value(stream: UnsafeSeededStream) -> None:
    mechanism = changed(planned(), wrap=0.999, escape=0.015)
    high = mechanism.randomize(np.full((400_000, 1), 3.0), stream).ravel()
    away = np.bincount(high.astype(np.int64), minlength=mechanism.length + 1)
    ends = np.concatenate((away[:3], away[-3:]))  # beyond c ± W hardly any client is but by escape
    expected = 400_000 * 0.015 / (mechanism.length + 1)
    assert stats.poisson.sf(ends.max(), expected) > 1e-7
    assert stats.poisson.cdf(ends.min(), expected) > 1e-7


def test_half_way_values_are_rounded_without_bias(stream: UnsafeSeededStream) -> None:
    """10⁵ values of 1 in [-1, 3] at g = 1: mean of x̂ 1/2 to within 5.3 standard deviations, false alarm 1e-7."""
    mechanism = planned()
    count = 100_000
    ones = mechanism.randomize(np.ones((count, 1)), stream).astype(np.float64) - mechanism.design.center
    spread = math.sqrt((0.25 + mechanism.design.scale**2 * 2) / count)
    assert abs(np.median(ones) - 0.5) <= 0.5
    kept = ones[np.abs(ones - 0.5) <= mechanism.reach]
    assert abs(kept.mean() - 0.5) <= 5.3 * spread


def test_every_count_can_be_sent_in_its_bits(stream: UnsafeSeededStream) -> None:
    mechanism = changed(planned(dimension=2), wrap=0.999, escape=0.003)
    sent = mechanism.randomize(np.zeros((5000, 2)), stream)
    assert sent.max() <= mechanism.width
    assert mechanism.bits == 2 * mechanism.width
    assert mechanism.width == 2 * mechanism.reach + mechanism.precision


def test_the_guarantee_is_pure_and_within_what_was_asked_for() -> None:
    guarantee = planned().privacy().promise
    assert (guarantee.kind, guarantee.model, guarantee.delta) == ("pure", "shuffle", 0.0)
    assert guarantee.epsilon is not None
    assert 0.85 < guarantee.epsilon <= 1.0
    assert guarantee.claimed == 1.0


def test_colluders_and_losses_show_in_the_guarantee() -> None:
    mechanism = planned(clients=100, min_honest=80)
    epsilons = [spent(mechanism, *case) for case in ((100, 0), (80, 0), (80, 20), (80, 60), (80, 79))]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] > 2
    assert mechanism.privacy(80, 80).promise.kind == "none"


def test_a_vector_splits_its_epsilon_over_the_labels() -> None:
    one, three = spent(planned(epsilon=0.5)), spent(planned(epsilon=1.5, dimension=3))
    assert three == pytest.approx(3 * one, rel=0.05)
    assert three <= 1.5


def test_the_value_survives_the_wire() -> None:
    mechanism = planned(dimension=2)
    assert RelaxedSecaggShuffle.model_validate_json(mechanism.model_dump_json()) == mechanism


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", 65),
        ("reach", 10**4),
        ("length", 44),
        ("escape", 0.5),
        ("via", "aggregator"),
        ("calibration", "paper"),
        ("modulus", 65),
    ],
)
def test_a_value_that_contradicts_itself_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        changed(planned(), **{field: value})


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"calibration": "paper"}, "mechanism.calibration"),
        ({"epsilon": None}, "mechanism.epsilon"),
        ({"epsilon": 0.001, "precision": 9}, "epsilon"),
    ],
)
def test_words_without_a_certified_design_are_refused(words: dict[str, Any], field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        planned(**words)
    assert caught.value.field == field


def test_a_short_cohort_is_not_opened(stream: UnsafeSeededStream) -> None:
    total: NDArray[np.uint64] = np.array([1000], dtype=np.uint64)
    with pytest.raises(TooSmall):
        planned(clients=64, min_honest=60).estimate(total, 59, stream)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_refused(stream: UnsafeSeededStream, value: float) -> None:
    with pytest.raises(BadParameter, match="vectors"):
        planned().randomize(np.array([[value]]), stream)
