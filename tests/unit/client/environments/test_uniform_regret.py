"""Tests that the regret of uniform play is that of an arm drawn uniformly, in every kind of world."""

import math

import numpy as np
import pytest

from distrust.client.environments import build_environment, read_spec
from distrust.client.environments.contextual import MET, ContextualWorld, mean_values
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream


@pytest.mark.parametrize(
    "table",
    [
        {"name": "bernoulli", "means": [0.2, 0.5, 0.8]},
        {"name": "gaussian-easy", "seed": 3},
        {"name": "mslr", "arms": 50},
        {"name": "linear-sphere", "seed": 5, "arms": 30, "dimension": 3},
        {"name": "linear-distributed", "seed": 5, "arms": 30, "dimension": 3},
    ],
    ids=lambda table: table["name"],
)
def test_of_arms_it_is_the_mean_of_their_gaps(table: dict[str, object]) -> None:
    spec = read_spec(table)
    means = spec.build().means.tolist()
    assert spec.uniform_regret() == pytest.approx(math.fsum(max(means) - mean for mean in means) / len(means))


def test_of_three_arms_it_is_by_hand() -> None:
    assert read_spec({"name": "bernoulli", "means": [0.2, 0.5, 0.8]}).uniform_regret() == pytest.approx(0.3)


def test_of_contexts_that_all_clients_share_it_is_exact() -> None:
    spec = read_spec({"name": "contextual-synthetic", "seed": 2})
    world = spec.build()
    means = (world.fixed @ world.theta[0]).tolist()
    assert spec.uniform_regret() == pytest.approx(max(means) - math.fsum(means) / len(means))


@pytest.mark.parametrize(
    "table",
    [
        {"name": "glm-sphere", "seed": 2},
        {"name": "glm-sphere", "seed": 2, "parameters": "multi", "link": "logistic"},
        {"name": "contextual-mslr", "seed": 2},
        {"name": "auto-lending", "seed": 2, "made_up": 2000},
        {"name": "auto-lending", "seed": 2, "made_up": 2000, "value": "apply"},
    ],
    ids=["glm-sphere", "multi", "contextual-mslr", "revenue", "apply"],
)
def test_of_clients_with_contexts_of_their_own_it_is_a_mean_over_other_clients(table: dict[str, object]) -> None:
    """Regrets of single clients lie in [0, 2]: by Hoeffding two such means differ by more less than once in 10⁸."""
    spec = read_spec(table)
    world = build_environment(spec)
    assert isinstance(world, ContextualWorld)
    stream = UnsafeSeededStream(1, "others")
    values = mean_values(world, world.means(world.contexts(MET, stream).features))
    arms = np.random.default_rng(1).integers(0, world.arms, MET)
    lost = values.max(axis=1) - values[np.arange(MET), arms]
    assert spec.uniform_regret() == pytest.approx(lost.mean(), abs=2 * math.sqrt(2 * math.log(2e9) / MET))


def test_of_rows_of_mslr_it_is_the_best_of_ten_less_a_random_one() -> None:
    """docs/concepts/environments.md has both: 0.52 and 0.15."""
    assert read_spec({"name": "contextual-mslr", "seed": 4}).uniform_regret() == pytest.approx(0.37, abs=0.01)


def test_it_is_of_revenue_where_arms_have_values() -> None:
    """All prices but the highest lose less revenue than answers where demand falls with the price."""
    table = {"name": "auto-lending", "seed": 2, "made_up": 2000}
    revenue, answers = (read_spec({**table, "value": value}).uniform_regret() for value in ("revenue", "apply"))
    assert 0 < 3 * revenue < answers


def test_a_world_that_is_drawn_needs_its_seed() -> None:
    for name in ("gaussian-easy", "linear-sphere", "glm-sphere", "contextual-mslr"):
        with pytest.raises(BadParameter, match=r"environment\.seed"):
            read_spec({"name": name}).uniform_regret()
