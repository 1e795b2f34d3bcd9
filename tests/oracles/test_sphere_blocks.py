"""Tests `local-sphere` on blocks: one ε protects both the block that a client fills and the block's values."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec, plan
from distrust.common.dp.mechanisms.local.sphere import LocalSphere
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream

ARMS = 3


def planned_mechanism(features: int, epsilon: float = 1.0) -> LocalSphere:
    statistic = ContextualSum(features=features, blocks=ARMS, moments=False, residual="logistic")
    words = MechanismSpec(name="local-sphere", epsilon=epsilon)
    size = {"clients": 1, "min_survivors": 1, "min_honest": 1}
    mechanism: Mechanism = plan(words, **size, overflow_probability=1e-9, statistic=statistic)
    assert isinstance(mechanism, LocalSphere)
    return mechanism


def filled(mechanism: LocalSphere, arm: int, block: NDArray[np.float64]) -> NDArray[np.float64]:
    vector = np.zeros(mechanism.dimension)
    vector[arm * len(block) : (arm + 1) * len(block)] = block
    return vector


def law(mechanism: LocalSphere, vector: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """Return the exact law of the message of a vector with blocks of one number: each block is a fair or biased coin.

    A block of value x shows its upper end with probability 1/2 + τx/(2R), τ = tanh(ε/2).
    """
    tau = math.tanh(mechanism.epsilon / 2)
    chances = 0.5 + tau * vector / (2 * mechanism.reach)
    outcomes = itertools.product((0, 1), repeat=len(vector))
    return {one: math.prod(c if up else 1 - c for c, up in zip(chances, one, strict=True)) for one in outcomes}


def test_the_pulled_arm_and_the_gradient_together_cost_epsilon_exactly() -> None:
    """By enumeration no two clients' messages differ by more than e^ε, and some pair differs by e^ε."""
    mechanism = planned_mechanism(1, 1.3)
    ends = [filled(mechanism, arm, np.array([x])) for arm in range(ARMS) for x in (-1, -0.3, 0, 1)]
    ends = [mechanism.reach * end for end in ends]
    laws = [law(mechanism, end) for end in ends]
    worst = max(math.log(a[one] / b[one]) for a in laws for b in laws for one in a)
    assert worst == pytest.approx(1.3, rel=1e-12)
    assert mechanism.privacy().promise.epsilon == pytest.approx(1.3, rel=1e-9)


def test_messages_have_the_law_that_is_enumerated() -> None:
    """χ² test of 60,000 messages over eight outcomes: false alarm 1e-9."""
    mechanism, count = planned_mechanism(1), 60_000
    vector = mechanism.reach * filled(mechanism, 1, np.array([0.8]))
    rows = mechanism.randomize(np.tile(vector, (count, 1)), UnsafeSeededStream(4, "sphere"))
    expected = law(mechanism, vector)
    observed = [(rows == np.array(one)).all(axis=1).sum() for one in expected]
    assert stats.chisquare(observed, count * np.array(list(expected.values()))).pvalue > 1e-9


@pytest.mark.parametrize("features", [1, 2, 3])
def test_the_sum_is_unbiased_in_every_block_and_its_noise_is_that_of_one_block(features: int) -> None:
    """The mean of 40,000 clients is off by six standard deviations in a coordinate with probability 2e-9."""
    mechanism, count = planned_mechanism(features), 40_000
    block = np.zeros(features)
    block[0] = 0.9 * mechanism.reach
    rows = mechanism.randomize(np.tile(filled(mechanism, 2, block), (count, 1)), UnsafeSeededStream(5, "mean"))
    values = rows.astype(np.float64) * mechanism.step + mechanism.origin
    deviation = math.hypot(mechanism.radius / math.sqrt(features), mechanism.rounding)
    off = values.mean(axis=0) - filled(mechanism, 2, block)
    assert np.abs(off).max() < 6 * deviation / math.sqrt(count)
    assert mechanism.error(1).std == pytest.approx(mechanism.radius / math.sqrt(features))


def test_two_filled_blocks_are_refused_before_anything_is_sent() -> None:
    mechanism = planned_mechanism(2)
    with pytest.raises(BadParameter, match="two filled blocks"):
        mechanism.randomize(np.full((1, mechanism.dimension), 0.1), UnsafeSeededStream(6, "two"))
    for change in ({"blocks": 4}, {"norm": "linf"}):
        with pytest.raises(ValidationError, match="must divide"):
            LocalSphere(**{**mechanism.model_dump(), "blocks": ARMS, **change})


def test_a_single_block_is_the_mechanism_that_it_always_was_on_the_wire() -> None:
    statistic = ContextualSum(features=2, moments=False, residual="logistic")
    size = {"clients": 1, "min_survivors": 1, "min_honest": 1}
    spec = MechanismSpec(name="local-sphere", epsilon=1.0)
    assert "blocks" not in plan(spec, **size, overflow_probability=1e-9, statistic=statistic).model_dump()
    assert planned_mechanism(2).model_dump()["blocks"] == ARMS
