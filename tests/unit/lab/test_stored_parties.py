"""Tests that `distrust inspect` reads the databases of a stopped stack without writing or locking."""

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distrust.common.errors import BAD_INPUT, BadParameter, RunFailed, Unavailable, WrongCohort, exit_status
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.stored_file import open_stored
from distrust.lab.__main__ import app
from distrust.lab.services.outline import Wanted
from distrust.lab.services.parties import StoredParties
from distrust.lab.stack.data_dir import DataDir
from distrust.server.storage.keys import RunIdentity, new_keys
from distrust.server.storage.rows import RunRow
from distrust.server.storage.store import open_database
from distrust.shuffler.service import Shuffler
from tests.support.cohorts import Authority, address, labelled
from tests.support.manual_clock import ManualClock
from tests.support.server_harness import config, key_folder

WANTED = Wanted("first", 1, None, 3)
RUN = (
    "INSERT INTO runs (number, run, config, digest, run_id, ticket_key, seal_key, state) "
    "VALUES (1, 'first', {}, x'00', x'00', x'00', x'00', 'running')"
)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return a folder whose server was stopped before its first run."""
    open_database(f"sqlite:///{tmp_path}/server.sqlite3").close()
    return tmp_path


def change(folder: Path, *commands: str) -> None:
    with closing(sqlite3.connect(folder / "server.sqlite3", isolation_level=None)) as database:
        for command in commands:
            database.execute(command)


def outline(folder: Path) -> None:
    asyncio.run(StoredParties(DataDir(folder)).outline(WANTED))


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()}


def test_reading_leaves_no_file_and_changes_none(stopped: Path) -> None:
    before = files(stopped)
    with pytest.raises(WrongCohort, match="run first is not known here"):
        outline(stopped)
    assert files(stopped) == before


def test_commits_that_only_the_log_of_a_killed_server_has_are_read(stopped: Path) -> None:
    path = stopped / "server.sqlite3"
    if (child := os.fork()) == 0:  # SQLite empties the log when it closes a database
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute(RUN.format("'{}'"))
        os._exit(0)
    os.waitpid(child, 0)
    assert (stopped / "server.sqlite3-wal").stat().st_size > 0
    with pytest.raises(Exception, match="run first failed: its stored configuration is refused"):
        outline(stopped)


def test_a_database_of_another_revision_is_not_migrated_and_the_command_is_named(stopped: Path) -> None:
    change(stopped, "UPDATE alembic_version SET version_num = '0000'")
    before = files(stopped)
    with pytest.raises(Unavailable, match=rf"has schema 0000, .*`distrust migrate --data {stopped}`"):
        outline(stopped)
    assert files(stopped) == before


@pytest.mark.parametrize("raw", [b"", b"no database " * 999])
def test_what_is_no_servers_database_is_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "server.sqlite3").write_bytes(raw)
    with pytest.raises(BadParameter, match=r"server\.sqlite3': it is (damaged, or )?no database"):
        outline(tmp_path)


def test_a_folder_without_a_server_and_a_file_of_another_user_are_refused(
    stopped: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(BadParameter, match=rf"data = '{empty}': no server's database is there"):
        outline(empty)
    assert list(empty.iterdir()) == []
    monkeypatch.setattr("os.access", lambda _path, mode: mode != os.R_OK)  # tests may run as root, who reads all
    with pytest.raises(BadParameter, match=r"server\.sqlite3 may be read by its owner only"):
        outline(stopped)
    assert stat.S_IMODE((stopped / "server.sqlite3").stat().st_mode) == 0o600


def test_a_read_during_which_a_service_starts_is_refused(stopped: Path) -> None:
    parties = StoredParties(DataDir(stopped))
    with closing(sqlite3.connect(stopped / "server.sqlite3")) as service:
        service.execute("CREATE TABLE other (x)")
        service.commit()
        with pytest.raises(Unavailable, match="a service has opened it meanwhile; try again"):
            asyncio.run(parties.outline(WANTED))


def test_a_link_to_a_database_is_read_with_the_log_beside_its_target(stopped: Path) -> None:
    (stopped / "real").mkdir()
    path = (stopped / "server.sqlite3").rename(stopped / "real" / "server.sqlite3")
    (stopped / "server.sqlite3").symlink_to(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(RUN.format("'{}'"))
        assert path.with_name("server.sqlite3-wal").stat().st_size > 0
        with pytest.raises(RunFailed, match="run first failed: its stored configuration is refused"):
            outline(stopped)


ENDLESS = "WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more) SELECT n, n, n, n, n, n FROM more"
AS_A_TABLE = f"UPDATE sqlite_master SET type = 'table', sql = 'CREATE VIEW runs AS {ENDLESS}' WHERE name = 'runs'"
COMPUTED = "CREATE TABLE runs (number, run, config, digest, state, reason AS (hex(zeroblob(400000000))))"


@pytest.mark.parametrize(
    "commands",
    [
        ("DROP TABLE runs", f"CREATE VIEW runs AS {ENDLESS}"),
        ("DROP TABLE runs", COMPUTED, "INSERT INTO runs VALUES (1, 'first', '{}', x'00', 'running')"),
        ("PRAGMA writable_schema = ON", AS_A_TABLE),
        ("DROP TABLE runs", "CREATE VIRTUAL TABLE runs USING fts4(run, state)"),
    ],
    ids=["view", "computed-column", "view-as-a-table", "virtual-table"],
)
def test_what_is_computed_while_it_is_read_is_refused(commands: tuple[str, ...], stopped: Path) -> None:
    change(stopped, *commands)
    with pytest.raises(BadParameter, match=r"server\.sqlite3': it (must have .* alone: it has|is damaged)"):
        outline(stopped)
    refused = CliRunner().invoke(app, ["list", "runs", "--data", str(stopped)]).exception
    assert isinstance(refused, BadParameter)
    assert "server.sqlite3 cannot be read as one" in refused.detail


def test_a_read_that_takes_long_or_a_long_value_ends(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(stopped, RUN.format("hex(zeroblob(1000))"))
    monkeypatch.setattr("distrust.common.protocol.storage.stored_file.DEADLINE_SECONDS", 0.02)
    opened = open_stored(stopped / "server.sqlite3")
    with closing(opened), pytest.raises(sqlite3.OperationalError, match="interrupted"):
        opened.execute(ENDLESS).fetchall()
    monkeypatch.setattr("distrust.common.protocol.storage.stored_file.DEADLINE_SECONDS", 60)
    monkeypatch.setattr("distrust.common.protocol.storage.stored_file.LONGEST_VALUE", 1500)
    with pytest.raises(BadParameter, match=r"server\.sqlite3': it has a value that is too long"):
        outline(stopped)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ALTER TABLE runs RENAME COLUMN reason TO because", "of this service's version: a column is missing"),
        ("DROP TABLE runs", "it is no database of a service"),
    ],
)
def test_what_no_later_try_reads_is_bad_input_and_no_try_later(command: str, words: str, stopped: Path) -> None:
    change(stopped, command)
    refused = CliRunner().invoke(app, ["inspect", "first", "--data", str(stopped)]).exception
    assert isinstance(refused, BadParameter)
    assert exit_status(refused) == BAD_INPUT
    assert words in refused.detail
    assert "try again" not in refused.detail


@pytest.mark.parametrize("name", ["server.sqlite3", "server.sqlite3-wal"])
def test_a_pipe_in_place_of_a_file_is_refused(name: str, stopped: Path) -> None:
    (stopped / name).unlink(missing_ok=True)
    os.mkfifo(stopped / name, 0o600)
    with pytest.raises(BadParameter, match=f"{name} is no file"):
        outline(stopped)


def test_a_pipe_in_place_of_a_key_file_opens_no_record(stopped: Path) -> None:
    row = RunRow(config(), RunIdentity(bytes(16), new_keys().public), "running", None)
    file = key_folder(stopped).file(run_digest(row.config.digest(), row.identity.run_id))
    os.mkfifo(file, 0o600)
    assert StoredParties(DataDir(stopped))._key(row) is None


def test_two_revisions_in_a_database_are_refused(stopped: Path) -> None:
    change(stopped, "INSERT INTO alembic_version VALUES ('0099')")
    with pytest.raises(Unavailable, match=r"has schema \['\d+', '0099'\], this program needs"):
        outline(stopped)


@pytest.mark.parametrize(
    "damage",
    ["body = hex(body)", "body = 7", "slot = -1, stage = 'order'", "stage = 'report', body = x'7b7d', slot = -1"],
)
def test_stored_values_that_no_shuffler_writes_are_one_sentence(damage: str, stopped: Path) -> None:
    """A service's code believes its own database, but this one may come from another user."""
    authority, database = Authority(), Database(f"sqlite:///{stopped}/shuffler.sqlite3", METADATA, VERSION)
    shuffler = Shuffler(database, ManualClock())
    cohort = shuffler.open(authority.bits())
    shuffler.receive(cohort.address, "report", authority.upload(cohort, "report", {0: labelled(cohort, [1, 2, 3])}))
    shuffler.close()
    database.close()
    parties = StoredParties(DataDir(stopped))
    assert asyncio.run(parties.pages("shuffler", WANTED, address("c1"))) is not None
    with closing(sqlite3.connect(stopped / "shuffler.sqlite3")) as stored:
        assert stored.execute(f"UPDATE messages SET {damage}").rowcount == 1
        stored.commit()
    parties = StoredParties(DataDir(stopped))
    assert asyncio.run(parties.pages("shuffler", WANTED, address("c1"))) is None
    assert parties.missing["shuffler"].startswith("what the database has of cohort c1 cannot be read: ")
