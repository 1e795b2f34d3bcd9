"""Tests of `distrust migrate` on files: what it says, keeps and refuses; `test_migrations.py` has what it changes."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from distrust.common.errors import BadParameter, Unavailable, exit_status
from distrust.lab.__main__ import app
from distrust.lab.cli.migrate import DESTROYED
from distrust.server.storage.tables import VERSION
from tests.support.schemas import PARTIES, first_schema

FIRST_KEYS = '{"ticket": "AAAA", "seal": "AAAA"}'
"""As 6102dc19 wrote its key file; the keys have 32 bytes each there."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a data folder with the databases that 6102dc19 left."""
    made = tmp_path / "data"
    made.mkdir()
    for party in PARTIES:
        first_schema(party, f"sqlite:///{made}/{party}.sqlite3")
    return made


def migrate(*words: str) -> Result:
    return CliRunner().invoke(app, ["migrate", *words])


def refusal(*words: str) -> tuple[int, str]:
    """Return the exit status of the command and its one line."""
    error = migrate(*words).exception
    assert isinstance(error, BadParameter | Unavailable), error
    assert "\n" not in error.detail
    return exit_status(error), error.detail


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_migrated_with_a_line_and_a_private_copy_for_each_database(folder: Path) -> None:
    before = {party: dump(folder / f"{party}.sqlite3") for party in PARTIES}
    mask = os.umask(0)
    done = migrate("--data", str(folder))
    os.umask(mask)
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    for party, line in zip(PARTIES, lines, strict=True):
        copy = folder / f"{party}.sqlite3.before-{VERSION}"
        assert line.startswith(f"{folder / party}.sqlite3: schema ")
        assert line.endswith(f" is now {VERSION}; as it was: {copy}")
        assert dump(copy) == before[party]
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not list(folder.glob("*.part"))
    facts = json.loads(migrate("--data", str(folder), "--json", "-").stdout)["databases"]
    assert [fact["database"] for fact in facts] == [f"{folder / party}.sqlite3" for party in PARTIES]
    assert {(one["before"], one["after"], one["copy"]) for one in facts} == {(VERSION, VERSION, None)}


def test_commits_that_only_the_log_of_a_killed_service_has_are_in_the_copy_and_are_migrated(folder: Path) -> None:
    path = folder / "server.sqlite3"
    if (child := os.fork()) == 0:  # SQLite empties the log when it closes a database
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("INSERT INTO events VALUES (99, 'summed', 'late')")
        os._exit(0)
    os.waitpid(child, 0)
    assert path.with_name("server.sqlite3-wal").stat().st_size > 0
    assert migrate("--database", f"sqlite:///{path}").exit_code == 0
    for one in (path, path.with_name(f"server.sqlite3.before-{VERSION}")):
        assert "INSERT INTO \"events\" VALUES(99,'summed','late');" in dump(one)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE schema_version SET version = 1", "has schema 1, which this version cannot migrate"),
        ("DROP TABLE schema_version", "is no database of a service"),
        ("DROP TABLE runs", "is no database of a service"),
        ("CREATE TABLE alembic_version AS SELECT '0099' AS version_num", "has schema 0099, of a newer version"),
        ("CREATE TABLE alembic_version AS SELECT 'abc' AS version_num", "has schema abc, which this version cannot"),
        ("CREATE VIEW more AS SELECT * FROM runs", "it must have tables and indexes alone"),
    ],
)
def test_a_database_that_has_no_known_schema_is_refused_before_any_of_its_folder_changes(
    statement: str, words: str, folder: Path
) -> None:
    change(folder / "server.sqlite3", statement)
    before = files(folder)
    for given in (("--data", str(folder)), ("--database", f"sqlite:///{folder}/server.sqlite3")):
        code, why = refusal(*given)
        assert words in why
        assert code == 2
        assert files(folder) == before


def test_what_is_no_database_is_bad_input_and_nothing_is_made(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("SQLite format 4")
    (tmp_path / "empty").touch()
    change(tmp_path / "foreign", "CREATE TABLE runs (song)")
    os.mkfifo(tmp_path / "pipe")
    before = {path.name for path in tmp_path.iterdir()}
    for name, words in {
        "text": "is no SQLite database",
        "empty": "is no SQLite database",
        "foreign": "is no database of a service",
        "pipe": "must be a file, and is a pipe or a device",
        "data": "Is a directory",
        "none": "No such file",
    }.items():
        code, why = refusal("--database", f"sqlite:///{tmp_path}/{name}")
        assert code == 2
        assert words in why
    assert refusal("--data", str(tmp_path))[1].endswith("no service's database is there: nothing has run on it")
    assert refusal("--data", str(folder), "--database", f"sqlite:///{tmp_path}/text")[0] == 2
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_copy_that_cannot_be_written_leaves_the_database_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(folder / "server.sqlite3")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("distrust.common.protocol.storage.migration.os.fsync", full)
        code, why = refusal("--data", str(folder))
    assert (code, "No space left on device; the database is as it was" in why) == (75, True)
    assert dump(folder / "server.sqlite3") == before
    assert not (folder / f"server.sqlite3.before-{VERSION}").exists()
    assert migrate("--data", str(folder)).exit_code == 0


def test_services_and_fleets_do_not_import_alembic() -> None:
    parties = (
        "server.app",
        "shuffler.app",
        "aggregator.app",
        "client.fleet.settings",
        "lab.services.parties",
        "lab.cli.run",
    )
    code = "; ".join(f"import distrust.{name}" for name in parties)
    code += "; import sys; assert 'distrust.common.protocol.storage.database' in sys.modules"
    code += "; assert 'alembic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_migration_needs_no_working_folder_and_no_configuration_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(folder / "server.sqlite3", tmp_path / "elsewhere" / "x.db")
    command = [sys.executable, "-m", "distrust.lab", "migrate", "--database", "sqlite:///x.db"]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=True)
    assert done.stdout == f"x.db: schema 2 is now {VERSION}; as it was: x.db.before-{VERSION}\n"
    assert done.stderr == ""


def test_the_key_file_of_every_run_is_destroyed_with_a_line_also_if_a_kill_came_before_it(folder: Path) -> None:
    keys = folder / "server.keys"
    for _ in range(2):
        keys.write_text(FIRST_KEYS)
        os.link(keys, folder / "name")
        done = migrate("--data", str(folder))
        assert done.stdout.splitlines()[-1] == f"{keys}: {DESTROYED}"
        assert not keys.exists()
        assert set((folder / "name").read_bytes()) == {0}
        (folder / "name").unlink()
    assert json.loads(migrate("--data", str(folder), "--json", "-").stdout)["destroyed"] == []
    keys.write_text(FIRST_KEYS)
    answer = json.loads(migrate("--database", f"sqlite:///{folder}/server.sqlite3", "--json", "-").stdout)
    assert (answer["destroyed"], keys.exists()) == ([str(keys)], False)


def test_no_other_file_is_taken_for_the_key_file_of_every_run(folder: Path, tmp_path: Path) -> None:
    others = {"shuffler.keys": FIRST_KEYS, "server.keys": '{"ticket": "AAAA"}'}
    for name, text in others.items():
        (folder / name).write_text(text)
    (tmp_path / "elsewhere").write_text(FIRST_KEYS)
    assert migrate("--data", str(folder)).exit_code == 0
    (folder / "server.keys").unlink()
    (folder / "server.keys").symlink_to(tmp_path / "elsewhere")
    assert json.loads(migrate("--data", str(folder), "--json", "-").stdout)["destroyed"] == []
    assert (folder / "shuffler.keys").read_text() == (tmp_path / "elsewhere").read_text() == FIRST_KEYS


def test_a_migration_that_is_refused_leaves_the_key_file(folder: Path) -> None:
    (folder / "server.keys").write_text(FIRST_KEYS)
    change(folder / "server.sqlite3", "UPDATE schema_version SET version = 1")
    assert refusal("--data", str(folder))[0] == 2
    assert (folder / "server.keys").read_text() == FIRST_KEYS
