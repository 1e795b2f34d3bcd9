"""Tests that services keep their state in PostgreSQL as they do in SQLite, with equal work and promises."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.attacks import OPERATOR, attacked, refusal
from tests.support.cohorts import address
from tests.support.forked import forking
from tests.support.postgres import create_database, postgres

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    with forking():
        yield


@pytest.fixture(scope="module")
def shuffler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the shuffler at which the server under test opens its cohorts."""
    with attacked("shuffler", tmp_path_factory.mktemp("elsewhere")) as service:
        yield service.url


STATE = {
    "shuffler": f"/v1/cohorts/{address('target')}",
    "aggregator": f"/v1/cohorts/{address('target')}/stage",
    "server": "/v1/runs/target",
}


@pytest.mark.parametrize("party", STATE)
def test_a_service_works_on_postgresql_and_knows_all_of_it_after_a_kill(
    party: str, server: str, shuffler: str, tmp_path: Path
) -> None:
    variables = {"DISTRUST_DATABASE": create_database(server, party), "DISTRUST_SHUFFLER_URL": shuffler}
    variables["DISTRUST_KEYS"] = str(tmp_path / "keys")
    with attacked(party, tmp_path, **variables) as first:
        first.prepare()
        assert httpx.get(f"{first.url}/readyz").is_success
        before = httpx.get(first.url + STATE[party], headers=OPERATOR)
        assert before.is_success
        second = tmp_path / "second"
        second.mkdir()
        code, words = refusal(party, second, **variables)
        assert (code, words.count("\n")) == (2, 1)
        assert "is in use by another process: stop that one" in words
        first.process.kill()
        first.process.wait()
    with attacked(party, tmp_path, **variables) as again:
        assert httpx.get(again.url + STATE[party], headers=OPERATOR).json() == before.json()
        again._names = itertools.count(100)  # new names for honest work
        again.honest_seconds(1)
    assert not (tmp_path / ".distrust").exists()  # no SQLite file beside it


def test_a_postgresql_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    code, words = refusal("shuffler", tmp_path, DISTRUST_DATABASE="postgresql://nobody@127.0.0.1:9/none")
    assert (code, words.count("\n")) == (2, 1), words
    assert words.startswith("distrust shuffler: database 127.0.0.1/none: ")
