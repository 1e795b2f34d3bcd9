"""Tests sweeps in one process, `jobs=1`. Processes, kills and Dask are in tests/system."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from distrust.common.errors import BadParameter
from distrust.lab.sweep.cells import Failure, Standing, all_cells, load_experiment, play_cell
from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import read_rows
from tests.support.experiments import small


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(small(tmp_path))


def alike(rows: list[Row]) -> list[dict[str, object]]:
    """Return rows without what differs from machine to machine."""
    return [row.lasting() for row in rows]


def test_a_sweep_has_a_row_for_every_cell_in_their_order(experiment: Experiment, tmp_path: Path) -> None:
    seen: list[Standing] = []
    outcome = run_sweep(experiment, tmp_path, jobs=1, watch=seen.append)
    assert [row.cell for row in outcome.rows] == list(all_cells(experiment))
    assert read_rows(outcome.path) == outcome.rows
    assert [one.done for one in seen] == list(range(13))
    assert (seen[-1].left, outcome.failures) == (0, {})


def test_what_is_there_is_not_played_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_sweep(experiment, tmp_path / "whole", jobs=1)
    first = run_sweep(experiment.model_copy(update={"repetitions": 1}), tmp_path, jobs=1)
    played: list[Cell] = []

    def noting(one: Experiment, cell: Cell) -> Row | Failure:
        played.append(cell)
        return play_cell(one, cell)

    monkeypatch.setattr("distrust.lab.sweep.engine.play_cell", noting)
    second = run_sweep(experiment, tmp_path, jobs=1, form="csv")
    assert played == [cell for cell in all_cells(experiment) if cell.repetition > 0]
    assert first.path.parent == second.path.parent
    assert alike(second.rows) == alike(whole.rows) == alike(read_rows(second.path))
    run_sweep(experiment, tmp_path, jobs=1)
    assert len(played) == 8


def test_a_cell_that_fails_is_named_the_others_go_on_and_it_is_tried_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Cell("narrow", "private", 1)
    with monkeypatch.context() as patched:
        patched.setattr(
            "distrust.lab.sweep.engine.play_cell",
            lambda one, cell: Failure(cell, "no") if cell == bad else play_cell(one, cell),
        )
        outcome = run_sweep(experiment, tmp_path, jobs=1)
    assert outcome.failures == {bad: "no"}
    assert len(outcome.rows) == len(read_rows(outcome.path)) == 11
    listed = outcome.path.with_name("failures.json")
    assert json.loads(listed.read_text("utf-8")) == [{**bad._asdict(), "reason": "no"}]
    again = run_sweep(experiment, tmp_path, jobs=1)
    assert (again.failures, len(again.rows), listed.exists()) == ({}, 12, False)


def test_a_stop_keeps_every_cell_that_ended(experiment: Experiment, tmp_path: Path) -> None:
    def impatient(standing: Standing) -> None:
        if standing.done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(experiment, tmp_path, jobs=1, watch=impatient)
    seen: list[Standing] = []
    run_sweep(experiment, tmp_path, jobs=1, watch=seen.append)
    assert (seen[0].kept, seen[-1].done) == (5, 12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"backend": "mpi"}, "backend = 'mpi': must be one of loky, dask, ray", id="backend"),
        pytest.param({"jobs": 0}, "jobs = 0: must be at least 1", id="jobs"),
        pytest.param({"form": "xml"}, "format = 'xml': must be parquet or csv", id="format"),
    ],
)
def test_unknown_settings_are_refused_before_anything_is_written(
    settings: dict[str, object], message: str, experiment: Experiment, tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=message):
        run_sweep(experiment, tmp_path / "out", **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("backend", "extra"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_whose_package_is_missing_names_the_extra(
    backend: str, extra: str, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distrust.lab.sweep.backends.find_spec", lambda _name: None)
    with pytest.raises(BadParameter, match=f"needs the package {extra}: pip install 'distrust\\[{backend}\\]'"):
        run_sweep(experiment, tmp_path, backend=backend)


def test_a_worker_of_dask_says_nothing_of_connections_that_a_stop_closes() -> None:
    code = "import logging; from distrust.lab.sweep import backends; backends._start_dask_worker()"
    code += "; logging.getLogger('distributed.worker').error('closed'); logging.critical('lost')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "CRITICAL:root:lost\n"


def test_a_worker_with_other_code_plays_nothing(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests, files = iter(["0" * 12]), iter(["1" * 12])
    other = SimpleNamespace(code_digest=lambda: next(digests, "f" * 12), files_digest=lambda: next(files, "e" * 12))
    monkeypatch.setattr("distrust.lab.sweep.engine.code", other)
    outcome = run_sweep(experiment, tmp_path, jobs=1)
    assert outcome.rows == []
    reason = "this worker has other code (ffffffffffff) than the sweep (000000000000)"
    assert outcome.failures == dict.fromkeys(all_cells(experiment), reason)


@pytest.mark.parametrize(
    ("files", "digests"),
    [
        pytest.param(["1" * 12] * 13, ["0" * 12], id="files-that-are-equal-are-not-parsed"),
        pytest.param(["1" * 12, *["e" * 12] * 12], ["0" * 12] * 13, id="other-comments-are-the-same-code"),
    ],
)
def test_a_worker_with_the_same_code_plays(
    files: list[str], digests: list[str], experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_sweep(experiment, tmp_path / "whole", jobs=1)
    with monkeypatch.context() as patched:
        same = SimpleNamespace(code_digest=iter(digests).__next__, files_digest=iter(files).__next__)
        patched.setattr("distrust.lab.sweep.engine.code", same)
        assert alike(run_sweep(experiment, tmp_path, jobs=1).rows) == alike(whole.rows)
