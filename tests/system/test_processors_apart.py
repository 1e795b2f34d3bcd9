"""Tests that services and fleets whose processors compute other last bits play every mechanism together."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distrust.lab.play.run_file import RunFile
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.http_runs import MECHANISMS, in_background, over_http, seeded_run, smallest_run
from tests.support.processors import SETS, variables

pytestmark = pytest.mark.kernels

PAIRS = list(itertools.pairwise([*SETS, "the processor"]))
"""Features of the services, and of the fleet: each set is in both places once."""

SECONDS = 300.0

VECTORS = {
    "shuffled-binomial": 'name = "shuffled-binomial"\nepsilon = 4.0\ndelta = 1e-5',
    "shuffled-gaussian": 'name = "shuffled-gaussian"\nepsilon = 5.0\ndelta = 1e-2',
    "distributed-skellam": 'name = "distributed-skellam"\nepsilon = 2.0\ndelta = 1e-5',
    "distributed-skellam-renyi": 'name = "distributed-skellam"\nepsilon = 2.0',
    "distributed-discrete-gaussian": 'name = "distributed-discrete-gaussian"\nepsilon = 5.0\ndelta = 1e-5',
}
"""Contextual vectors, in ℓ₂ balls: their searches end farthest apart."""


@contextmanager
def features(name: str) -> Iterator[None]:
    """Start processes with a set of features meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in {one for words in SETS.values() for one in words}:
            patch.delenv(variable, raising=False)
        for variable, setting in variables(name).items():
            patch.setenv(variable, setting)
        yield


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}".replace(" ", "-"))
def parties(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, str]]:
    """Yield services with one set of features, and the name of that of their fleets."""
    services, fleets = request.param
    with features(services):
        stack = Stack(DataDir(tmp_path_factory.mktemp("stack")), 0)
        stack.__enter__()
    try:
        yield stack, fleets
    finally:
        stack.__exit__(None, None, None)


def play(parties: tuple[Stack, str], file: RunFile) -> None:
    """Play a run to its end; no client refuses, and every cohort is opened."""
    stack, fleets = parties
    with features(fleets):
        result = in_background(lambda: over_http(stack, file)).result(SECONDS)
    assert result.refusals == {}
    assert result.aborted == 0
    assert all(cohort.survivors for record in result.rounds for cohort in record.cohorts)
    assert result.rounds


def test_the_sets_of_features_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for services, fleets in PAIRS:
            print(f"\nservices: {services}, {variables(services)}; fleet: {fleets}, {variables(fleets)}")  # noqa: T201
    assert len(SETS) >= 2
    assert os.environ.get("OPENBLAS_CORETYPE") is None, "the processor itself is one of them"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_run_is_played_by_services_and_a_fleet_of_other_processors(
    parties: tuple[Stack, str], mechanism: str
) -> None:
    play(parties, smallest_run(f"apart-{mechanism}", mechanism))


@pytest.mark.parametrize("mechanism", VECTORS)
def test_a_run_of_vectors_is_played_by_services_and_a_fleet_of_other_processors(
    parties: tuple[Stack, str], mechanism: str
) -> None:
    file = seeded_run(
        f"apart-vectors-{mechanism}",
        horizon=600,
        policy='name = "linucb"\nbatch = 200',
        mechanism=VECTORS[mechanism],
        world='name = "contextual-synthetic"\narms = 10\ndimension = 3',
        leaving=0.05,
        processes=1,
    )
    play(parties, file)
