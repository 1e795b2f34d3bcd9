"""Tests UCB1 against a direct computation from its paper."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrust.server.policies.base import Estimate, Interval
from distrust.server.policies.ucb1 import Ucb1
from tests.support.laws import Laplace
from tests.support.policies import asked, made


def answer(policy: Ucb1, reward: float) -> int:
    """Answer one pull with `reward`. Return its arm."""
    ask = asked(policy)
    (query,) = ask.queries
    assert query.clients == 1
    assert query.arm is not None
    policy.tell([Estimate(query.arm, (reward,), (1,), (Laplace(0.0),))])
    return query.arm


def plainly(rewards: list[list[float]]) -> list[int]:
    """Return the arms that UCB1 plays if pull t of any arm pays rewards[t][arm], by a loop over its definition."""
    arms = len(rewards[0])
    seen: list[list[float]] = [[] for _ in range(arms)]
    played = []
    for t, row in enumerate(rewards):
        index = [math.inf if not x else sum(x) / len(x) + math.sqrt(2 * math.log(t) / len(x)) for x in seen]
        arm = max(range(arms), key=lambda one: index[one])
        seen[arm].append(row[arm])
        played.append(arm)
    return played


@given(seed=st.integers(0, 10**6), arms=st.integers(2, 7))
def test_it_plays_the_largest_upper_bound(seed: int, arms: int) -> None:
    """Rewards are real numbers, so that no two bounds are equal but for rounding."""
    rewards = np.random.default_rng(seed).random((120, arms)).tolist()
    policy = made("ucb1", arms)
    played = []
    for row in rewards:
        ask = asked(policy)
        (arm,) = ask.arms
        played.append(answer(policy, row[arm]))
    assert played == plainly(rewards)


def test_no_arm_ever_drops_out_and_the_largest_mean_is_chosen() -> None:
    policy = made("ucb1", 3)
    assert policy.chosen is None
    assert policy.intervals == ()
    for _ in range(400):
        ask = asked(policy)
        answer(policy, [0.1, 0.8, 0.3][ask.arms[0]])
    assert policy.active == (0, 1, 2)
    assert policy.chosen == 1
    assert [interval.mean for interval in policy.intervals] == pytest.approx([0.1, 0.8, 0.3])
    pulls = sum(2 * math.log(400) / ((one.upper - one.mean) ** 2) for one in policy.intervals)
    assert pulls == pytest.approx(400)


@given(seed=st.integers(0, 10**6), arms=st.integers(2, 5))
def test_who_looks_at_what_a_pull_formed_has_seen_every_interval_at_its_narrowest(seed: int, arms: int) -> None:
    """All other intervals keep their mean and lie around the ones that were formed before."""
    policy, rng = made("ucb1", arms), np.random.default_rng(seed)
    known: dict[int, Interval] = {}
    for t in range(1, 60):
        answer(policy, float(rng.random()))
        latest = policy.latest_intervals
        expected = 0 if t < arms else 1
        if t == arms:
            expected = arms
        assert len(latest) == expected
        known |= {interval.arm: interval for interval in latest}
        for one in policy.intervals:
            seen = known[one.arm]
            assert (one.batch, one.mean) == (seen.batch, seen.mean)
            assert one.lower <= seen.lower <= seen.upper <= one.upper
