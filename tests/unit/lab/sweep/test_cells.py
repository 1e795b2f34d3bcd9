"""Tests that a cell's row follows from the experiment, and that a failed cell states its reason."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from distrust.common.errors import BudgetExceeded
from distrust.lab.play import in_process
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import RunFile
from distrust.lab.sweep.cells import Failure, cell_run_file, checkpoints, load_experiment, play_cell
from distrust.lab.sweep.row import Cell
from tests.support.experiments import played, small

CELL = Cell("wide", "private", 1)


@pytest.mark.parametrize(
    ("curve", "points", "expected"),
    [
        pytest.param([(100, 10.0)], 4, [2.5, 5.0, 7.5, 10.0], id="one-round"),
        pytest.param([(50, 10.0), (100, 10.0)], 4, [5.0, 10.0, 10.0, 10.0], id="a-flat-tail"),
        pytest.param([(80, 0.0), (100, 40.0)], 5, [0.0, 0.0, 0.0, 0.0, 40.0], id="a-steep-tail"),
        pytest.param([(30, 3.0), (60, 9.0), (100, 9.0)], 1, [9.0], id="only-the-end"),
    ],
)
def test_regret_between_the_ends_of_rounds_is_linear(
    curve: list[tuple[int, float]], points: int, expected: list[float]
) -> None:
    places = 100 * np.arange(1, points + 1) / points
    assert checkpoints(curve, places) == pytest.approx(expected)


def test_a_row_is_what_the_run_came_to(tmp_path: Path) -> None:
    experiment = load_experiment(small(tmp_path))
    row, result = played(experiment, CELL), in_process.run(cell_run_file(experiment, CELL))
    assert (row.panel, row.series, row.repetition) == CELL
    assert (row.experiment, row.policy, row.mechanism, row.epsilon) == (
        "small",
        "successive-elimination",
        "distributed-polya",
        4.0,
    )
    assert (row.regret, row.chosen, row.best, row.seed) == (result.regret.final, result.chosen, 2, result.seed)
    assert row.curve[-1] == row.regret
    assert len(row.curve) == 4
    assert row.clients == result.horizon - result.unfinished
    sent = sum(record.payload_bits * cohort.clients for record in result.rounds for cohort in record.cohorts)
    assert row.bits == pytest.approx(sent)
    assert result.events is not None
    assert (row.widths, row.failure) == (result.events.widths, 0.1)


def test_a_cell_is_a_function_of_the_experiment_but_for_its_seconds(tmp_path: Path) -> None:
    experiment = load_experiment(small(tmp_path))
    assert played(experiment, CELL).lasting() == played(experiment, CELL).lasting()


def stopped_early(_file: RunFile) -> Result:
    """Return a run whose third round could not be calibrated."""
    result = in_process.run(_file)
    return result.model_copy(update={"pulls": [one // 2 for one in result.pulls], "fault": "round 3: no"})


def measured_nothing(_file: RunFile) -> Result:
    """Return a run that asked all its clients and closed no round."""
    return in_process.run(_file).model_copy(update={"fault": "nothing was measured: no round was closed"})


def refused(_file: RunFile) -> Result:
    raise BudgetExceeded(2.0, 1, 1.0, 0.0)


def broken(_file: RunFile) -> Result:
    raise MemoryError("too much")


def test_linear_algebra_has_one_thread_in_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def looking(_file: RunFile) -> Result:
        np.eye(2) @ np.eye(2)
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        raise BudgetExceeded(2.0, 1, 1.0, 0.0)

    monkeypatch.setattr("distrust.lab.sweep.cells.in_process", SimpleNamespace(run=looking))
    with threadpool_limits(2):  # the suite itself has one
        play_cell(load_experiment(small(tmp_path)), CELL)
        assert {pool["num_threads"] for pool in threadpool_info()} == {2}
    assert seen
    assert set(seen) == {1}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        pytest.param(refused, "one contribution would cost", id="refused"),
        pytest.param(broken, "MemoryError: too much", id="no-memory"),
        pytest.param(measured_nothing, "nothing was measured", id="measured-nothing"),
        pytest.param(stopped_early, "round 3: no", id="stopped-before-the-horizon"),
    ],
)
def test_what_goes_wrong_is_a_failure_that_says_why(
    run: Callable[[RunFile], Result], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distrust.lab.sweep.cells.in_process", SimpleNamespace(run=run))
    result = play_cell(load_experiment(small(tmp_path)), CELL)
    assert isinstance(result, Failure)
    assert result.cell == CELL
    assert reason in result.reason
