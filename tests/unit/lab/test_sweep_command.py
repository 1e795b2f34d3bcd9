"""Tests that `distrust sweep` prints tables, refuses in one line, and exits 1 if a cell failed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from distrust.common.errors import ProtocolError
from distrust.lab.__main__ import app
from distrust.lab.sweep import code
from distrust.lab.sweep.cells import Failure, load_experiment, play_cell
from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import read_rows, write_rows
from tests.support.experiments import small


def sweep(*words: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *words])


def test_a_sweep_prints_regret_confidence_and_where_the_rows_are(tmp_path: Path) -> None:
    shown = sweep(small(tmp_path), "--jobs", "1", "--out", str(tmp_path), "--format", "csv", "--repetitions", "2")
    (path,) = tmp_path.glob("small-*/rows.csv")
    assert shown.exit_code == 0
    for word in ("final regret", "best arm dropped", "a width failed", "not refuted", f"8 rows in {path}"):
        assert word in shown.stdout
    assert len(read_rows(path)) == 8


def test_quick_is_another_sweep(tmp_path: Path) -> None:
    sweep(small(tmp_path), "--jobs", "1", "--out", str(tmp_path), "--quick")
    (path,) = tmp_path.glob("small-quick-*/rows.parquet")
    assert {row.horizon for row in read_rows(path)} == {500}


def test_a_failed_cell_is_named_and_the_command_exits_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def playing(experiment: Experiment, cell: Cell) -> Row | Failure:
        return Failure(cell, "out of luck") if cell == ("wide", "public", 1) else play_cell(experiment, cell)

    monkeypatch.setattr("distrust.lab.sweep.engine.play_cell", playing)
    shown = sweep(small(tmp_path), "--jobs", "1", "--out", str(tmp_path))
    assert shown.exit_code == 1
    assert "failed: panel 'wide', series 'public', repetition 1: out of luck" in shown.stderr
    assert "11 rows in" in shown.stdout


def test_a_stopped_sweep_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def playing(experiment: Experiment, cell: Cell) -> Row | Failure:
        if cell.series == "public":
            raise KeyboardInterrupt
        return play_cell(experiment, cell)

    monkeypatch.setattr("distrust.lab.sweep.engine.play_cell", playing)
    shown = sweep(small(tmp_path), "--jobs", "1", "--out", str(tmp_path))
    assert shown.exit_code == 130
    assert "stopped: 3 finished cells are kept in" in shown.stderr
    assert "the same command goes on from there" in shown.stderr


def test_rows_that_were_published_are_compared_with_what_is_played(tmp_path: Path) -> None:
    name, published = small(tmp_path), tmp_path / "published.csv"
    words = [name, "--jobs", "1", "--check", str(published)]
    rows = run_sweep(load_experiment(name), tmp_path, jobs=1).rows
    write_rows(rows, published, "csv")
    same = sweep(*words, "--out", str(tmp_path / "again"), "--repetitions", "2")
    assert same.exit_code == 0
    assert f"8 of 8 rows equal those of {published}" in same.stdout
    write_rows([rows[0].model_copy(update={"regret": 1.0, "clients": 2}), *rows[1:]], published, "csv")
    other = sweep(*words, "--out", str(tmp_path / "again"), "--repetitions", "2")
    assert other.exit_code == 1
    assert "differs: panel 'wide', series 'private', repetition 0: clients, regret" in other.stderr
    assert f"7 of 8 rows equal those of {published}" in other.stdout
    told = sweep(*words, "--out", str(tmp_path / "again"), "--repetitions", "2", "--json", "-")
    facts = json.loads(told.stdout, parse_constant=pytest.fail)  # NaN is no JSON
    assert (facts["experiment"], facts["rows"], facts["equal"], facts["failed"]) == ("small", 8, 7, [])
    assert {line["series"] for line in facts["summary"]} == {line["series"] for line in facts["confidence"]}


def test_rows_to_check_against_are_read_before_anything_is_played(tmp_path: Path) -> None:
    shown = sweep(small(tmp_path), "--out", str(tmp_path / "out"), "--check", str(tmp_path / "gone.csv"))
    assert isinstance(shown.exception, ProtocolError)
    assert "No such file" in shown.exception.detail
    assert not (tmp_path / "out").exists()


def test_a_sweep_with_other_code_says_that_it_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [small(tmp_path), "--jobs", "1", "--out", str(tmp_path), "--repetitions", "1"]
    assert "other code" not in sweep(*words).stderr
    older = {**code.parts(), "numpy": "0.0", "distrust.lab.sweep.cells": "0"}
    monkeypatch.setattr(code, "parts", lambda: older)
    shown = sweep(*words)
    (kept,) = set(tmp_path.glob("small-*/rows-*.jsonl")) - {
        next(tmp_path.glob(f"small-*/rows-{code.code_digest()}.jsonl"))
    }
    message = f"4 cells in {kept} were played by other code (distrust.lab.sweep.cells, numpy differ): kept, not used"
    assert message in shown.stderr
    assert "small: 0 of 4 cells\n" in shown.stderr
    assert "other code" not in sweep(*words).stderr
