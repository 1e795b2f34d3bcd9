"""Tests that a run's keys are private, on the disk before the run is, and destroyed when it is over."""

import os
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from distrust.common.errors import RunFailed, Unavailable
from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.messages.cohort import Cohort
from distrust.server.runs.ticket_issuer import sign
from distrust.server.storage.keys import KeyFolder, Keys, folder_for, new_keys
from tests.support.in_memory_intermediaries import BadTicket, check_ticket
from tests.support.server_harness import key_folder

R, OTHER = bytes(range(32)), bytes(32)


def raw(keys: Keys) -> tuple[bytes, bytes, bytes]:
    return keys.ticket.private_bytes_raw(), keys.seal.private_bytes_raw(), keys.noise


def test_a_runs_keys_are_found_again_in_a_file_of_their_own_for_the_owner_only(tmp_path: Path) -> None:
    folder, keys = KeyFolder(tmp_path / "deep" / "server.keys"), new_keys()
    mask = os.umask(0)
    try:
        folder.make(())
        folder.write(R, keys)
    finally:
        os.umask(mask)
    folder.write(OTHER, new_keys())
    assert raw(KeyFolder(folder.path).read(R, keys.public)) == raw(keys)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.file(R).stat().st_mode & 0o777 == 0o600
    assert {path.name for path in folder.path.iterdir()} == {f"{R.hex()}.key", f"{OTHER.hex()}.key"}


def test_keys_are_never_written_over_a_file_that_is_there(tmp_path: Path) -> None:
    folder, keys = key_folder(tmp_path), new_keys()
    folder.write(R, keys)
    with pytest.raises(Unavailable, match="File exists"):
        folder.write(R, new_keys())
    assert raw(folder.read(R, keys.public)) == raw(keys)


def test_a_folder_that_others_may_use_is_refused_by_name(tmp_path: Path) -> None:
    key_folder(tmp_path).path.chmod(0o750)
    with pytest.raises(Unavailable, match=r"key folder .*server\.keys: others may use it; chmod 700"):
        key_folder(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "short", "long", "another-runs", "noise-alone"])
def test_a_damaged_key_file_is_a_sentence_about_its_run(tmp_path: Path, damage: str) -> None:
    folder, keys = key_folder(tmp_path), new_keys()
    folder.write(R, keys)
    folder.write(OTHER, new_keys())
    whole = folder.file(R).read_bytes()
    kept = whole[:70] + bytes([whole[70] ^ 1]) + whole[71:]  # the public halves do not show it
    other = folder.file(OTHER).read_bytes()
    changed = {"empty": b"", "short": whole[:-1], "long": whole + b"\0", "another-runs": other, "noise-alone": kept}
    folder.file(R).write_bytes(changed[damage])
    with pytest.raises(RunFailed, match=r"^its key file is damaged"):
        folder.read(R, keys.public)


def test_a_folder_that_is_gone_is_refused_while_a_run_is_open_and_not_made(tmp_path: Path) -> None:
    """Another working directory must not end every run."""
    folder = KeyFolder(tmp_path / "server.keys")
    with pytest.raises(Unavailable, match=r"not there, and run alpha is open: name its folder in DISTRUST_KEYS"):
        folder.make({"beta", "alpha"})
    assert list(tmp_path.iterdir()) == []


def test_two_servers_never_share_a_folder(tmp_path: Path) -> None:
    one, other = key_folder(tmp_path), key_folder(tmp_path)
    with closing(one):
        one.hold()
        with pytest.raises(Unavailable, match="in use by another server: give this one another DISTRUST_KEYS"):
            other.hold()
    with closing(other):
        other.hold()


def test_destroyed_keys_are_overwritten_and_removed_and_the_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second name of the file shows what becomes of its bytes. A copy of them would stay."""
    folder, synced = key_folder(tmp_path), list[bool]()
    folder.write(R, new_keys())
    os.link(folder.file(R), tmp_path / "name")

    def noted(handle: int) -> None:
        if os.fstat(handle).st_ino == folder.path.stat().st_ino:
            synced.append(folder.file(R).exists())

    monkeypatch.setattr("distrust.server.storage.keys.os.fsync", noted)
    folder.destroy(R)
    assert set((tmp_path / "name").read_bytes()) == {0}
    assert list(folder.path.iterdir()) == []
    assert synced == [False]
    folder.destroy(R)  # again, as after a crash


def test_keys_are_written_whole_to_the_disk_the_file_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced = key_folder(tmp_path), list[tuple[bool, int]]()

    def noted(handle: int) -> None:
        facts = os.fstat(handle)
        synced.append((facts.st_ino == folder.path.stat().st_ino, facts.st_size))

    monkeypatch.setattr("distrust.server.storage.keys.os.fsync", noted)
    folder.write(R, new_keys())
    assert [one for one, _ in synced] == [False, True]
    assert synced[0][1] == folder.file(R).stat().st_size == 128


def test_keys_of_no_open_run_are_destroyed_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = key_folder(tmp_path)
    folder.write(R, new_keys())
    folder.write(OTHER, new_keys())
    (folder.path / "README").write_text("the operator's")
    with structlog.testing.capture_logs() as lines:
        folder.keep([R])
    assert lines == [{"event": "keys_destroyed", "file": str(folder.file(OTHER)), "log_level": "info"}]
    assert {path.name for path in folder.path.iterdir()} == {f"{R.hex()}.key", "README"}


def test_the_folder_is_beside_a_sqlite_database_and_else_below_the_working_directory() -> None:
    assert folder_for("sqlite:////data/server.sqlite3") == Path("/data/server.sqlite3.keys")
    secret = "postgresql://distrust:hidden@db.example/server?sslmode=require"
    assert folder_for(secret) == Path(".distrust/server@db.example-5432.keys")


def test_no_two_databases_have_the_same_folder() -> None:
    """A server destroys in its folder the keys of all runs that its database does not know as open."""
    urls = [
        "sqlite:////data/a.db",
        "sqlite:////data/a.sqlite3",
        "sqlite:////data/a",
        "sqlite:////other/a",
        "postgresql://db.example/a",
        "postgresql://db.example/b",
        "postgresql://db.example:5433/a",
        "postgresql://db-5433.example/a",
        "postgresql:///a?host=/run/one",
        "postgresql:///a?host=/run/two",
        "postgresql:///a?host=/run/two&port=5433",
        "postgresql://db.example/a?options=-csearch_path=other",
        "postgresql://db.example/..%2Fa",
    ]
    folders = [folder_for(url) for url in urls]
    assert len(set(folders)) == len(urls)
    assert {folder.parent for folder in folders[4:]} == {Path(".distrust")}


def test_private_keys_are_masked() -> None:
    assert repr(new_keys()) == "Keys()"


def _cohort(keys: Keys, name: str = "demo.1.0.1") -> Cohort:
    return Cohort(
        run="demo",
        round=1,
        cohort=name,
        clients=4,
        minimum=2,
        stage_seconds=1.0,
        run_digest=bytes(32),
        ticket_key=keys.public.ticket,
        terms="{}",
        channel=Masking(modulus=11, dimension=1, neighbours=3, threshold=2),
    )


def test_a_ticket_is_good_for_its_slot_of_its_cohort_only() -> None:
    keys = new_keys()
    cohort = _cohort(keys)
    grant = sign(keys.ticket, cohort, 1, 2, bytes(64))
    assert grant == sign(keys.ticket, cohort, 1, 2, bytes(64))
    first, second = grant.signatures[:64], grant.signatures[64:]
    check_ticket(cohort, 1, first)
    check_ticket(cohort, 2, second)
    for other, slot, ticket in (
        (cohort, 2, first),
        (_cohort(keys, "demo.1.1.1"), 1, first),
        (_cohort(new_keys()), 1, first),
    ):
        with pytest.raises(BadTicket):
            check_ticket(other, slot, ticket)
