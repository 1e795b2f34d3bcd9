"""Tests that a run has its keys from before its commit until its end, over crashes, and that lost keys end it alone."""

import asyncio
import gc
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from distrust.common.errors import Unavailable, WrongStage
from distrust.common.protocol.channels.sealed import NO_KEY
from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.common.protocol.run.listing import RunView
from distrust.server.app import server_app
from distrust.server.settings import ServerSettings
from distrust.server.storage.keys import KeyFolder, Keys, PublicKeys
from distrust.server.storage.store import Writing
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, ServerHarness, config, serve

SEALED = config(mechanism={"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler"})

FIRST_KEYS = '{"ticket": "AAAA", "seal": "AAAA"}'  # as 6102dc19 kept them


def names(harness: ServerHarness) -> set[str]:
    return {path.name for path in harness.keys.path.iterdir()}


def in_memory() -> set[PublicKeys]:
    """Return the public halves of all private keys that this process can still reach."""
    gc.collect()
    return {one.public for one in gc.get_objects() if type(one) is Keys}


def file_of(harness: ServerHarness, run: str) -> Path:
    return harness.keys.file(harness.service.active_run(run).run_digest)


def restarted(harness: ServerHarness, folder: Path) -> ServerHarness:
    harness.database.close()
    return ServerHarness(folder, harness.intermediaries)


def finish(harness: ServerHarness, run: str = "demo") -> RunView:
    return serve(harness, run, InMemoryClients(harness.intermediaries, REWARDS))


def cancel(harness: ServerHarness) -> RunView:
    harness.service.cancel("demo", "enough")
    return harness.reader.view("demo")


def fail(harness: ServerHarness) -> RunView:
    harness.service._stop("demo", "failed", "an intermediary has lost its database")
    return harness.reader.view("demo")


ENDS: dict[str, Callable[[ServerHarness], RunView]] = {"finished": finish, "cancelled": cancel, "failed": fail}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_is_over_has_no_keys_on_the_disk_or_in_the_server_and_others_keep_theirs(
    harness: ServerHarness, end: str
) -> None:
    harness.service.create(config())
    harness.service.create(config("other"))
    assert names(harness) == {file_of(harness, "demo").name, file_of(harness, "other").name}
    mine, theirs = (harness.service.active_run(run).identity.keys for run in ("demo", "other"))
    assert in_memory() >= {mine, theirs}
    assert ENDS[end](harness).state == end
    assert names(harness) == {file_of(harness, "other").name}
    assert harness.service.active_run("demo").keys is None
    assert {mine, theirs} & in_memory() == {theirs}


@pytest.mark.parametrize("end", ENDS)
def test_a_crash_between_a_runs_end_and_the_removal_leaves_keys_that_the_next_start_destroys(
    harness: ServerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    harness.service.create(config())
    harness.service.create(config("other"))
    with monkeypatch.context() as dying:
        dying.setattr(KeyFolder, "destroy", lambda _self, _digest: None)
        assert ENDS[end](harness).state == end
    assert len(names(harness)) == 2
    again = restarted(harness, tmp_path)
    assert names(again) == {file_of(again, "other").name}
    assert again.reader.view("demo").state == end
    again.database.close()


@pytest.mark.parametrize(("where", "name", "state"), [(Writing, "run", None), (KeyFolder, "destroy", "finished")])
def test_a_process_that_dies_before_a_runs_commit_or_after_its_end_leaves_keys_that_the_next_start_destroys(
    tmp_path: Path, where: Any, name: str, state: str | None
) -> None:
    if (child := os.fork()) == 0:
        try:
            dying = ServerHarness(tmp_path, InMemoryIntermediaries())
            setattr(where, name, lambda *_: os._exit(7))
            dying.service.create(config())
            finish(dying)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list((tmp_path / "server.keys").iterdir())) == 1
    again = ServerHarness(tmp_path, InMemoryIntermediaries())
    assert names(again) == set()
    assert [line.state for line in again.reader.runs().runs] == ([state] if state else [])
    again.database.close()


def test_a_runs_keys_are_on_the_disk_before_it_is_committed(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened, sync, commit = list[str](), os.fsync, Writing.run

    def synced(handle: int) -> None:
        happened.append("folder" if os.path.samestat(os.fstat(handle), harness.keys.path.stat()) else "file")
        sync(handle)

    def committed(*words: Any) -> None:
        happened.append("run")
        commit(*words)

    monkeypatch.setattr("distrust.server.storage.keys.os.fsync", synced)
    monkeypatch.setattr(Writing, "run", committed)
    harness.service.create(config())
    assert happened == ["file", "folder", "run"]


def test_a_run_whose_keys_cannot_be_written_is_not_made(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("distrust.server.storage.keys.os.fsync", full)
        with pytest.raises(Unavailable, match=r"key file .*: No space left on device"):
            harness.service.create(config())
    assert harness.reader.runs().runs == []
    assert harness.service.create(config())


def test_an_open_run_has_the_same_keys_after_a_restart(harness: ServerHarness, tmp_path: Path) -> None:
    harness.service.create(SEALED)
    asyncio.run(play_round(harness))
    again = restarted(harness, tmp_path)
    assert finish(again).state == "finished"
    again.database.close()


async def play_round(harness: ServerHarness) -> None:
    await harness.play("demo", InMemoryClients(harness.intermediaries, REWARDS), until=2)
    await harness.coordinator.stop()


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_lost_keys_of_an_open_run_end_it_with_a_sentence_and_others_go_on(
    harness: ServerHarness, tmp_path: Path, damage: str
) -> None:
    harness.service.create(config())
    harness.service.create(config("other"))
    file = file_of(harness, "demo")
    file.unlink() if damage == "gone" else file.write_bytes(b"spoilt")
    for _ in range(2):  # the end is stored
        harness = restarted(harness, tmp_path)
        view = harness.reader.view("demo")
        assert (view.state, view.reason) == ("failed", harness.reader.events("demo", 0)[0][-1].detail)
        assert str(view.reason).startswith(f"its key file is {damage}")
        assert str(view.reason).endswith("Nothing more of the run is released")
        assert [event.kind for event in harness.reader.events("demo", 0)[0]] == ["round-opened", "failed"]
    assert names(harness) == {file_of(harness, "other").name}
    assert finish(harness, "other").state == "finished"
    harness.database.close()


def test_a_key_file_that_others_may_read_stops_the_start_and_ends_no_run(
    harness: ServerHarness, tmp_path: Path
) -> None:
    harness.service.create(config())
    file = file_of(harness, "demo")
    file.chmod(0o604)
    with pytest.raises(Unavailable, match=f"key file {file}: others may read it; chmod 600"):
        restarted(harness, tmp_path)
    file.chmod(0o600)
    again = ServerHarness(tmp_path, harness.intermediaries)
    assert again.reader.view("demo").state == "running"
    again.database.close()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("a-file", "is the key file of an earlier version, whose runs have all ended: remove it"),
        ("another-folder", "not there, and run demo is open: name its folder in DISTRUST_KEYS"),
        ("in-use", "in use by another server: give this one another DISTRUST_KEYS"),
    ],
)
def test_a_server_that_must_not_use_its_key_folder_does_not_start_and_ends_no_run(
    harness: ServerHarness, tmp_path: Path, state: str, words: str
) -> None:
    harness.service.create(config())
    harness.database.close()
    other = tmp_path / "other.keys"
    if state == "a-file":
        other.write_text(FIRST_KEYS)
    where = harness.keys.path if state == "in-use" else other
    settings = ServerSettings(database=f"sqlite:///{tmp_path}/server.sqlite3", keys=where)
    with closing(harness.keys):
        harness.keys.hold()
        with pytest.raises(Unavailable, match=words) as refused:
            server_app(settings, harness.intermediaries)
    assert str(where) in refused.value.detail
    assert (other.read_text() if other.exists() else "") == (FIRST_KEYS if state == "a-file" else "")
    again = ServerHarness(tmp_path, harness.intermediaries)
    assert again.reader.view("demo").state == "running"
    again.database.close()


def test_keys_that_cannot_be_destroyed_are_logged_and_the_next_start_tries_again(
    harness: ServerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.service.create(config())
    file = file_of(harness, "demo")

    def refused(_path: Path) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
        patch.setattr(Path, "unlink", refused)
        assert cancel(harness).state == "cancelled"
    assert [(line["event"], line["file"], line["why"]) for line in lines] == [
        ("keys_kept", str(file), "Read-only file system")
    ]
    assert set(file.read_bytes()) == {0}
    again = restarted(harness, tmp_path)
    assert names(again) == set()
    again.database.close()


@pytest.mark.parametrize("named", [True, False])
def test_a_repeated_request_for_tickets_of_a_run_that_is_over_gets_its_end_and_no_ticket(
    harness: ServerHarness, *, named: bool
) -> None:
    async def play() -> None:
        harness.service.create(config())
        request = TicketRequest(request="ab" * 16, round=int(named), want=3, keys=bytes(96))
        first = await harness.coordinator.tickets("demo", request)
        assert await harness.coordinator.tickets("demo", request) == first
        cancel(harness)
        if named:
            with pytest.raises(WrongStage, match="run demo is cancelled: no more tickets"):
                await harness.coordinator.tickets("demo", request)
        else:
            answer = await harness.coordinator.tickets("demo", request)
            assert answer.grants == []
            assert answer.view is not None
            assert answer.view.state == "cancelled"
        await harness.coordinator.stop()

    asyncio.run(play())


def test_a_transcript_shows_sealed_records_until_the_run_is_over(harness: ServerHarness) -> None:
    harness.service.create(SEALED)
    asyncio.run(play_round(harness))
    shown = [batch_of(harness)]
    cancel(harness)
    shown.append(batch_of(harness))
    assert len(shown[0]["values"]) > 0
    assert (shown[1]["refused"], shown[1].get("values")) == (NO_KEY, None)


def batch_of(harness: ServerHarness) -> dict[str, Any]:
    (entry,) = (one for one in harness.reader.transcript("demo", "demo.1.0.1", 0, 100).messages if one.stage == "batch")
    return entry.view
