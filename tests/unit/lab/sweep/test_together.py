"""Tests that cells of a contextual series played in lock step have the rows that they have alone."""

from pathlib import Path
from typing import Any

import pytest

from distrust.lab.play.lock_step import LockStepResult, play_together
from distrust.lab.play.run_file import RunFile
from distrust.lab.sweep import cells
from distrust.lab.sweep.cells import Failure, all_cells, load_experiment, play_group
from distrust.lab.sweep.engine import MOST_TOGETHER, grouped, run_sweep
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row
from tests.support.experiments import played

CONTEXTUAL = """
title = "contextual"
source = "a test"
claim = "none"
repetitions = 5
points = 4
run.horizon = 90
run.environment = {name = "contextual-synthetic", arms = 10}
run.policy.name = "linucb"
run.mechanism = {name = "local-gaussian", epsilon = 1.0, delta = 0.1}
panels = [{label = "fixed"}, {label = "sphere", run.environment.name = "glm-sphere"}]
series = [
  {label = "one by one", run.policy.batch = 1},
  {label = "batches", run.policy.batch = 20},
  {label = "clients that leave", run.policy.batch = 20, run.fleet.dropout = 0.01},
]
draw.kind = "regret"
"""


def loaded(folder: Path, repetitions: int | None = None) -> Experiment:
    path = folder / "contextual.toml"
    path.write_text(CONTEXTUAL, "utf-8")
    return load_experiment(str(path), repetitions=repetitions)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return loaded(tmp_path)


def lasting(rows: list[Row]) -> dict[Cell, dict[str, Any]]:
    return {row.cell: row.lasting() for row in rows}


def test_rows_of_a_sweep_are_those_of_the_cells(experiment: Experiment, tmp_path: Path) -> None:
    outcome = run_sweep(experiment, tmp_path / "out", jobs=1)
    assert not outcome.failures
    assert [row.cell for row in outcome.rows] == list(all_cells(experiment))
    for row in outcome.rows:
        assert played(experiment, row.cell).lasting() == row.lasting()
        assert row.clients == (90 if row.series == "one by one" else 80)
        assert len(row.curve) == 4
        assert row.curve[-1] == row.regret
        assert (row.best, row.chosen, row.aborted, row.unfinished) == (None, None, 0, 90 - row.clients)


def test_more_repetitions_keep_the_rows_that_are_there(experiment: Experiment, tmp_path: Path) -> None:
    few = run_sweep(loaded(tmp_path, 2), tmp_path / "out", jobs=1)
    more = run_sweep(experiment, tmp_path / "out", jobs=1)
    assert lasting(few.rows).items() <= lasting(more.rows).items()
    assert lasting(more.rows) == lasting(run_sweep(experiment, tmp_path / "new", jobs=1).rows)


def test_groups_are_of_one_panel_and_series_and_leave_no_worker_without_one(experiment: Experiment) -> None:
    wanted = list(all_cells(experiment))
    groups = grouped(experiment, wanted, 1)
    assert [cell for group in groups for cell in group] == wanted
    assert all(len({(cell.panel, cell.series) for cell in group}) == 1 for group in groups)
    assert [len(group) for group in groups if group[0].series != "clients that leave"] == [5] * 4
    assert [len(group) for group in groups if group[0].series == "clients that leave"] == [1] * 10
    own = [cell for cell in wanted if (cell.panel, cell.series) == ("fixed", "batches")]
    assert [len(group) for group in grouped(experiment, own, 2)] == [3, 2]
    many = [Cell("fixed", "batches", repetition) for repetition in range(2 * MOST_TOGETHER)]
    assert [len(group) for group in grouped(experiment, many, 1)] == [MOST_TOGETHER] * 2
    assert grouped(experiment, [], 4) == []


def test_a_cell_that_fails_takes_none_of_its_group_along(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [Cell("fixed", "batches", repetition) for repetition in range(3)]
    whole = play_group(experiment, group)

    def playing(files: list[RunFile]) -> list[LockStepResult]:
        if any(file.config.run.endswith(".1") for file in files):
            raise ArithmeticError("out of luck")
        return play_together(files)

    monkeypatch.setattr(cells, "play_together", playing)
    first, second, third = play_group(experiment, group)
    assert second == Failure(group[1], "ArithmeticError: out of luck")
    assert [one.lasting() for one in (first, third) if isinstance(one, Row)] == [
        one.lasting() for one in (whole[0], whole[2]) if isinstance(one, Row)
    ]
