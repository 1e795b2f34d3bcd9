"""Tests that the in-process driver and the services agree in every number."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrust.common.dp.mechanisms import MECHANISMS as KINDS
from distrust.lab.play import in_process
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking
from tests.support.http_runs import MECHANISMS, in_background, learned, over_http, smallest_run
from tests.support.picked import picked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with forking(), Stack(DataDir(Path(tmp_path_factory.mktemp("stack"))), 0) as running:
        yield running


BOTH_WAYS = {"central-gaussian"}
"""Mechanisms that are played through both intermediaries. What is drawn does not depend on the intermediary, so the
others take one: the shuffler if they may, which is the quicker one. Masked sums are in many of them."""

PLAYED = [
    name
    for name in MECHANISMS
    if name.endswith("-paper")
    or (mechanism := name.rpartition("-")[0]) in BOTH_WAYS
    or name == f"{mechanism}-{'shuffler' if 'shuffler' in KINDS[mechanism].vias else 'aggregator'}"
]


FEW = 5  # of them; CI plays all


@pytest.mark.parametrize("mechanism", picked(PLAYED, FEW, "same sums"))
def test_a_seeded_run_gives_the_same_sums_and_eliminations_in_process_and_over_http(
    stack: Stack, mechanism: str
) -> None:
    file = smallest_run(f"same-{mechanism}", mechanism)
    here, there = in_process.run(file), over_http(stack, file)
    assert learned(there) == learned(here)
    assert any(record.eliminated for record in here.rounds), "a run without an elimination compares too little"
    assert here.rounds[0].cohorts[0].survivors is not None
    assert here.rounds[0].cohorts[0].survivors < here.rounds[0].cohorts[0].clients


def test_runs_at_once_do_not_mix(stack: Stack) -> None:
    """Two runs of one kind at each intermediary are played at the same time, one of each kind by two fleets."""
    kinds = 2 * ["distributed-polya-aggregator", "shuffled-binomial-shuffler"]
    files = [
        smallest_run(f"beside-{seed}", kind, seed=seed, processes=2 if seed < 23 else 1)
        for seed, kind in enumerate(kinds, 21)
    ]
    futures = [in_background(lambda file=file: over_http(stack, file)) for file in files]  # type: ignore[misc]
    for file, future in zip(files, futures, strict=True):
        assert learned(future.result(600)) == learned(in_process.run(file))
