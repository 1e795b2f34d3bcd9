"""Tests that a slot keeps its reward, each client its noise, and that only messages leave."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.client.cohort.randomizer import CohortRandomizer, World, true_vectors
from distrust.client.environments import SideBySide
from distrust.common.bandit.decisions import AssignedAction, AssignedArm, Decision, PlayDesign
from distrust.common.bandit.statistics import ActionMeans, BoundedReward, Reward, Statistic
from distrust.common.protocol.run.round import Round
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream

NAMES = ["distributed-polya", "distributed-skellam", "local-laplace-discrete", "central-laplace-discrete"]


def _randomizer(round_: Round, world: World, cohort: int = 0) -> CohortRandomizer:
    return CohortRandomizer(round_, round_.assignments[cohort], world)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_below_the_modulus_one_for_each_slot(
    make_round: Callable[..., Round], world: World, name: str
) -> None:
    round_ = make_round(name)
    rows = _randomizer(round_, world).rows([3, 4, 19])
    assert rows.shape == (3, 1)
    assert rows.dtype == np.uint64
    assert (rows < round_.mechanism.modulus).all()
    assert _randomizer(round_, world).rows([]).shape == (0, 1)


def test_without_noise_a_slot_sends_its_own_reward(make_round: Callable[..., Round], world: World) -> None:
    """Cohort 2 pays half the time; slot i gets row i of the cohort's rewards, in whatever order slots are asked for."""
    round_ = make_round("identity", cohorts=3)
    cohort = round_.assignments[2].cohort
    stream = UnsafeSeededStream(world.seed, cohort.run, cohort.cohort, "rewards")
    rewards = world.environment.rewards(2, cohort.clients, stream)
    randomizer = _randomizer(round_, world, 2)
    backwards = list(range(cohort.clients))[::-1]
    assert set(rewards.tolist()) == {0.0, 1.0}
    assert (randomizer.rows(backwards)[:, 0] == rewards[::-1] * round_.mechanism.precision).all()


def test_every_client_draws_its_noise_from_a_stream_of_its_own(make_round: Callable[..., Round], world: World) -> None:
    made: list[SystemStream] = []

    def fresh() -> SystemStream:
        made.append(SystemStream())
        return made[-1]

    _randomizer(make_round(), replace(world, fresh=fresh)).rows(range(7))
    assert len(set(map(id, made))) == 7


def test_noise_is_fresh_every_time(make_round: Callable[..., Round], world: World) -> None:
    """Two draws of 20 local Laplace values agree with probability at most 1e-4 each: 1e-80 in all."""
    round_ = make_round("local-laplace-discrete", precision=5000)
    once, again = (_randomizer(round_, world).rows(range(20)) for _ in range(2))
    assert (once != again).any()


def test_a_noise_seed_gives_slot_i_row_i_of_the_cohort_however_blocks_are_cut(
    make_round: Callable[..., Round], world: World
) -> None:
    round_ = make_round("distributed-skellam")
    unsafe = replace(world, noise_seed=5)
    cohort = round_.assignments[0].cohort
    rewards = world.environment.rewards(0, 20, UnsafeSeededStream(world.seed, cohort.run, cohort.cohort, "rewards"))
    stream = UnsafeSeededStream(5, cohort.run, cohort.cohort)
    whole = round_.mechanism.randomize(round_.statistic.vectors(rewards), stream)
    blocks = [_randomizer(round_, unsafe).rows(slots) for slots in ([0, 1, 2], range(3, 20))]
    assert (np.concatenate(blocks) == whole).all()


def test_what_a_randomizer_shows_of_itself_holds_no_reward(make_round: Callable[..., Round], world: World) -> None:
    randomizer = _randomizer(make_round(), world)
    randomizer.rows([0])
    assert "_vectors" not in repr(randomizer)
    assert "array" not in repr(randomizer).replace(repr(world.environment), "")


class Broken:
    """Arms whose clients' devices fail in three ways; the fourth client's does not."""

    name, arms = "broken", 2

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        del arm, count, stream
        return np.array([np.nan, np.inf, -np.inf, 0.25])

    def averages(self, actions: Sequence[int], times: Sequence[int], count: int, stream: Stream) -> NDArray[np.float64]:
        return self.rewards(len(actions) + len(times), count, stream).reshape(-1, 1)


@pytest.mark.parametrize(
    ("decision", "statistic", "low", "high"),
    [
        (AssignedArm(), Reward(), 0.0, 1.0),
        (AssignedArm(), BoundedReward(bound=2.0), -2.0, 2.0),
        (AssignedAction(actions=[0], times=[4]), BoundedReward(bound=2.0), -2.0, 2.0),
        (PlayDesign(actions=[0], times=[4]), ActionMeans(actions=1, bound=0.5), -0.5, 0.5),
    ],
)
def test_a_reward_that_is_nan_counts_as_the_least(
    decision: Decision, statistic: Statistic, low: float, high: float
) -> None:
    """A client that refused to answer would disclose that it has such a reward."""
    world: Any = Broken()
    assert isinstance(world, SideBySide)
    vectors = true_vectors(world, decision, statistic, arm=0, clients=4, stream=SystemStream())
    assert vectors[:, 0].tolist() == [low, high, low, 0.25]
