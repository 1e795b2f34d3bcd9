import stat
from pathlib import Path

import pytest

from distrust.common.errors import Unavailable
from distrust.lab.stack.data_dir import DataDir
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
    with pytest.raises(Unavailable, match=r"cannot write .*: Not a directory"):
        DataDir(tmp_path / "file" / "data").make()
