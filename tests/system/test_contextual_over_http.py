"""Tests that contextual bandits over real services have exactly the sums and regret of the in-process driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrust.lab.play import in_process
from distrust.lab.play.run_file import parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking
from tests.support.http_runs import learned, over_http, seeded_run
from tests.support.picked import picked

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_cohorts")]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with forking(), Stack(DataDir(Path(tmp_path_factory.mktemp("stack"))), 0) as running:
        yield running


CONTEXTS = 'name = "contextual-synthetic"\narms = 20\ndimension = 3'
ONE = 'name = "glm-sphere"\narms = 5\ndimension = 3'
MANY = f'{ONE}\nparameters = "multi"'
GAUSSIAN = 'name = "local-gaussian"\nepsilon = 5.0\ndelta = 1e-2'
AGGREGATED = 'name = "distributed-discrete-gaussian"\nepsilon = 5.0\ndelta = 1e-2'
SEALED = 'name = "shuffled-gaussian"\nepsilon = 5.0\ndelta = 1e-2'
BITS = 'name = "shuffled-binomial"\nepsilon = 5.0\ndelta = 1e-2'
TREE = 'name = "tree"\nepsilon = 5.0\ndelta = 1e-2\nbatches = 8\nvia = "shuffler"'
FACTORS = TREE.replace("tree", "prefix-factorization")
SPHERE = 'name = "local-sphere"\nepsilon = 5.0'
MIXED = 'name = "shuffled-sphere"\nepsilon = 5.0\ndelta = 1e-2'


RUNS = [
    pytest.param('name = "linucb"\nbatch = 40', AGGREGATED, CONTEXTS, 120, id="aggregated"),
    pytest.param('name = "linucb"\nbatch = 40', BITS, CONTEXTS, 120, id="labelled-bits"),
    pytest.param('name = "linucb"\nbatch = 40', TREE, CONTEXTS, 240, id="tree"),
    pytest.param('name = "linucb"\nbatch = 40', SEALED, CONTEXTS, 80, id="sealed"),
    pytest.param('name = "linucb"\nbatch = 40', MIXED, CONTEXTS, 80, id="sealed-points-of-a-sphere"),
    pytest.param('name = "ldp-sgd"\nbatch = 40', MIXED, ONE, 80, id="sgd-of-shuffled-points"),
    pytest.param('name = "linucb"', TREE, CONTEXTS, 8, id="tree-of-single-clients"),
    pytest.param('name = "linucb"\nbatch = 40', FACTORS, CONTEXTS, 240, id="factorization"),
    pytest.param('name = "linucb"', GAUSSIAN, CONTEXTS, 20, id="one-client-a-round"),
    pytest.param('name = "ldp-sgd"', SPHERE, f'{ONE}\nlink = "logistic"', 15, id="sgd-logistic"),
    pytest.param('name = "ldp-ols"\nwarm_up = 15\nmargin = 0.5', GAUSSIAN, MANY, 20, id="ols-multi-screened"),
    pytest.param('name = "ldp-sgd"\nwarm_up = 15', SPHERE, MANY, 20, id="sgd-multi-on-blocks"),
    pytest.param('name = "ldp-ucb"', GAUSSIAN, MANY, 15, id="ucb-multi"),
    pytest.param('name = "ldp-gloc"\nbatch = 40', AGGREGATED, ONE, 120, id="gloc-in-mini-cohorts"),
    pytest.param('name = "linear-thompson"\nbatch = 40', TREE, CONTEXTS, 240, id="linear-thompson"),
    pytest.param('name = "gloc-thompson"', GAUSSIAN, MANY, 15, id="gloc-thompson-multi"),
    pytest.param('name = "linucb"\nbatch = 40\nwidth_scale = 0.25', AGGREGATED, CONTEXTS, 120, id="scaled-width"),
    pytest.param('name = "ldp-ucb"\nwidth_scale = 0.0', GAUSSIAN, ONE, 15, id="greedy-width"),
    pytest.param('name = "linucb"\nconstants = "published-code"', GAUSSIAN, CONTEXTS, 15, id="published-code"),
    pytest.param(
        'name = "linucb"\nbatch = 20\nconstants = "unsafe-published-code"',
        f'{GAUSSIAN}\ncalibration = "paper"',
        CONTEXTS,
        60,
        id="published-noise",
    ),
    pytest.param('name = "linucb"\nbatch = 40\nswitch = 0.5', TREE, CONTEXTS, 240, id="rare-decisions"),
    pytest.param('name = "sblb"\nbatch = 40', MIXED, CONTEXTS, 120, id="sblb"),
    pytest.param(
        'name = "ldp-sgd"\nclip = 1.0\nmargin = 0.5\nwarm_up_share = 0.75', SPHERE, MANY, 20, id="sgd-clipped"
    ),
]
FEW = 3  # of them; CI plays all


@pytest.mark.parametrize(("policy", "mechanism", "world", "horizon"), picked(RUNS, FEW, "contextual"))
def test_a_contextual_run_over_services_learns_what_the_same_run_in_process_learns(
    request: pytest.FixtureRequest, policy: str, mechanism: str, world: str, *, horizon: int, stack: Stack
) -> None:
    leaving = 0.05 if "batch" in policy else 0.0
    name = f"context-{request.node.callspec.id}"
    fields = {"policy": policy, "mechanism": mechanism, "world": world}
    file = seeded_run(name, horizon=horizon, **fields, leaving=leaving, processes=1)
    ours, theirs = in_process.run(file), over_http(stack, file)
    assert learned(theirs) == learned(ours)
    assert theirs.regret == ours.regret
    assert theirs.unproven == ours.unproven
    assert theirs.switches == ours.switches
    assert (theirs.best, theirs.chosen) == (None, None)
    assert (theirs.hidden + sum(theirs.pulls), len(theirs.rounds)) == (horizon, len(ours.rounds))
    assert theirs.hidden == horizon - (15 if "warm_up" in policy else 0)  # in a warm-up the arm is public


@pytest.mark.parametrize("mechanism", ["shuffled-gaussian", "shuffled-sphere", "shuffled-binomial"])
@pytest.mark.few(1)
def test_clients_without_a_seed_take_part_at_the_delta_that_the_budget_states(mechanism: str, stack: Stack) -> None:
    """Clients of a run whose noise has a seed look at no limit; these do, and their own would be δ = 0.01."""
    file = parse(
        f"""
run = "budget-{mechanism}"
horizon = 40
policy = {{name = "linucb", batch = 20}}
mechanism = {{name = "{mechanism}", epsilon = 1.0, delta = 0.1}}
budget = {{epsilon = 1.0, delta = 0.1, min_survivors = 1}}
environment = {{name = "contextual-synthetic", arms = 10, dimension = 2, seed = 1}}
fleet = {{processes = 1}}
"""
    )
    result = over_http(stack, file)
    assert (result.hidden, result.aborted, result.refusals) == (40, 0, {})
    # Bits of vectors are covered by Gaussian noise, and have a little more than they need.
    assert (result.guarantee.delta, result.guarantee.epsilon) == (0.1, pytest.approx(1.0, rel=0.02))
    assert result.guarantee.epsilon <= 1.0
