"""Tests that a stack's folder keeps its tokens private, has one owner, and refuses what cannot be written."""

import errno
import os
import stat
from pathlib import Path

import pytest

from distrust.common.errors import BadParameter, ProtocolError, Unavailable
from distrust.lab.stack.data_dir import DataDir, writing
from distrust.lab.stack.stack import Stack


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


def test_two_folders_never_share_a_token(folder: DataDir, tmp_path: Path) -> None:
    other = DataDir(tmp_path / "other")
    for one in (folder, other):
        one.make()
        one.make_tokens()
    assert folder.token() != other.token()


def test_a_folder_is_held_by_one_stack_at_a_time(folder: DataDir) -> None:
    folder.write_stack({"pid": 1})
    assert not folder.in_use()
    with folder.held():
        assert folder.in_use()
        with pytest.raises(Unavailable, match="in use by another stack"), folder.held():
            pass
    assert not folder.in_use()


def test_a_full_disk_is_one_clear_sentence(folder: DataDir) -> None:
    folder.stack_file.symlink_to("/dev/full")
    with pytest.raises(Unavailable, match=r"cannot write .*stack.json: No space left on device.*--data"):
        folder.write_stack({"pid": 1})


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
