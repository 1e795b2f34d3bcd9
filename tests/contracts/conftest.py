"""Fixtures of both intermediaries, each with an open cohort, and of databases that earlier programs left."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distrust.common.protocol.messages.cohort import Cohort
from tests.support.parties import AggregatorParty, AssigningShufflerParty, Party, ShufflerParty
from tests.support.postgres import create_database, postgres
from tests.support.schemas import first_schema

NewUrl = Callable[[str], str]


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


@pytest.fixture(scope="module")
def database_server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> NewUrl:
    """Return a function from a party to the URL of a new database."""
    if request.param == "sqlite":
        return lambda party: f"sqlite:///{tmp_path}/{party}.sqlite3"
    server, name = request.getfixturevalue("database_server"), re.sub(r"\W", "_", tmp_path.name)
    return lambda party: create_database(server, f"{name}_{party}")


@pytest.fixture
def old(new_url: NewUrl) -> NewUrl:
    """Return a function from a party to the URL of its database as 6102dc19 left it."""

    def loaded(party: str) -> str:
        url = new_url(party)
        first_schema(party, url)
        return url

    return loaded
