"""Tests that rewards follow the law that the environment states.

Every comparison is the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant, for any law and exactly:
P(sup|F_n - F| > e) ≤ 2 exp(-2 n e²). The false alarm rate of one comparison is 1e-9; there are 19.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from distrust.client.environments import Environment, build_environment, read_spec
from distrust.client.environments.arms import Bernoulli, ClippedGaussian
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream

DRAWS = 200_000
SLACK = math.sqrt(math.log(2 / 1e-9) / (2 * DRAWS))

WORLDS = {
    "bernoulli": build_environment(read_spec({"name": "bernoulli", "means": [0.0, 0.3, 1.0]})),
    "gaussian-easy": build_environment(read_spec({"name": "gaussian-easy", "seed": 3, "arms": 3})),
    "gaussian-wide": build_environment(read_spec({"name": "gaussian-hard", "seed": 3, "arms": 3, "deviation": 0.6})),
    "mslr": build_environment(read_spec({"name": "mslr", "arms": 10})),
}


def _cdf(world: Environment, arm: int, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(reward ≤ points) from the definition of each law, not from the code that draws."""
    if isinstance(world, Bernoulli):
        return np.where(points >= 1, 1.0, 1 - world.means[arm])
    if isinstance(world, ClippedGaussian):
        inside = norm.cdf(points, world.centres[arm], world.deviation)
        return np.where(points >= 1, 1.0, inside)
    counts = world.counts[arm]  # type: ignore[attr-defined]
    return np.array([counts[: int(4 * point) + 1].sum() / counts.sum() for point in points])


@pytest.mark.parametrize(("name", "arm"), [(name, arm) for name, world in WORLDS.items() for arm in range(world.arms)])
def test_rewards_follow_the_law_of_their_arm(name: str, arm: int) -> None:
    world = WORLDS[name]
    rewards = world.rewards(arm, DRAWS, UnsafeSeededStream(1, name, arm))
    points = np.linspace(0, 1, 41)
    empirical = (rewards[:, None] <= points).mean(axis=0)
    assert rewards.dtype == np.float64
    assert rewards.min() >= 0
    assert rewards.max() <= 1
    assert np.abs(empirical - _cdf(world, arm, points)).max() < SLACK


@pytest.mark.parametrize("name", list(WORLDS))
def test_means_are_those_of_the_law(name: str) -> None:
    """The mean of a law on [0, 1] is the integral of 1 - F, taken here by quadrature over each quarter."""
    world = WORLDS[name]
    for arm in range(world.arms):
        mean = sum(
            quad(lambda x, a=arm: 1 - float(_cdf(world, a, np.array([x]))[0]), low / 4, (low + 1) / 4)[0]
            for low in range(4)
        )
        assert mean == pytest.approx(world.means[arm], abs=1e-7)


@pytest.mark.parametrize("name", list(WORLDS))
def test_the_best_arm_has_the_largest_mean(name: str) -> None:
    world = WORLDS[name]
    assert world.means[world.best] == world.means.max()
    assert world.means.shape == (world.arms,)


@pytest.mark.parametrize("name", list(WORLDS))
def test_the_same_stream_gives_the_same_rewards_row_by_row(name: str) -> None:
    world = WORLDS[name]
    once = world.rewards(1, 50, UnsafeSeededStream(5, "run", "c", "rewards"))
    again = world.rewards(1, 50, UnsafeSeededStream(5, "run", "c", "rewards"))
    other = world.rewards(1, 50, UnsafeSeededStream(5, "run", "d", "rewards"))
    assert (once == again).all()
    assert (once != other).any()


@pytest.mark.parametrize(("name", "low", "high"), [("gaussian-easy", 0.25, 0.75), ("gaussian-hard", 0.45, 0.55)])
def test_gaussian_centres_come_from_the_seed_and_stay_in_their_range(name: str, low: float, high: float) -> None:
    worlds = [build_environment(read_spec({"name": name, "seed": seed})) for seed in (1, 1, 2)]
    centres = [world.centres for world in worlds if isinstance(world, ClippedGaussian)]
    assert centres[0].shape == (10,)
    assert (centres[0] == centres[1]).all()
    assert (centres[0] != centres[2]).all()
    assert all(((low <= centre) & (centre <= high)).all() for centre in centres)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param({"name": "bernoulli", "means": [0.5, 1.5]}, r"environment\.means\[1\] = 1\.5", id="mean-above-1"),
        pytest.param(
            {"name": "bernoulli", "means": [-0.1, 0.5]}, r"environment\.means\[0\] = -0\.1", id="mean-below-0"
        ),
        pytest.param({"name": "bernoulli", "means": [0.5]}, "at least 2 arms", id="one-arm"),
        pytest.param({"name": "bernoulli", "means": [0.5, float("nan")]}, "finite", id="nan"),
        pytest.param({"name": "gaussian-easy"}, r"environment\.seed", id="gaussian-without-seed"),
        pytest.param({"name": "gaussian-easy", "seed": -1}, "at least 0", id="negative-seed"),
        pytest.param({"name": "gaussian-easy", "seed": 1, "deviation": 0.0}, "above 0", id="no-deviation"),
        pytest.param({"name": "mslr", "arms": 7}, "distrust data mslr --clusters 7", id="table-that-is-not-shipped"),
        pytest.param({"name": "mslr", "file": "/nowhere.csv"}, "distrust data mslr", id="missing-file"),
        pytest.param({"name": "poker"}, "bernoulli", id="unknown-world"),
        pytest.param({"name": "mslr", "armz": 3}, "armz", id="unknown-key"),
    ],
)
def test_bad_environments_are_refused_in_one_line(table: dict[str, object], words: str) -> None:
    with pytest.raises(BadParameter, match=words) as caught:
        build_environment(read_spec(table))
    assert "\n" not in str(caught.value)
