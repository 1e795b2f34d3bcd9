"""Tests a notebook's connection to real services: runs, results, ledgers, transcripts, calls without a token."""

import asyncio
import doctest
import html
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import distrust
from distrust.common.errors import BadMessage, BadParameter, Conflict, Gone, RunFailed, Unauthorized, Unavailable
from distrust.lab.__main__ import app
from distrust.lab.play.result import Result
from distrust.lab.services.connection import Connection
from distrust.lab.services.outline import Pages, Wanted
from distrust.lab.services.parties import StoredParties
from distrust.lab.stack.data_dir import DataDir
from tests.support.forked import forking
from tests.support.http_runs import learned

pytestmark = pytest.mark.slow

TABLE: dict[str, Any] = {
    "run": "first",
    "horizon": 200,
    "policy": {"first_batch": 5},
    "mechanism": {"name": "distributed-polya", "epsilon": 1.0},
    "environment": {"name": "bernoulli", "seed": 4, "means": [0.1, 0.9]},
    "unsafe": {"noise_seed": 3},
}


BODIES = """
    SELECT m.body FROM messages AS m JOIN cohorts AS c ON c.number = m.cohort
    WHERE instr(c.body, ?) AND m.slot >= 0 AND length(m.body) > 24
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home") / ".distrust"


@pytest.fixture(scope="module")
def connection(folder: Path) -> Iterator[Connection]:
    with forking(), distrust.services(folder) as started:
        yield started


@pytest.fixture(scope="module")
def result(connection: Connection) -> Result:
    async def in_a_notebook() -> Result:
        return connection.run(TABLE)

    return asyncio.run(in_a_notebook())


def test_a_run_over_services_has_the_numbers_of_the_run_in_process(connection: Connection, result: Result) -> None:
    assert learned(result) == learned(distrust.run(TABLE))
    assert result.formed
    asked_later = connection.result(TABLE)
    assert learned(asked_later) == learned(result)
    assert (asked_later.seconds, asked_later.clients_per_second) == (None, None)
    assert "speed" not in asked_later._repr_html_()


def test_the_server_lists_the_run_its_rounds_and_its_ledger(connection: Connection, result: Result) -> None:
    listed = distrust.connect(connection.urls.server)
    assert [line.run for line in listed.runs()] == ["first"]
    assert listed.view("first").snapshot.chosen == result.chosen
    assert [record.number for record in listed.rounds("first")] == [one.number for one in result.rounds]
    assert list(listed.runs().frame()["run"]) == ["first"]
    rounds = listed.rounds("first")
    assert list(rounds.frame()["cohort"]) == [cohort.cohort for one in rounds for cohort in one.cohorts]
    assert list(listed.view("first").frame()["arm"]) == [0, 1]
    assert list(listed.ledger("first").frame()["round"]) == [one.number for one in rounds]
    ledger = listed.ledger("first")
    assert [line.round for line in ledger.lines] == [one.number for one in result.rounds]
    for shown, words in (
        (listed.runs(), ("1 in all", "first", "finished")),
        (rounds, (f"{len(rounds)} in all", "closed", rounds[-1].guarantee.figures())),
        (listed.view("first"), ("run first: finished", "confidence interval", "chosen", *result.guarantee.assumptions)),
        (ledger, ("ledger of first", "none declared", ledger.total.line(), *ledger.total.assumptions)),
    ):
        text = html.unescape(shown._repr_html_())
        assert [word for word in words if word not in text] == []
        assert len(repr(shown)) < 120
    assert repr(listed.runs()) == "<Listed of 1: first>"


@pytest.mark.usefixtures("result")
@pytest.mark.parametrize("name", ["connect", "inspect", "services"])
def test_the_examples_of_a_connection_print_what_they_show(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (example,) = doctest.DocTestFinder().find(getattr(distrust, name), name)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_a_cohort_is_inspected_as_far_as_addresses_and_tokens_reach(connection: Connection, result: Result) -> None:
    inspection = connection.inspect(result.rounds[-1].cohorts[0], limit=1)
    frame = inspection.frame()
    assert set(frame["cohort"]) == {result.rounds[-1].cohorts[0].cohort}
    assert {"tickets", "masked", "batch", "estimate"} <= set(frame["stage"])
    assert "the aggregator saw" in inspection._repr_html_()
    urls = connection.urls
    addresses = {"shuffler": urls.shuffler, "aggregator": urls.aggregator}
    with pytest.raises(Unauthorized, match=r"the aggregator: it wants the inspector's token.*; the server: it wants"):
        distrust.connect(urls.server, **addresses).inspect(result)
    with pytest.raises(Unauthorized):
        distrust.connect(urls.server, **addresses, token=urls.token, inspector="a wrong one").inspect(result)
    for tokens, lacks in (({"token": urls.token}, "aggregator"), ({"inspector": urls.inspector}, "server")):
        sight = distrust.connect(urls.server, **addresses, **tokens).inspect(result, limit=1).party_views[0]
        assert [party for party, _ in sight.missing] == [lacks]
        assert (sight.by_intermediary is None, sight.by_server is None) == (lacks == "aggregator", lacks == "server")
        assert sight.life.steps
    partial = distrust.connect(urls.server, token=urls.token).inspect(result, limit=1)
    assert "and what clients sent, is missing: no address was given" in partial._repr_html_()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE cohorts SET message = '{'",
        "UPDATE cohorts SET message = json_set(message, '$.terms', '{}')",
        "UPDATE cohorts SET message = json_set(message, '$.terms', replace(hex(zeroblob(50000)), '00', '['))",
        "UPDATE outcomes SET body = '{'",
    ],
)
def test_a_damaged_row_of_a_stopped_server_is_one_sentence(
    damage: str, result: Result, folder: Path, tmp_path: Path
) -> None:
    assert result.rounds
    with closing(sqlite3.connect(folder / "server.sqlite3")) as live:
        live.execute("VACUUM INTO ?", (str(tmp_path / "server.sqlite3"),))
    with closing(sqlite3.connect(tmp_path / "server.sqlite3")) as database:
        database.execute(damage)
        database.commit()
    with pytest.raises(BadMessage, match="what the database has of round 1 of run first cannot be read"):
        asyncio.run(StoredParties(DataDir(tmp_path)).outline(Wanted("first", 1, None, 2)))


def test_what_only_one_stopped_party_lacks_leaves_the_others_columns(
    result: Result, folder: Path, tmp_path: Path
) -> None:
    """The aggregator's database is none, and the server has no keys: no masked cohort needs one."""
    assert result.rounds
    with closing(sqlite3.connect(folder / "server.sqlite3")) as live:
        live.execute("VACUUM INTO ?", (str(tmp_path / "server.sqlite3"),))
    (tmp_path / "aggregator.sqlite3").write_bytes(b"no database " * 999)
    parties, wanted = StoredParties(DataDir(tmp_path)), Wanted("first", 1, None, 2)

    async def seen() -> tuple[Pages | None, Pages | None]:
        outline = await parties.outline(wanted)
        cohort = outline.address(outline.cohorts[0].cohort)
        return await parties.pages("aggregator", wanted, cohort), await parties.pages("server", wanted, cohort)

    at_aggregator, at_server = asyncio.run(seen())
    assert at_aggregator is None
    assert "no database" in parties.missing["aggregator"]
    assert at_server is not None
    assert at_server.messages


def test_a_started_run_waits_for_fleets_and_can_be_cancelled(connection: Connection) -> None:
    other = TABLE | {"run": "second"}
    with pytest.raises(Unauthorized):
        distrust.connect(connection.urls.server).start(other)
    assert connection.start(other).state == "running"
    with pytest.raises(Unavailable, match="run second still runs after 0 seconds"):
        connection.wait("second", seconds=0)
    with pytest.raises(Conflict):
        connection.start(other | {"horizon": 300})
    assert connection.cancel("second").state == "cancelled"
    with pytest.raises(RunFailed, match="run second was cancelled"):
        connection.result(other)


def test_a_world_that_no_other_fleet_knows_is_not_started(connection: Connection) -> None:
    world = {"name": "bernoulli", "means": [0.1, 0.9]}
    with pytest.raises(BadParameter, match=r"environment\.seed is missing: .*give the seed of their world"):
        connection.start(TABLE | {"run": "third", "environment": world})
    with pytest.raises(BadParameter, match="shuffler is missing: give the shuffler's address"):
        distrust.connect(connection.urls.server).run(TABLE)


def test_a_result_needs_the_run_file_that_the_run_was_started_with(connection: Connection, result: Result) -> None:
    assert result.run == "first"
    with pytest.raises(BadParameter, match="the server's run of this name has another configuration"):
        connection.result(TABLE | {"horizon": 300})


def test_a_pruned_run_is_gone_at_all_services_and_the_command_says_so(folder: Path, connection: Connection) -> None:
    """The databases are searched while the services run: what is deleted is not in their logs either."""
    table = {**TABLE, "run": "gone", "intermediary": {"keep_seconds": 3600.0}}
    connection.run(table)
    with closing(sqlite3.connect(folder / "aggregator.sqlite3")) as database:
        rows = database.execute(BODIES, (b'"run":"gone"',)).fetchall()
    bodies = [body for (body,) in rows]

    def found() -> int:
        files = b"".join(file.read_bytes() for file in folder.glob("aggregator.sqlite3*"))
        return sum(body[len(body) // 2 - 8 :][:16] in files for body in bodies)

    assert found() == len(bodies) > 100
    done = CliRunner().invoke(app, ["prune", "gone", "--data", str(folder), "--json", "-"])
    assert done.exit_code == 0, done.exception
    (stone,) = json.loads(done.stdout)["pruned"]
    assert (stone["run"], stone["state"], stone["guarantee"]["kind"]) == ("gone", "finished", "none")
    assert found() == 0
    with pytest.raises(Gone, match="run gone was pruned at"):
        connection.view("gone")
    assert connection.prune("gone").pruned == stone["pruned"]
    with closing(sqlite3.connect(folder / "server.sqlite3")) as database:
        counts = database.execute(
            "SELECT (SELECT count(*) FROM runs WHERE run = 'gone'), (SELECT count(*) FROM cohorts WHERE run = 'gone')"
        ).fetchone()
    assert counts == (0, 0)
