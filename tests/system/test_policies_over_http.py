"""Tests a run of each policy for arms over real services: its numbers are exactly those of the in-process driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrust.lab.play import in_process
from distrust.lab.play.run_file import parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking
from tests.support.http_runs import learned, over_http
from tests.support.picked import picked

pytestmark = pytest.mark.slow

LEAVING = "dropout = 0.1"
SKELLAM = 'name = "distributed-skellam"\nepsilon = 1.0\ncalibration = "paper"'
LAPLACE = 'name = "central-laplace"\nepsilon = 1.0\nvia = "shuffler"'
BITS = 'name = "shuffled-binomial"\nepsilon = 1.0\ndelta = 1e-3'
IDENTITY = 'name = "identity"\nvia = "shuffler"'
TREE = 'name = "tree"\nepsilon = 5.0\ndelta = 1e-2\nbatches = 32\nvia = "shuffler"'
ROWS = {
    "se-by-4": ("first_batch = 3\nbase = 4", LAPLACE, 700, LEAVING),
    "se-published-code": ('first_batch = 3\nconstants = "published-code"', SKELLAM, 700, LEAVING),
    "dp-se": ('name = "dp-se"\nfailure = 0.5', LAPLACE, 2000, LEAVING),
    "vb-sdp-ae": ('name = "vb-sdp-ae"\nfirst_batch = 4', BITS, 1400, LEAVING),
    "ucb1": ('name = "ucb1"', IDENTITY, 24, ""),
    "adap-ucb": ('name = "adap-ucb"\nfirst_batch = 5', SKELLAM, 700, LEAVING),
    "dp-ucb": ('name = "dp-ucb"\nbatch = 30', TREE, 700, LEAVING),
    "dp-ucb-of-single-clients": ('name = "dp-ucb"', TREE, 24, ""),
    "thompson": ('name = "thompson"\nfirst_batch = 4', LAPLACE, 900, LEAVING),
    "phased-elimination": ('name = "phased-elimination"', IDENTITY, 1200, LEAVING),
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with forking(), Stack(DataDir(Path(tmp_path_factory.mktemp("stack"))), 0) as running:
        yield running


FEW = 2  # of them; CI plays all


@pytest.mark.parametrize("row", picked(list(ROWS), FEW, "policies"))
def test_a_policy_is_the_same_in_process_and_over_http(stack: Stack, row: str) -> None:
    words, mechanism, horizon, fleet = ROWS[row]
    world = 'name = "bernoulli"\nmeans = [0.05, 0.95, 0.5]'
    if row == "phased-elimination":
        world = 'name = "linear-sphere"\narms = 6'
    file = parse(
        f'run = "{row}"\nhorizon = {horizon}\n[policy]\n{words}\n[mechanism]\n{mechanism}\n[unsafe]\nnoise_seed = 7\n'
        f"[environment]\nseed = 7\n{world}\n[fleet]\nprocesses = 1\n{fleet}"
    )
    here, there = in_process.run(file), over_http(stack, file)
    assert learned(there) == learned(here)
    assert sum(here.pulls) == horizon
    assert here.rounds[-1].cohorts[-1].estimate is not None
    if "ucb" not in row and row != "thompson":  # which drop no arm
        assert any(record.eliminated for record in here.rounds), "a run without an elimination compares too little"
