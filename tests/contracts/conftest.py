"""Fixtures of both intermediaries, and of the shuffler that assigns actions, each with an open cohort."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distrust.common.messages.cohort import Cohort
from tests.support.parties import AggregatorParty, AssigningShufflerParty, Party, ShufflerParty


@pytest.fixture(params=[ShufflerParty, AssigningShufflerParty, AggregatorParty])
def party(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Party]:
    make: Callable[[Path], Party] = request.param
    party = make(tmp_path)
    yield party
    party.stop()


@pytest.fixture
def cohort(party: Party) -> Cohort:
    cohort = party.cohort()
    assert party.open(cohort).status_code == 200
    return cohort
