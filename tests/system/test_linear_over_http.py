"""Tests that linear bandits over real services have exactly the sums and eliminations of the in-process driver."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile
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


def run_file(name: str, policy: str, mechanism: str, world: str, horizon: int) -> RunFile:
    """Return a run whose clients leave at every stage."""
    return seeded_run(name, horizon=horizon, policy=policy, mechanism=mechanism, world=world, leaving=0.1, processes=1)


DISTRIBUTED = 'name = "linear-distributed"\narms = 12\ndimension = 3'
SPHERE = 'name = "linear-sphere"\narms = 6'
SEALED = 'name = "identity"\nvia = "shuffler"'


RUNS = [
    pytest.param(
        'name = "dp-dpe"',
        'name = "distributed-polya"\nepsilon = 10.0',
        DISTRIBUTED,
        600,
        id="dp-dpe-vectors-through-secure-aggregation",
    ),
    pytest.param(
        'name = "dp-dpe"',
        'name = "shuffled-binomial"\nepsilon = 10.0\ndelta = 1e-3',
        DISTRIBUTED,
        600,
        id="dp-dpe-vectors-as-labelled-bits",
    ),
    pytest.param(
        'name = "dp-pe"',
        'name = "distributed-skellam"\nepsilon = 5.0',
        SPHERE,
        480,
        id="dp-pe-cohorts-of-all-sizes",
    ),
    pytest.param(
        'name = "almost-free"\nmodel = "local"',
        'name = "local-laplace-discrete"\nepsilon = 5.0',
        SPHERE,
        750,
        id="almost-free-through-the-shuffler",
    ),
    pytest.param(
        'name = "almost-free"\nmodel = "central"',
        'name = "central-laplace"\nepsilon = 5.0\nvia = "shuffler"',
        SPHERE,
        600,
        id="almost-free-with-the-analyzers-noise",
    ),
]
FEW = 2  # of them; CI plays all


@pytest.mark.parametrize(("policy", "mechanism", "world", "horizon"), picked(RUNS, FEW, "linear"))
def test_a_linear_run_is_the_same_in_process_and_over_http(
    request: pytest.FixtureRequest, stack: Stack, policy: str, mechanism: str, *, world: str, horizon: int
) -> None:
    name: str = request.node.callspec.id
    file = run_file(name, policy, mechanism, world, horizon)
    here, there = in_process.run(file), over_http(stack, file)
    assert learned(there) == learned(here)
    assert len(here.rounds) >= 4
    lost = [cohort.survivors for cohort in here.rounds[-1].cohorts]
    assert any(survivors is not None for survivors in lost)


def test_a_policy_that_believes_in_too_little_noise_fails_as_often_over_http_as_in_process(stack: Stack) -> None:
    """Rewards spread forty times as far as the policy assumes. No run file allows it, so the test changes the world."""
    plain = run_file("too-sure", 'name = "dp-dpe"\nbound = 40.0', SEALED, DISTRIBUTED, 1500)
    file = replace(plain, environment=plain.environment.model_copy(update={"noise": 4.0, "bound": 40.0}))
    here, there = in_process.run(file), over_http(stack, file)
    assert learned(there) == learned(here)
    assert here.events.width_failures > here.events.widths / 2
    assert here.events.best_dropped_at == 3
    assert here.events.failure is not None
    assert here.events.failure < 0.01
    assert in_process.run(plain).events.width_failures == 0


def test_the_kind_of_an_unseeded_runs_guarantee_is_that_of_its_rounds_in_process_and_over_http(stack: Stack) -> None:
    """Vectors have a Rényi curve, a single coordinate an ε at its δ. The noise decides how far a design shrinks."""
    whole = run_file(
        "unseeded",
        'name = "dp-dpe"',
        'name = "distributed-skellam"\nepsilon = 10.0\ndelta = 1e-3',
        DISTRIBUTED,
        600,
    )
    file = replace(whole, config=whole.config.model_copy(update={"unsafe": None}))
    for result in (in_process.run(file), over_http(stack, file)):
        sizes = {len(record.decision.actions) for record in result.rounds if record.decision.kind == "play-design"}
        assert result.guarantee.kind == ("approximate" if 1 in sizes else "renyi")
        assert (result.guarantee.epsilon, result.guarantee.delta) == (pytest.approx(10.0, rel=0.01), 1e-3)
