"""Tests that vectors are reported unchanged, and that bad ones are refused."""

import math

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from distrust.common.bandit.statistics import BoundedVector, Reward, Statistic
from distrust.common.errors import BadParameter


def test_vectors_pass_unchanged() -> None:
    data = np.array([[0.1, -0.2], [0.0, 1.0]])
    assert np.array_equal(BoundedVector(dimension=2).vectors(data), data)


@pytest.mark.parametrize(
    "data", [np.zeros(2), np.zeros((4, 3)), np.array([[math.nan, 0.0]]), np.array([[0, math.inf]])]
)
def test_other_shapes_nan_and_infinities_are_refused(data: np.ndarray) -> None:
    with pytest.raises(BadParameter, match="vectors"):
        BoundedVector(dimension=2).vectors(data)


def test_the_range_is_the_bound_on_both_sides() -> None:
    statistic = BoundedVector(dimension=3, norm="l1", bound=2.5)
    assert (statistic.low, statistic.high) == (-2.5, 2.5)


@pytest.mark.parametrize("words", [{"dimension": 0}, {"bound": 0.0}, {"bound": math.inf}, {"norm": "l3"}])
def test_what_is_no_ball_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BoundedVector.model_validate({"dimension": 2, **words})


@pytest.mark.parametrize("statistic", [Reward(), BoundedVector(dimension=4, norm="l1")])
def test_the_wire_tells_statistics_apart(statistic: Reward | BoundedVector) -> None:
    adapter: TypeAdapter[Reward | BoundedVector] = TypeAdapter(Statistic)
    assert adapter.validate_json(statistic.model_dump_json()) == statistic
