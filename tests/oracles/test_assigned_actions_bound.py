"""Tests the bound that calibrates the noise of assigned actions, against the server's exact view by enumeration."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.bandit.statistics import BoundedReward
from distrust.common.dp.accounting.techniques.amplification.clones import antipodal_delta, clones_delta
from distrust.common.dp.accounting.techniques.amplification.randomizers import laplace_on_grid
from distrust.common.dp.mechanisms import MechanismSpec, check_parts
from distrust.common.errors import BadParameter
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.rounds import ASSIGNED_ACTION_ASSUMPTIONS, plan_round
from distrust.server.policies.base import Ask, Query
from tests.support.randomizers import blanket_delta
from tests.support.shuffled_laws import Array

Data = tuple[int, ...]
"""A client's reward for each action, as the number of a row in that action's table."""


def opened(tables: Sequence[Array], clients: Sequence[Data], orders: Sequence[tuple[int, ...]]) -> Array:
    """Return the law of the messages by place: client order[j] is at place j, and plays the action of table j."""
    laws = []
    for order in orders:
        rows = [tables[place][clients[client][place]] for place, client in enumerate(order)]
        law = np.ones(1)
        for row in rows:
            law = np.multiply.outer(law, row)
        laws.append(law.ravel())
    return np.asarray(np.mean(laws, axis=0))


def delta(tables: Sequence[Array], one: Data, other: Data, rest: Sequence[Data], epsilon: float) -> float:
    """Return the hockey-stick divergence of the server's views if the first client holds `one` or `other`."""
    orders = list(itertools.permutations(range(len(tables))))
    first, second = (opened(tables, [own, *rest], orders) for own in (one, other))
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def places(seed: int, users: int, local: float) -> tuple[list[Array], list[Data]]:
    """Return a random table for each place, three rows of three answers, and random data of `users` + 1 clients."""
    rng = np.random.default_rng(seed)
    steps = np.where(rng.random((users, 3, 3)) < 0.5, math.exp(local), 1.0)
    tables = list(steps / steps.sum(axis=2, keepdims=True))
    return tables, [tuple(rng.integers(0, 3, users).tolist()) for _ in range(users + 1)]


def local_epsilon(tables: Sequence[Array]) -> float:
    return float(max(np.log(rows.max(axis=0) / rows.min(axis=0)).max() for rows in tables))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("users", [2, 3, 4])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_messages_by_place_are_within_the_bound_of_the_whole_crowd(seed: int, users: int, share: float) -> None:
    """Every place has a randomizer of its own, and every client has other values at each place."""
    tables, (one, other, *rest) = places(seed, users, 1.5)
    local = local_epsilon(tables)
    result = delta(tables, one, other, rest, share * local)
    assert result <= clones_delta(share * local, local, users)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("users", [2, 3, 4])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_answers_of_opposite_signs_are_within_the_bound_of_a_sphere_by_place(
    seed: int, users: int, share: float
) -> None:
    """Each place answers 0 or 1 with probabilities of its own, at most ε₀ apart, and the others hold any values."""
    rng, tau = np.random.default_rng(seed), math.tanh(0.75)
    ups = 0.5 + tau / 2 * np.where(
        rng.random((users, 3)) < 0.7, rng.choice([-1, 1], (users, 3)), rng.uniform(-1, 1, (users, 3))
    )
    tables = [np.column_stack((1 - row, row)) for row in ups]
    one, other, *rest = (tuple(rng.integers(0, 3, users).tolist()) for _ in range(users + 1))
    assert delta(tables, one, other, rest, share * 1.5) <= antipodal_delta(share * 1.5, 1.5, users)


def laplace_rows(scale: float, g: int) -> Array:
    """Return the laws of x + discrete Laplace noise for rewards x in {0..g}; outputs far out count as one."""
    reach = g + 2
    outputs = np.arange(-400, 400)
    masses = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(outputs - np.arange(g + 1)[:, np.newaxis]) / scale)
    kept = np.clip(outputs, -2, reach) + 2
    return np.array([np.bincount(kept, row) for row in masses])


@pytest.mark.parametrize(("users", "g", "checked"), [(2, 1, 64), (2, 2, 729), (3, 1, 512), (3, 2, 1000), (4, 1, 60)])
@pytest.mark.parametrize(("local", "share"), [(1.0, 0.1), (1.0, 0.6), (3.0, 0.3)])
def test_laplace_noise_by_place_is_within_the_bound_of_the_ends_whatever_each_place_pays(
    users: int, g: int, checked: int, local: float, share: float
) -> None:
    """Every reward of every client at every place is tried, or as many of these at random as `checked` says."""
    rows, epsilon = laplace_rows(g / local, g), share * local
    worths = range((g + 1) ** (users * (users + 1)))
    if checked < len(worths):
        worths = np.random.default_rng(users).integers(0, len(worths), checked).tolist()
    bound = blanket_delta(laplace_on_grid(g / local, g), epsilon, users)
    largest = 0.0
    for worth in worths:
        digits = np.unravel_index(worth, (g + 1,) * (users * (users + 1)))
        one, other, *rest = (tuple(map(int, part)) for part in np.split(np.array(digits), users + 1))
        largest = max(largest, delta([rows] * users, one, other, rest, epsilon))
    extreme = delta([rows] * users, (0,) * users, (g,) * users, [(0,) * users] * (users - 1), epsilon)
    assert largest <= bound * (1 + 1e-9)
    assert 0.5 * bound < max(largest, extreme) <= bound * (1 + 1e-9)


def test_the_enumeration_is_no_empty_comparison() -> None:
    """The largest enumerated δ is above 0.4 of the bound, so some tables do tell their rows apart."""
    shares = []
    for seed in range(12):
        tables, (one, other, *rest) = places(seed, 2, 1.5)
        local = local_epsilon(tables)
        shares.append(delta(tables, one, other, rest, local / 10) / clones_delta(local / 10, local, 2))
    assert max(shares) > 0.4


def test_without_the_permutation_the_bound_is_broken() -> None:
    """A server that knows each client's action sees the client's message alone, and nothing is amplified."""
    lie = 1 / (1 + math.exp(1.0))
    tables = [np.array([[1 - lie, lie], [lie, 1 - lie]])] * 5
    one, other, rest = (0,) * 5, (1,) * 5, [(0,) * 5] * 4
    bound = clones_delta(0.3, 1.0, 5)
    known = [opened(tables, [own, *rest], [tuple(range(5))]) for own in (one, other)]
    assert delta(tables, one, other, rest, 0.3) <= bound < np.maximum(known[0] - math.exp(0.3) * known[1], 0).sum()


def test_who_leaves_because_of_its_action_gives_the_others_away() -> None:
    """All others with action 0 leave, so its only message is the first client's, and no amplification bound holds."""
    lie = 1 / (1 + math.exp(1.0))
    alone = np.maximum(np.array([1 - lie, lie]) - math.exp(0.3) * np.array([lie, 1 - lie]), 0).sum()
    assert alone > clones_delta(0.3, 1.0, 5)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("name", ["shuffled-laplace", "shuffled-sphere"])
def test_a_round_of_assigned_actions_is_calibrated_to_its_honest_survivors_and_says_what_it_counts_on(
    name: str, epsilon: float
) -> None:
    spec = {"name": name, "epsilon": epsilon, "delta": 1e-6}
    config = RunConfig.model_validate({"run": "dealt", "arms": 3, "horizon": 1000, "mechanism": spec})
    assigned = AssignedAction(actions=[2, 0], times=[300, 100])
    ask = Ask(1, (Query(None, assigned.plays),), assigned, BoundedReward(bound=1.0))
    record = plan_round(config, 1, ask, 3)
    promise = record.cost.guarantee
    assert promise.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert record.mechanism.via == "shuffler"
    assert record.mechanism.floor == 320  # a tenth may leave, a tenth may collude
    assert set(ASSIGNED_ACTION_ASSUMPTIONS) < set(promise.assumptions)


WHY = {
    "shuffled-gaussian": "blanket bound is for one randomizer",
    "distributed-polya": "a shuffler",
}


@pytest.mark.parametrize(
    "name", ["shuffled-gaussian", "shuffled-binomial", "distributed-polya", "relaxed-secagg-shuffle", "tree"]
)
def test_what_is_proven_for_a_whole_sum_or_one_randomizer_serves_no_assigned_actions(name: str) -> None:
    with pytest.raises(BadParameter, match=f"shuffled actions need .*{WHY.get(name, 'opened whole')}"):
        check_parts(MechanismSpec.model_validate({"name": name, "epsilon": 1.0}))


def test_a_play_is_an_action_of_the_list() -> None:
    assigned = AssignedAction(actions=[7, 2, 9], times=[2, 1, 3])
    assert assigned.plays == 6
    assert assigned.places().tolist() == [0, 0, 1, 2, 2, 2] == [assigned.place(play) for play in range(6)]
