"""Tests the start of services: one process a database, files for their owner only, refusals in one line."""

import json
import os
import resource
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support import attacks
from tests.support.attacks import attacked, begin, refusal, until
from tests.support.forked import forking

pytestmark = pytest.mark.slow

WAYS = {
    "as-a-module": [sys.executable, "-m", "distrust.server"],
    "by-the-command": [sys.executable, "-P", "-m", "distrust.lab", "serve", "server"],
}
SHADOWS = ("server", "common", "lab", "distrust", "numpy", "fastapi", "secrets")


@pytest.fixture
def forked() -> Iterator[None]:
    """Fork what a test starts: its promise is of files, databases and disks, and not of how Python starts."""
    with forking():
        yield


@contextmanager
def generous() -> Iterator[None]:
    """Set the umask of a user who shares all files."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def shared(folder: Path) -> list[str]:
    """Return the files below a folder that others than their owner may read, write or execute."""
    others = stat.S_IRWXG | stat.S_IRWXO
    return [str(path) for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & others]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(1)
def test_what_a_service_writes_is_its_owners_alone(tmp_path: Path, way: str) -> None:
    with generous(), attacked("server", tmp_path, WAYS[way]) as service:
        assert httpx.get(f"{service.url}/readyz").is_success
        made = {path.name for path in (tmp_path / ".distrust").iterdir()}
        assert {"server.sqlite3", "server.sqlite3-wal", "server.sqlite3.keys", "server.sqlite3.lock"} <= made
        assert shared(tmp_path / ".distrust") == []


def test_a_service_starts_from_the_package_whatever_lies_in_the_working_folder(tmp_path: Path) -> None:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n", "utf-8")
    with attacked("server", tmp_path, WAYS["by-the-command"]) as service:
        assert httpx.get(f"{service.url}/readyz").is_success
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("forked")
def test_what_the_stack_writes_is_its_owners_alone_even_in_a_folder_that_others_may_enter(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with generous(), Stack(DataDir(tmp_path / "data"), 0):
        assert shared(tmp_path / "data") == []


@pytest.mark.usefixtures("forked")
def test_a_database_that_others_could_read_is_taken_from_them(tmp_path: Path) -> None:
    database = tmp_path / ".distrust" / "shuffler.sqlite3"
    database.parent.mkdir()
    database.touch(0o666)
    database.chmod(0o666)
    with attacked("shuffler", tmp_path):
        assert shared(database.parent) == []


@pytest.mark.usefixtures("forked")
def test_a_second_process_on_one_database_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    with attacked("server", tmp_path) as first:
        (tmp_path / "second").mkdir()
        database = f"sqlite:///{tmp_path}/.distrust/server.sqlite3"
        code, words = refusal("server", tmp_path / "second", DISTRUST_DATABASE=database)
        assert (code, words.count("\n")) == (2, 1)
        assert f"is in use by another process ({first.process.pid}): stop that one" in words
        first.process.kill()
    with attacked("server", tmp_path) as again:
        assert httpx.get(f"{again.url}/v1/runs").json()["runs"] == []


def damage(database: Path) -> None:
    """Overwrite all pages of a database after the first one."""
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


@pytest.mark.usefixtures("forked")
def test_a_damaged_database_is_one_line(tmp_path: Path) -> None:
    with attacked("server", tmp_path):
        pass
    damage(tmp_path / ".distrust" / "server.sqlite3")
    code, words = refusal("server", tmp_path)
    assert (code, words.count("\n")) == (2, 1), words
    assert "server.sqlite3: it is damaged; docs/how-to/backup.md" in words


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("party", ["shuffler", "aggregator"])
def test_a_file_that_is_no_database_is_one_line(tmp_path: Path, party: str) -> None:
    (tmp_path / ".distrust").mkdir()
    (tmp_path / ".distrust" / f"{party}.sqlite3").write_bytes(b"not a database at all " * 500)
    code, words = refusal(party, tmp_path)
    assert (code, words.count("\n")) == (2, 1), words
    assert f"distrust {party}: database " in words
    assert "it is damaged, or no database" in words


@pytest.mark.usefixtures("forked")
def test_a_run_that_this_program_did_not_write_is_listed_and_stops_no_other(tmp_path: Path) -> None:
    with attacked("server", tmp_path):
        pass
    with sqlite3.connect(tmp_path / ".distrust" / "server.sqlite3") as connection:
        connection.execute(
            "INSERT INTO runs (run, config, digest, run_id, ticket_key, seal_key, state) "
            "VALUES ('r', '{', x'00', x'00', x'00', x'00', 'running')"
        )
    connection.close()
    process, log = attacks.begin("server", tmp_path), tmp_path / "server.log"
    try:
        until(lambda: b'"port"' in log.read_bytes() or process.poll() is not None, 60)
        (port,) = [json.loads(line)["port"] for line in log.read_text().splitlines() if '"port"' in line]
        until(lambda: answers(port), 60)
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/runs/r")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:distrust:problem:run-failed"), answer.text
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    """Return True if the service is ready."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").is_success
    except httpx.TransportError:
        return False


def test_a_full_disk_at_the_start_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "shuffler.log"
    process = begin("shuffler", tmp_path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    assert process.wait(240) == 2
    assert log.read_text().count("\n") == 1
    assert "the disk failed, or is full" in log.read_text()


def test_a_limit_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    code, words = refusal("shuffler", tmp_path, DISTRUST_MAX_BODIES="1024")
    assert (code, words.count("\n")) == (2, 1)
    assert words.startswith("distrust shuffler: DISTRUST_MAX_BODIES = ")


@pytest.mark.usefixtures("forked")
def test_a_service_that_can_write_nothing_is_not_ready_until_it_can_again(tmp_path: Path) -> None:
    def ready() -> int:
        return httpx.get(f"{service.url}/readyz").status_code

    with attacked("shuffler", tmp_path) as service:
        assert ready() == 200
        service.limit_files(4096)
        until(lambda: ready() == 503)
        assert json.loads(httpx.get(f"{service.url}/readyz").content)["detail"].startswith("database ")
        assert httpx.get(f"{service.url}/healthz").is_success
        service.limit_files(resource.RLIM_INFINITY)
        until(lambda: ready() == 200)


@pytest.mark.usefixtures("forked")
def test_a_service_is_not_ready_before_the_last_bytes_of_its_disk_are_gone(tmp_path: Path) -> None:
    with attacked("shuffler", tmp_path, DISTRUST_MIN_FREE=str(2**60)) as service:
        answer = httpx.get(f"{service.url}/readyz")
        assert answer.status_code == 503
        assert f"are free on its disk, and {2**60} are needed" in answer.json()["detail"]
