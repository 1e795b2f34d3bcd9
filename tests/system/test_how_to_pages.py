"""Tests that the commands of docs/how-to about backups, rotation and upgrades do what their pages say."""

import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.participants import Participants
from distrust.lab.stack.stack import NAMES, Stack
from distrust.server.storage.tables import VERSION
from tests.support.forked import forking
from tests.support.http_runs import over_http, smallest_run, until
from tests.support.pages import blocks, play
from tests.support.postgres import create_database, postgres
from tests.support.schemas import content, first_schema

PLAYED = {
    "backup": ("SQLite", "PostgreSQL", "Restore"),
    "upgrade": ("A data folder", "One database", "PostgreSQL"),
    "rotate": (
        "The tokens of operator and inspector",
        "The token of a participant",
        "The token of this folder's fleets",
        "The key of a device",
    ),
}
"""Headings of each page whose commands are played here."""

REQUESTS = {
    "server": ("DELETE", "/runs/none"),
    "shuffler": ("GET", "/cohorts"),
    "aggregator": ("GET", "/cohorts"),
    "shuffler inspected": ("GET", "/cohorts/none/c/messages"),
    "aggregator inspected": ("GET", "/cohorts/none/c/messages"),
}
"""By party a request that needs the operator's token, or the inspector's. What it asks for is not there."""

EXAMPLE = "postgresql://distrust@db.example/"


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    with forking():
        yield


@pytest.mark.parametrize("page", PLAYED)
def test_every_command_of_a_page_is_played_here(page: str) -> None:
    assert blocks(page) == [block for heading in PLAYED[page] for block in blocks(page, heading)]


def finish(stack: Stack, name: str) -> None:
    """Play a run to its end."""
    over_http(stack, smallest_run(name, "distributed-polya-aggregator"))


def ask(stack: Stack, path: str) -> httpx.Response:
    return httpx.get(f"{stack.urls.server}/v1{path}", trust_env=False)


def status(stack: Stack, party: str, token: str | None) -> int:
    """Return the status that a request which needs the operator's token, or the inspector's, gets from a party."""
    method, path = REQUESTS[party]
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as caller:
        return caller.request(method, f"{getattr(stack.urls, party.split(maxsplit=1)[0])}/v1{path}").status_code


@pytest.mark.slow
def test_a_backup_that_is_made_while_services_run_is_restored_with_its_runs_and_tokens(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".distrust")
    to_files, to_postgres = blocks("backup", "Restore")
    with Stack(data, 0) as stack:
        finish(stack, "before")
        shown, token = ask(stack, "/runs/before").json(), stack.urls.token
        (made,) = blocks("backup", "SQLite")
        play(made, tmp_path)
        finish(stack, "after")
        for name in NAMES:  # the logs that killed services would leave, with what came after the copy
            shutil.copy(f"{data.file(name)}-wal", tmp_path)
    assert sorted(path.name for path in (tmp_path / "backup").iterdir()) == sorted(
        ["tokens.tar", *(f"{name}.sqlite3" for name in NAMES)]
    )
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700
    remembered = data.memory_file.read_bytes()
    for name in NAMES:
        data.file(name).write_bytes(b"lost")
        shutil.copy(tmp_path / f"{name}.sqlite3-wal", data.path)
    data.token_file.unlink()
    data.participants_file.unlink()
    play(to_files, tmp_path)
    assert to_postgres
    assert data.memory_file.read_bytes() == remembered
    with Stack(data, 0) as stack:
        assert stack.urls.token == token
        assert ask(stack, "/runs/before").json() == shown
        assert ask(stack, "/runs/after").status_code == 404
        finish(stack, "after")


@pytest.mark.slow
def test_new_tokens_take_the_place_of_old_ones_while_the_services_run(tmp_path: Path) -> None:
    """The old operator's and inspector's tokens get 401, and a run is played with the new ones."""
    data = DataDir(tmp_path / ".distrust")
    with Stack(data, 0) as stack:
        operator, inspector, fleets = stack.urls.token, stack.urls.inspector, stack.urls.participation
        (both,) = blocks("rotate", "The tokens of operator and inspector")
        play(both, tmp_path)
        (own,) = blocks("rotate", "The token of this folder's fleets")
        play(own, tmp_path)
        assert not {operator, inspector, fleets} & {
            stack.urls.token,
            stack.urls.inspector,
            stack.urls.participation,
        }
        tokens = dict.fromkeys(NAMES, (operator, stack.urls.token))
        tokens |= {f"{party} inspected": (inspector, stack.urls.inspector) for party in NAMES[1:]}
        for party, (old, new) in tokens.items():
            until(lambda party=party, old=old: status(stack, party, old) == 401)  # type: ignore[misc]
            assert (party, status(stack, party, new)) != (party, 401)
        finish(stack, "rotated")
        assert ask(stack, "/runs/rotated").json()["state"] == "finished"


def test_a_participant_and_a_device_get_new_secrets_and_lose_their_old_ones(tmp_path: Path) -> None:
    for command in (
        "distrust token participate --name hospital",
        "distrust token device old.key",
        "distrust token enroll old.key --name phone-17",
    ):
        play([command], tmp_path)
    for heading in ("The token of a participant", "The key of a device"):
        (block,) = blocks("rotate", heading)
        play(block, tmp_path)
    known = {one.name: one.revoked for one in Participants(DataDir(tmp_path / ".distrust")).all()}
    assert known == {"hospital": True, "hospital-2": False, "phone-17": True, "phone-18": False}


@pytest.mark.parametrize(("heading", "parties"), [("A data folder", NAMES), ("One database", ("server",))])
def test_databases_of_the_first_schema_are_upgraded(heading: str, parties: tuple[str, ...], tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".distrust")
    data.make()
    for party in NAMES:
        first_schema(party, data.database(party))
    (block,) = blocks("upgrade", heading)
    play(block, tmp_path)
    for party in NAMES:
        with closing(sqlite3.connect(data.file(party))) as database:
            ((now,),) = database.execute("SELECT version_num FROM alembic_version") if party in parties else ((None,),)
        assert (now == VERSION) == (party in parties)


@pytest.mark.slow
def test_a_database_on_postgresql_is_dumped_upgraded_and_restored(tmp_path: Path) -> None:
    with postgres() as server:
        names = {EXAMPLE: f"{server}/"}
        old, restored = (create_database(server, name) for name in ("server", "restored"))
        first_schema("server", old)
        (block,) = blocks("upgrade", "PostgreSQL")
        play(block, tmp_path, names)
        assert (tmp_path / "server.sql").stat().st_size > 1000
        (block,) = blocks("backup", "PostgreSQL")
        play(block, tmp_path, names)
        play(blocks("backup", "Restore")[1], tmp_path, names)
        assert content(restored) == content(old)
        assert ("alembic_version", [(VERSION,)]) in content(restored).items()
