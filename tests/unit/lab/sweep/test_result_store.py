"""Tests that rows are kept in a folder of their experiment and code, whatever ended the sweep."""

from pathlib import Path

import pytest

from distrust.common.errors import Unavailable
from distrust.lab.sweep import code
from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.result_store import ResultStore, result_folder, rows_of_other_code
from distrust.lab.sweep.row import Cell
from tests.support.experiments import played, small

CELLS = [Cell("wide", "public", 0), Cell("narrow", "private", 2)]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(small(tmp_path))


def test_what_was_kept_is_there_after_the_folder_was_left(experiment: Experiment, tmp_path: Path) -> None:
    rows = {cell: played(experiment, cell) for cell in CELLS}
    for one in rows.values():
        with ResultStore(experiment, tmp_path) as store:
            store.keep(one)
    with ResultStore(experiment, tmp_path) as store:
        assert store.rows() == rows


@pytest.mark.parametrize("kept", [0, 1, 40, -2])
def test_a_line_that_a_kill_cut_short_is_no_row_and_spoils_no_other(
    kept: int, experiment: Experiment, tmp_path: Path
) -> None:
    first, second = (played(experiment, cell) for cell in CELLS)
    with ResultStore(experiment, tmp_path) as store:
        store.keep(first)
    (path,) = result_folder(experiment, tmp_path).glob("rows-*.jsonl")
    torn = second.model_dump_json().encode()[:kept] if kept else b""
    path.write_bytes(path.read_bytes() + torn)
    with ResultStore(experiment, tmp_path) as store:
        assert store.rows() == {CELLS[0]: first}
        store.keep(second)
        assert store.rows() == {CELLS[0]: first, CELLS[1]: second}


def test_a_line_that_is_no_row_is_passed_over(experiment: Experiment, tmp_path: Path) -> None:
    first = played(experiment, CELLS[0])
    with ResultStore(experiment, tmp_path) as store:
        (path,) = store.folder.glob("rows-*.jsonl")
        path.write_bytes(b'{"panel": 3}\n\xff\xfe\n\n')
        store.keep(first)
        assert store.rows() == {CELLS[0]: first}


def test_a_changed_experiment_has_a_folder_of_its_own(experiment: Experiment, tmp_path: Path) -> None:
    changed = load_experiment(small(tmp_path, ("horizon = 2000", "horizon = 2500")))
    with ResultStore(experiment, tmp_path) as store:
        store.keep(played(experiment, CELLS[0]))
    with ResultStore(changed, tmp_path) as other:
        assert other.folder != result_folder(experiment, tmp_path)
        assert other.rows() == {}
    assert Experiment.model_validate_json((other.folder / "experiment.json").read_text("utf-8")) == changed


def test_other_code_begins_anew_is_told_so_and_finds_its_own_rows_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = {**code.parts(), "numpy": "0.0"}
    first, second = (played(experiment, cell) for cell in CELLS)
    with ResultStore(experiment, tmp_path) as store:
        store.keep(first)
    assert rows_of_other_code(experiment, tmp_path) == []
    with monkeypatch.context() as patched:
        patched.setattr(code, "parts", lambda: older)
        (result,) = rows_of_other_code(experiment, tmp_path)
        assert (result.cells, result.changed) == (1, ["numpy"])
        with ResultStore(experiment, tmp_path) as store:
            assert store.rows() == {}
        assert rows_of_other_code(experiment, tmp_path) == [
            result
        ]  # a sweep that was stopped before its first cell has no rows
        with ResultStore(experiment, tmp_path) as store:
            store.keep(second)
        assert rows_of_other_code(experiment, tmp_path) == []
    with ResultStore(experiment, tmp_path) as store:
        assert store.rows() == {CELLS[0]: first}
    assert result.path.read_text("utf-8") == first.model_dump_json() + "\n"


def test_two_sweeps_never_write_in_one_folder(experiment: Experiment, tmp_path: Path) -> None:
    with ResultStore(experiment, tmp_path), pytest.raises(Unavailable, match="being written by another sweep"):
        ResultStore(experiment, tmp_path).__enter__()
    with ResultStore(experiment, tmp_path) as again:
        assert again.rows() == {}
