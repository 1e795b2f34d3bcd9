"""Tests that a stack's folder keeps its tokens private, has one owner, and refuses what cannot be written."""

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from distrust.common.errors import BadParameter, ProtocolError, Unavailable
from distrust.lab.stack.data_dir import DataDir, writing
from distrust.lab.stack.stack import NAMES, Stack, running_stack


@pytest.fixture
def folder(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.make()
    return made


def test_the_operators_token_is_made_once_and_only_its_owner_reads_it(folder: DataDir) -> None:
    folder.make_tokens()
    token = folder.token()
    folder.make_tokens()
    assert folder.token() == token
    assert len(token) >= 43  # 256 bits in base64
    assert stat.S_IMODE(folder.token_file.stat().st_mode) == 0o600


def test_the_inspectors_token_is_another_one(folder: DataDir) -> None:
    folder.make_tokens()
    assert folder.inspector_token() != folder.token()
    assert stat.S_IMODE(folder.inspector_file.stat().st_mode) == 0o600


def test_a_folder_is_held_by_one_stack_at_a_time(folder: DataDir) -> None:
    folder.write_stack({"pid": 1})
    assert not folder.in_use()
    with folder.held():
        assert folder.in_use()
        with pytest.raises(Unavailable, match="in use by another stack"), folder.held():
            pass
    assert not folder.in_use()


def test_a_full_disk_is_one_clear_sentence(folder: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.lab.stack.data_dir.private", lambda *_: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(Unavailable, match=r"cannot write .*stack.json: No space left on device.*--data"):
        folder.write_stack({"pid": 1})


SECRET = "a secret of this user"


def _link(file: Path, elsewhere: Path) -> str:
    file.symlink_to(elsewhere)
    return "is a link"


def _second_name(file: Path, elsewhere: Path) -> str:
    os.link(elsewhere, file)
    return "is a file with several names"


def _pipe(file: Path, _elsewhere: Path) -> str:
    os.mkfifo(file)
    return "must be a file, and is a pipe or a device"


def _endless(file: Path, _elsewhere: Path) -> str:
    with file.open("wb") as made:
        made.truncate(2**40)
    return "has more than 4,096 bytes"


@pytest.mark.parametrize("trap", [_link, _second_name, _pipe, _endless])
@pytest.mark.parametrize("name", ["operator.token", "inspector/inspector.token"])
def test_no_file_of_this_user_is_read_as_the_token_of_a_strangers_folder(
    name: str, trap: Callable[[Path, Path], str], folder: DataDir, tmp_path: Path
) -> None:
    folder.make_tokens()
    file, elsewhere = folder.path / name, tmp_path / "secret"
    elsewhere.write_text(SECRET)
    file.unlink()
    why = trap(file, elsewhere)
    for read in (folder.make_tokens, lambda: _running(folder)):
        with pytest.raises(BadParameter, match=rf"^data = '{folder.path}': its {file.name} cannot be used: it {why}"):
            read()


def _running(folder: DataDir) -> None:
    folder.write_stack({"services": {name: {"url": "http://127.0.0.1:9"} for name in NAMES}})
    with folder.held():
        running_stack(folder)


def test_a_token_of_another_user_or_below_a_link_is_refused(
    folder: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make_tokens()
    folder.inspector_file.parent.rename(tmp_path / "elsewhere")
    folder.inspector_file.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadParameter, match=r"its inspector\.token cannot be used: it is a link"):
        folder.inspector_token()
    facts = list(folder.token_file.stat())
    facts[stat.ST_UID] = os.geteuid() + 1
    monkeypatch.setattr("distrust.lab.stack.data_dir.os.fstat", lambda _: os.stat_result(facts))
    with pytest.raises(BadParameter, match=rf"its operator\.token cannot be used: it belongs to user {facts[4]}"):
        folder.token()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 50_000,
        '{"services": {}}',
        '{"services": {"server": {"url": 5}}}',
        *(
            json.dumps({"services": {name: {"url": url} for name in NAMES}})
            for url in ("http://192.0.2.1:80", "http://127.0.0.1:80@a.example", "https://127.0.0.1:80", "http://[::1]")
        ),
    ],
)
def test_tokens_are_sent_to_loopback_alone(text: str, folder: DataDir) -> None:
    folder.make_tokens()
    folder.stack_file.write_text(text)
    with (
        folder.held(),
        pytest.raises(BadParameter, match=r"its stack\.json must hold three addresses such as http://127"),
    ):
        running_stack(folder)


def test_a_pipe_in_place_of_the_lock_holds_up_no_reader(folder: DataDir) -> None:
    folder.write_stack({})
    os.mkfifo(folder.path / "lock")
    assert running_stack(folder) is None


def test_a_disk_that_is_nearly_full_is_said_before_it_is(folder: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.check_space()
    monkeypatch.setattr("distrust.lab.stack.data_dir.LEAST_FREE", 2**60)
    with pytest.raises(Unavailable, match=r"the disk that holds .* is full: .* MiB are free.*--data"):
        folder.check_space()
    with pytest.raises(Unavailable, match="is full"), Stack(folder, 0):
        pass


def test_a_path_that_is_no_folder_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadParameter, match=rf"data = '{tmp_path}/file/data': {tmp_path}/file is no folder"):
        DataDir(tmp_path / "file" / "data").make()


@pytest.mark.parametrize(
    ("number", "kind", "why"),
    [
        (errno.ENOENT, BadParameter, "the folder FOLDER/none is not there"),
        (errno.EACCES, BadParameter, "this user may not write in the folder FOLDER"),
        (errno.EROFS, BadParameter, "the folder FOLDER is on a disk that is read only"),
        (errno.EISDIR, BadParameter, "is a folder, and must be a file"),
        (errno.ENOSPC, Unavailable, "No space left on device; mend that, or choose another --out"),
    ],
)
def test_what_cannot_be_written_is_told_with_the_option_and_the_folder(
    number: int, kind: type[ProtocolError], why: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=why.replace("FOLDER", str(tmp_path))), writing(tmp_path / "none" / "x", "out"):
        raise OSError(number, os.strerror(number))
