"""Tests that a statistic inside its ball pays only for what its clients can move, and that parties check it."""

import math
from fractions import Fraction

import pytest
from pydantic import ValidationError

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.accounting.techniques.sensitivity import steps_moved
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism, MechanismSpec, plan

CONTEXTS = ContextualSum(features=2)
BALL = BoundedVector(dimension=CONTEXTS.dimension, bound=CONTEXTS.radius)
GAUSSIAN = (
    "central-gaussian",
    "local-gaussian",
    "distributed-discrete-gaussian",
    "distributed-skellam",
    "shuffled-gaussian",
    "shuffled-binomial",
    "tree",
    "prefix-factorization",
)


def planned(name: str, statistic: ContextualSum | BoundedVector) -> Mechanism:
    words = MechanismSpec(
        name=name, epsilon=1.0, delta=1e-2, precision=40, batches=4 if MECHANISMS[name].takes_batches else None
    )
    return plan(words, clients=50, min_survivors=50, min_honest=50, overflow_probability=1e-9, statistic=statistic)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_noise_for_contexts_is_three_quarters_of_the_balls_and_keeps_the_promise(name: str) -> None:
    """√4.5 is three quarters of the diameter 2√2. Bits come in whole numbers, hence the tolerance.

    Among shuffled messages the others' distance from the middle of the ball counts as well, which is the same for both.
    """
    ours, balls = planned(name, CONTEXTS), planned(name, BALL)
    assert (ours.moved, balls.moved) == (30, None)
    share = 0.92 if name == "shuffled-gaussian" else 0.75
    assert ours.error(50).std / balls.error(50).std == pytest.approx(share, abs=0.04)
    promise = ours.privacy().promise
    assert promise.epsilon is not None
    assert promise.epsilon <= 1.0 + 1e-9
    assert promise.epsilon == pytest.approx(1.0, rel=0.05)


def test_steps_are_rounded_up_in_whole_numbers() -> None:
    assert CONTEXTS.squared_share == Fraction(9, 16)
    assert [steps_moved(g, CONTEXTS.squared_share) for g in (1, 2, 3, 4, 1000)] == [1, 2, 3, 3, 750]
    for bound in (0.3, 0.7, 1.3, 3.0):
        for blocks in (1, 4):
            one = ContextualSum(features=3, blocks=blocks, rewards=[-bound, bound])
            assert math.sqrt(one.squared_share) * 2 * one.radius == pytest.approx(one.sensitivity, rel=1e-12)
    single = ContextualSum(features=1, rewards=[-0.3, 0.3])
    assert math.sqrt(single.squared_share) * 2 * single.radius >= single.sensitivity


def test_the_steps_are_on_the_wire_only_where_they_count_and_never_above_the_grid() -> None:
    ours, balls = planned("local-gaussian", CONTEXTS), planned("local-gaussian", BALL)
    assert "moved" not in balls.model_dump_json()
    assert type(ours).model_validate_json(ours.model_dump_json()) == ours
    with pytest.raises(ValidationError, match="at most precision = 40"):
        type(ours)(**{**ours.model_dump(), "moved": 41})
    with pytest.raises(ValidationError, match="in the norm l2"):
        type(ours)(**{**ours.model_dump(), "norm": "linf"})
