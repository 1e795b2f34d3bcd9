"""Tests that databases of earlier programs are migrated whole or not at all, on SQLite and on PostgreSQL.

They begin with what 6102dc19 left: two finished runs, and two open ones with an open cohort each. A further revision
adds its expectations to `RUNS` and to the rows that are added.
"""

import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import MetaData, select
from sqlalchemy.exc import IntegrityError
from typer.testing import CliRunner, Result

from distrust.common.errors import BadParameter, Unavailable, exit_status
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.migration import migrate, upgrade
from distrust.common.protocol.storage.schema import create_schema, stored_schema
from distrust.lab.__main__ import app
from distrust.lab.cli.migrate import HISTORIES
from distrust.server.storage.tables import RUNS as STORED_RUNS
from tests.support.schemas import HISTORY, METADATA, OURS, PARTIES, VERSION, content, differences, engine

RUNS = {"summed": "finished", "shuffled": "finished", "open-summed": "failed", "open-shuffled": "failed"}
"""State of each run of the server, when it is migrated."""

NUMBER = {"server": 2, "shuffler": 4, "aggregator": 4}
VERSIONS = frozenset({"alembic_version", "schema_version", "holder"})

NewUrl = Callable[[str], str]


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["migrate", *words])


def refusal(*words: str) -> tuple[int, str]:
    """Return the exit status of the command and its one line."""
    error = command(*words).exception
    assert isinstance(error, BadParameter | Unavailable), error
    assert "\n" not in error.detail
    return exit_status(error), error.detail


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.few(3)
def test_a_database_of_before_revisions_is_refused_until_the_command_that_the_refusal_names_has_migrated_it(
    party: str, old: NewUrl
) -> None:
    url = old(party)
    before = content(url, without=VERSIONS)
    with pytest.raises(
        Unavailable, match=f"has schema {NUMBER[party]}, this program needs {VERSION[party]}"
    ) as refused:
        Database(url, METADATA[party], VERSION[party])
    assert content(url, without=VERSIONS) == before
    named = shlex.split(re.findall(r"`distrust migrate (.*?)`", refused.value.detail)[0])
    done = command(*named, "--backed-up")
    assert done.exit_code == 0, done.exception
    assert done.stdout.count("\n") == 1
    assert f": schema {NUMBER[party]} is now {VERSION[party]}" in done.stdout
    with closing(Database(url, METADATA[party], VERSION[party])) as database, database.reading() as connection:
        assert differences(connection, METADATA[party]) == []
        if party == "server":
            states = connection.execute(select(STORED_RUNS.c.run, STORED_RUNS.c.state)).all()
            assert {str(run): str(state) for run, state in states} == RUNS
    after = content(url)
    made = {name: len(rows) - len(before.get(name, [])) for name, rows in after.items() if name not in VERSIONS}
    released = sum("done" in row for row in before["cohorts"])
    assert {name: more for name, more in made.items() if more} == (
        {"events": 2, "kept": len(before["batches"])} if party == "server" else {"delivered": released}
    )
    assert before.keys() <= made.keys()
    assert after["schema_version"] == [(0,)]  # earlier programs compare it with their own number, and refuse
    again = command(*named)
    assert again.stdout.endswith(f": schema {VERSION[party]}, nothing to do\n")
    assert content(url) == after


def test_slots_that_were_granted_twice_keep_their_first_grant(old: NewUrl) -> None:
    """Until revision 0002 a commit could land after the server had read its grants again."""
    url = old("server")
    first = content(url)["grants"]
    other = (
        "INSERT INTO grants (number, run, request, round, want, cohort, first, count, key_hashes) "
        "SELECT 99, run, 'another', round, want, cohort, first, count - 1, key_hashes FROM grants WHERE number = 2"
    )
    database = engine(url)
    with database.begin() as connection:
        connection.exec_driver_sql(other)
    assert command("--database", url, "--backed-up").exit_code == 0
    assert [row[0] for row in content(url)["grants"]] == [row[0] for row in first]
    with pytest.raises(IntegrityError), database.begin() as connection:
        connection.exec_driver_sql(other)
    database.dispose()


def test_a_postgresql_database_is_not_touched_before_the_operator_says_that_a_copy_exists(
    new_url: NewUrl, old: NewUrl
) -> None:
    url = old("shuffler")
    before = content(url)
    if url.startswith("sqlite"):
        assert command("--database", url).exit_code == 0
        return
    code, why = refusal("--database", url)
    assert code == 2
    assert "back it up first, as with pg_dump, and say so with --backed-up" in why
    assert content(url) == before


def test_a_database_that_a_service_holds_is_left_alone(old: NewUrl, new_url: NewUrl) -> None:
    url = old("aggregator")

    class Running(Database):
        def _prepare(self, metadata: MetaData, version: str) -> None:
            """Take the schema as the program that made it does."""

    with closing(Running(url, METADATA["aggregator"], "")) as service:
        service.hold()
        with service.transaction() as connection:
            connection.exec_driver_sql("UPDATE cohorts SET since = since")
        before = content(url)
        code, why = refusal("--database", url, "--backed-up")
        assert (code, "is in use by another process" in why) == (75, True), why
        assert content(url) == before
    assert command("--database", url, "--backed-up").exit_code == 0


KILL = """
import os, signal
from alembic import op
revision, down_revision = "9998", {before!r}

def upgrade():
    op.add_column({table!r}, __import__("sqlalchemy").Column("more", __import__("sqlalchemy").Integer()))
    op.execute("DELETE FROM {table}")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("party", ["server", "aggregator"])
def test_a_kill_in_the_middle_leaves_the_database_as_it_was(party: str, old: NewUrl, tmp_path: Path) -> None:
    url, history = old(party), HISTORY[party]
    shutil.copytree(history.folder, tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "migrations" / "killed.py").write_text(KILL.format(before=history.newest, table=history.table))
    broken = replace(history, folder=tmp_path / "migrations")
    before = content(url, without=frozenset({"holder"}))
    if (child := os.fork()) == 0:
        try:
            migrate(url, [broken], backed_up=True)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert content(url, without=frozenset({"holder"})) == before
    assert command("--database", url, "--backed-up").exit_code == 0
    assert len(content(url)[history.table]) == len(before[history.table])


@pytest.mark.parametrize("party", PARTIES)
def test_the_first_revision_is_the_schema_of_6102dc19(party: str, old: NewUrl, new_url: NewUrl, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    shutil.copy(HISTORY[party].folder / "revision_0001.py", tmp_path / "first")
    with_tables, of_revision = engine(old(party)), engine(new_url(f"{party}_again"))
    tables = MetaData()
    with of_revision.begin() as connection:
        upgrade(connection, replace(HISTORY[party], folder=tmp_path / "first"), None)
        tables.reflect(connection)
    with with_tables.connect() as connection:
        assert differences(connection, tables) == []
    with_tables.dispose()
    of_revision.dispose()


@pytest.mark.parametrize("party", ["server", "aggregator"])
def test_a_new_database_has_the_tables_that_the_revisions_make(party: str, new_url: NewUrl) -> None:
    made, revised, created = engine(new_url(party)), MetaData(), MetaData()
    with made.begin() as connection:
        upgrade(connection, HISTORY[party], None)
        assert differences(connection, METADATA[party]) == []
        assert stored_schema(connection) == VERSION[party]
        revised.reflect(connection)
        lacking = MetaData()
        for table in METADATA[party].sorted_tables[1:]:
            table.to_metadata(lacking)
        assert differences(connection, lacking) != []  # the comparison sees a table too many
        revised.drop_all(connection)
        create_schema(connection, METADATA[party], VERSION[party])
        assert differences(connection, revised) == []
        created.reflect(connection)
    assert created.tables.keys() - OURS == revised.tables.keys() - OURS
    made.dispose()


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.table)
def test_revisions_have_four_digits_in_the_order_of_their_making(history: object) -> None:
    party = "server" if history is HISTORY["server"] else "aggregator"
    assert HISTORY[party].newest == VERSION[party]
    names = [script.revision for script in HISTORY[party].scripts().walk_revisions()][::-1]
    assert names == [f"{number:04}" for number in range(1, len(names) + 1)]
    assert {path.stem for path in HISTORY[party].folder.glob("*.py")} == {f"revision_{name}" for name in names}
