"""Contextual bandits over real services: the same sums and regret as in process, number for number."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrust.lab.run import in_process
from distrust.lab.run.run_file import RunFile, parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking
from tests.support.http_runs import learned, over_http

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with forking(), Stack(DataDir(Path(tmp_path_factory.mktemp("stack"))), 0) as running:
        yield running


def run_file(name: str, mechanism: str, batch: int, horizon: int, dropout: float) -> RunFile:
    """Clients that leave at every stage, a noise seed so that both drivers draw alike."""
    minimum = 4 if batch > 1 else 1
    return parse(
        f"""
run = "{name}"
horizon = {horizon}
[policy]
name = "linucb"
batch = {batch}
[mechanism]
{mechanism}
[intermediary]
dropout = {0.2 if batch > 1 else 0.0}
corrupt = {0.05 if batch > 1 else 0.0}
minimum = {minimum}
stage_seconds = 60.0
[unsafe]
noise_seed = 7
[environment]
seed = 7
name = "contextual-synthetic"
arms = 20
dimension = 3
[fleet]
processes = 2
dropout = {dropout}
"""
    )


@pytest.mark.parametrize(
    ("mechanism", "batch", "horizon"),
    [
        pytest.param('name = "distributed-discrete-gaussian"\nepsilon = 5.0\ndelta = 1e-2', 40, 240, id="aggregated"),
        pytest.param('name = "shuffled-binomial"\nepsilon = 5.0\ndelta = 1e-2', 40, 120, id="labelled-bits"),
        pytest.param('name = "tree"\nepsilon = 5.0\ndelta = 1e-2\nbatches = 8\nvia = "shuffler"', 40, 240, id="tree"),
        pytest.param('name = "local-gaussian"\nepsilon = 5.0\ndelta = 1e-2', 1, 40, id="one-client-a-round"),
    ],
)
def test_a_contextual_run_over_services_learns_what_the_same_run_in_process_learns(
    mechanism: str, batch: int, horizon: int, stack: Stack
) -> None:
    name = f"context-{mechanism.split(chr(34))[1]}"
    file = run_file(name, mechanism, batch, horizon, 0.05 if batch > 1 else 0.0)
    ours, theirs = in_process.run(file), over_http(stack, file)
    assert learned(theirs) == learned(ours)
    assert theirs.regret == ours.regret
    assert (theirs.best, theirs.chosen, theirs.hidden) == (None, None, horizon)
    assert len(theirs.rounds) > 1
