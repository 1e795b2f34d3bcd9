"""Tests that `seeded` keeps a stated seed and draws a missing one."""

from distrust.client.environments import seeded
from distrust.client.environments.arms import BernoulliSpec


def test_a_given_seed_is_kept() -> None:
    spec = BernoulliSpec(name="bernoulli", seed=0, means=[0.1, 0.2])
    assert seeded(spec) == spec


def test_a_missing_seed_is_drawn_afresh() -> None:
    spec = BernoulliSpec(name="bernoulli", means=[0.1, 0.2])
    seeds = {seeded(spec).seed for _ in range(20)}
    assert None not in seeds
    assert len(seeds) == 20
