"""Tests that `distrust figure` plays what is missing, draws it, and refuses in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from distrust.common.errors import BadParameter
from distrust.lab.__main__ import app
from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.engine import run_sweep

TOML = """
title = "Two worlds"
source = "nobody"
claim = "none"
repetitions = 2
points = 5
run.horizon = 200
run.environment = {name = "bernoulli", means = [0.1, 0.9]}
run.mechanism.name = "identity"
panels = [{label = "one"}]
series = [{label = "SE"}]
draw = {kind = "regret"}
quick.run.horizon = 100
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TOML, encoding="utf-8")
    return path


def figure(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["figure", *map(str, words)])


def test_what_is_missing_is_played_and_drawn(mine: Path, tmp_path: Path) -> None:
    done = figure(mine, "--out", tmp_path / "out", "--sweeps", tmp_path / "sweeps", "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mine.pdf", "mine.png", "mine.svg"]
    assert [path.suffix for path in map(Path, done.stdout.split())] == [".png", ".svg", ".pdf"]


def test_results_are_drawn_and_nothing_is_played(mine: Path, tmp_path: Path) -> None:
    rows = run_sweep(load_experiment(str(mine), quick=True), tmp_path / "sweeps", jobs=1, form="csv").path
    sweeps = tmp_path / "untouched"
    done = figure(mine, "--quick", "--results", rows, "--out", tmp_path, "--sweeps", sweeps, "--json", "-")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    drawn = [str(tmp_path / f"mine-quick.{end}") for end in ("png", "svg", "pdf")]
    assert told == {"figure": str(mine), "files": drawn}
    assert all(Path(file).is_file() for file in told["files"])
    assert not sweeps.exists()


def test_rows_of_the_quick_version_are_not_passed_off_as_the_whole(mine: Path, tmp_path: Path) -> None:
    rows = run_sweep(load_experiment(str(mine), quick=True), tmp_path / "sweeps", jobs=1).path
    done = figure(mine, "--results", rows, "--out", tmp_path)
    assert isinstance(done.exception, BadParameter)
    assert "a row of another run file; --quick is another one" in done.exception.detail


def test_a_figure_that_cannot_be_drawn_or_kept_is_refused_before_anything_is_played(mine: Path, tmp_path: Path) -> None:
    sweeps, occupied = tmp_path / "sweeps", tmp_path / "occupied"
    occupied.write_text("a file")
    kept = figure(mine, "--out", occupied / "out", "--sweeps", sweeps)
    assert isinstance(kept.exception, BadParameter)
    for old, new in (('kind = "regret"', 'kind = "pie"'), ('kind = "regret"', 'kind = "by-panel"')):
        mine.write_text(TOML.replace(old, new), encoding="utf-8")
        drawn = figure(mine, "--out", tmp_path / "out", "--sweeps", sweeps)
        assert isinstance(drawn.exception, BadParameter)
        assert "draw" in drawn.exception.detail
    assert not sweeps.exists()


def test_composition_is_drawn_without_a_sweep(tmp_path: Path) -> None:
    done = figure("composition", "--out", tmp_path, "--sweeps", tmp_path / "sweeps")
    assert done.exit_code == 0, done.output
    png, svg, pdf = map(Path, done.stdout.split())
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in svg.read_text("utf-8")
    assert pdf.read_bytes().startswith(b"%PDF")
