"""Tests that the fleet and the in-process driver let the same clients leave."""

import numpy as np
import pytest
from scipy.stats import binom

from distrust.client.cohort.departures import NEVER, departures, survives
from distrust.client.cohort.user import User
from distrust.common.randomness import UnsafeSeededStream


@pytest.mark.parametrize(
    ("count", "rate", "gone"), [(10, 0.0, 0), (1, 0.4, 0), (30, 0.1, 3), (400, 0.25, 100), (7, 1.0, 7)]
)
def test_exactly_the_share_that_was_asked_for_departs(count: int, rate: float, gone: int) -> None:
    leaves = departures(count, rate, UnsafeSeededStream(1, "departures"))
    assert leaves.shape == (count,)
    assert (leaves != NEVER).sum() == gone
    assert ((leaves >= 0) & (leaves <= NEVER)).all()


def test_stages_and_slots_are_uniform() -> None:
    """20,000 departures over four stages; each is Bin(20000, 1/4). False alarms: 1e-8 in all."""
    leaves = np.concatenate([departures(1000, 0.5, UnsafeSeededStream(2, run)) for run in range(40)])
    for stage in range(NEVER):
        assert binom.ppf(1e-9, 20_000, 0.25) <= (leaves == stage).sum() <= binom.isf(1e-9, 20_000, 0.25)
    first_half = sum(int((part[:500] != NEVER).sum()) for part in leaves.reshape(40, 1000))
    assert binom.ppf(1e-9, 20_000, 0.5) <= first_half <= binom.isf(1e-9, 20_000, 0.5)  # hypergeometric: tighter still


def test_survivors_are_those_whose_message_arrives_whichever_intermediary_takes_it() -> None:
    leaves = np.arange(NEVER + 1)
    assert survives(leaves).tolist() == [False, False, False, True, True]
    for stage, kept in zip(leaves.tolist(), survives(leaves).tolist(), strict=True):
        user = User(slot=0, ticket=b"", leaves=stage)
        assert user.answers("masked") is kept
        assert user.answers("report") is kept


def test_a_client_that_leaves_answers_no_later_stage() -> None:
    stays = [
        [User(0, b"", leaves).answers(stage) for stage in ("keys", "shares", "masked", "unmask")] for leaves in range(5)
    ]
    assert stays == [[number < leaves for number in range(4)] for leaves in range(5)]
