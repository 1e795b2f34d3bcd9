"""Tests that many cohorts computed together have the messages and sums of each one alone."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.dp.mechanisms import plan
from distrust.common.dp.mechanisms.central.tree import Counter, Tree
from distrust.common.dp.mechanisms.families.base import MechanismSpec
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.errors import BadParameter
from distrust.common.modular import sum_rows
from distrust.common.randomness import UnsafeSeededStream

APPROXIMATE = {"epsilon": 1.0, "delta": 1e-3}
WORDS: dict[str, dict[str, Any]] = {
    "identity": {},
    "central-gaussian": APPROXIMATE,
    "central-laplace": {"epsilon": 1.0, "noise": "continuous"},
    "local-gaussian": {**APPROXIMATE, "noise": "continuous"},
    "local-laplace-discrete": {"epsilon": 1.0},
    "local-sphere": {"epsilon": 1.0},
    "distributed-discrete-gaussian": APPROXIMATE,
    "distributed-skellam": APPROXIMATE,
    "shuffled-binomial": APPROXIMATE,
    "shuffled-sphere": APPROXIMATE,
    "relaxed-secagg-shuffle": {"epsilon": 1.0},
    "tree": {**APPROXIMATE, "batches": 20},
    "prefix-factorization": {**APPROXIMATE, "batches": 20},
}
COHORTS, CLIENTS = 3, 8
STATISTIC = ContextualSum(features=2)

every = pytest.mark.parametrize("name", WORDS)


@cache
def planned(name: str) -> GridMechanism:
    spec = MechanismSpec.model_validate({"name": name, **WORDS[name]})
    size = {"clients": CLIENTS, "min_survivors": CLIENTS, "min_honest": CLIENTS}
    mechanism = plan(spec, **size, overflow_probability=1e-6, statistic=STATISTIC)
    assert isinstance(mechanism, GridMechanism)
    return mechanism


def vectors() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(3).normal(size=(COHORTS * CLIENTS, STATISTIC.dimension))


@every
def test_a_message_depends_on_its_own_row_of_what_is_drawn(name: str) -> None:
    mechanism, values = planned(name), vectors()
    drawn = mechanism.client_randomness(UnsafeSeededStream(1, name), len(values))
    assert {len(one) for one in drawn} == {len(values)}
    messages = mechanism.randomize_with(values, drawn)
    assert np.array_equal(messages, mechanism.randomize(values, UnsafeSeededStream(1, name)))
    for start in range(0, len(values), CLIENTS):
        own = slice(start, start + CLIENTS)
        assert np.array_equal(messages[own], mechanism.randomize_with(values[own], tuple(one[own] for one in drawn)))


@every
def test_many_sums_are_opened_as_each_of_them_is(name: str) -> None:
    mechanism = planned(name)
    messages = mechanism.randomize(vectors(), UnsafeSeededStream(1, name)).reshape(COHORTS, CLIENTS, -1)
    totals = sum_rows(messages, mechanism.modulus)
    assert np.array_equal(totals, [sum_rows(own, mechanism.modulus) for own in messages])
    streams = [UnsafeSeededStream(2, cohort) for cohort in range(COHORTS)]
    drawn = [mechanism.server_randomness(stream, 1) for stream in streams]
    noise = None if drawn[0] is None else np.concatenate([one for one in drawn if one is not None])
    together = mechanism.estimate_with(totals, CLIENTS, noise)
    for cohort in range(COHORTS):
        alone = mechanism.estimate(totals[cohort], CLIENTS, UnsafeSeededStream(2, cohort))
        assert np.array_equal(together[cohort], alone)


@pytest.mark.parametrize("name", ["central-gaussian", "central-laplace", "tree", "prefix-factorization"])
def test_two_sums_never_share_their_noise(name: str) -> None:
    mechanism = planned(name)
    totals = np.zeros((COHORTS, mechanism.dimension), dtype=np.uint64)
    noise = mechanism.server_randomness(UnsafeSeededStream(2), 1)
    assert noise is not None
    with pytest.raises(BadParameter, match="shape must be"):
        mechanism.estimate_with(totals, CLIENTS, noise[0])
    with pytest.raises(BadParameter, match="shape must be"):
        mechanism.estimate(totals, CLIENTS, UnsafeSeededStream(2))


def test_streams_of_a_tree_in_lock_step_are_each_as_it_is_alone() -> None:
    tree = planned("tree")
    assert isinstance(tree, Tree)
    batches = np.random.default_rng(4).integers(0, tree.modulus, size=(20, COHORTS, tree.dimension)).astype(np.uint64)
    streams = [UnsafeSeededStream(5, run) for run in range(COHORTS)]
    calls = 0

    def noise() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        nonlocal calls
        calls += 1
        return np.stack([tree.server_law().sample(stream, tree.dimension) for stream in streams])

    together = Counter(tree)
    alone = [Counter(tree) for _ in range(COHORTS)]
    again = [UnsafeSeededStream(5, run) for run in range(COHORTS)]
    for number, totals in enumerate(batches, start=1):
        together, released = together.add_with(totals, CLIENTS, noise)
        assert calls == tree.draws(number)
        for run in range(COHORTS):
            alone[run], own = alone[run].add(totals[run], CLIENTS, again[run])
            assert np.array_equal(released.prefix[run], own.prefix)
            assert np.array_equal(released.batch[run], own.batch)


def test_streams_of_a_tree_never_share_their_noise() -> None:
    tree = planned("tree")
    assert isinstance(tree, Tree)
    totals = np.zeros((COHORTS, tree.dimension), dtype=np.uint64)
    with pytest.raises(BadParameter, match="shape must be"):
        Counter(tree).add_with(totals, CLIENTS, lambda: np.zeros(tree.dimension, dtype=np.int64))


def test_sums_over_more_rows_than_a_word_holds() -> None:
    modulus = 2**62 - 57
    rows = np.random.default_rng(6).integers(0, modulus, size=(2, 9, 3)).astype(np.uint64)
    expected = [[sum(map(int, rows[run, :, place])) % modulus for place in range(3)] for run in range(2)]
    assert sum_rows(rows, modulus).tolist() == expected
    assert sum_rows(rows[:, :0], modulus).tolist() == [[0, 0, 0]] * 2
