"""Tests that the committed code plays the rows that docs/figures.md shows, on a cell of every experiment.

The digest of the code picks the cells. So other code tests other cells, and the same code the same cells. `make replay`
tests all of them. Of a run of many rounds, which takes up to 15 seconds alone, the beginning is compared.
"""

import random
from itertools import takewhile

import numpy as np
import pytest

from distrust.lab.play.lock_step import in_lock_step, play_together
from distrust.lab.sweep import code
from distrust.lab.sweep.cells import cell_digest, cell_run_file, checkpoints, load_experiment, play_cell
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import TOLERANCE, differing_columns
from tests.support.picked import picked
from tests.support.published import PUBLISHED, rows

pytestmark = pytest.mark.slow


DEAR = 1.0  # seconds of a run when its rows were published: only `make replay` plays longer cells
CELLS = 1  # of each experiment
FEW = 3  # experiments; CI plays a cell of all
MANY = 20_000  # rounds in lock step, whose published seconds are a share of a group's: more of them are not all played
FIRST = 14_000  # rounds that are played then: seven points of the curve, two of them after the longest warm-up


def chosen(experiment: Experiment, published: list[Row]) -> list[Cell]:
    """Return cells of different series that take less than DEAR; if all take longer, long ones or the shortest."""
    picker = random.Random(f"{code.code_digest()} {experiment.name}")
    cheap = [row for row in published if row.seconds < DEAR]
    begun = [row for row in published if not cheap and long(experiment, row.cell)]
    offered = cheap or begun or [min(published, key=lambda row: row.seconds)]
    series = list(dict.fromkeys(row.series for row in offered))
    picked = picker.sample(series, min(CELLS, len(series)))
    return [picker.choice([row for row in offered if row.series == label]).cell for label in picked]


def long(experiment: Experiment, one: Cell) -> bool:
    """Return whether only the first rounds of a cell are played here."""
    file = cell_run_file(experiment, one)
    return in_lock_step(file) and file.config.horizon > MANY * getattr(file.config.policy, "batch", 1)


def check_beginning(experiment: Experiment, row: Row) -> None:
    """Compare the first rounds of a run, under its whole horizon, with the beginning of its row."""
    file = cell_run_file(experiment, row.cell)
    (played,) = play_together([file], stop=FIRST)
    assert played.pulls[-1] == FIRST * played.pulls[0] < file.config.horizon
    places = experiment.places(file.config.horizon)
    ends = list(takewhile(lambda place: place <= played.pulls[-1], places))
    assert len(ends) == 7
    curve = checkpoints(list(zip(played.pulls.tolist(), played.regret.tolist(), strict=True)), np.array(ends))
    assert curve == pytest.approx(row.curve[: len(ends)], rel=TOLERANCE, abs=0.0)
    assert (row.digest, row.seed) == (cell_digest(experiment, row.cell), file.environment.seed)


@pytest.mark.parametrize("name", picked(PUBLISHED, FEW, "experiments"))
def test_cells_that_are_played_again_are_the_published_rows(name: str) -> None:
    experiment, published = load_experiment(name), rows(name)
    wanted = chosen(experiment, published)
    beginnings = [row for row in published if row.cell in wanted and long(experiment, row.cell)]
    for row in beginnings:
        check_beginning(experiment, row)
    result = [play_cell(experiment, one) for one in wanted if one not in {row.cell for row in beginnings}]
    played = [row for row in result if isinstance(row, Row)]
    assert len(played) + len(beginnings) == len(wanted) > 0, result
    assert differing_columns(published, played) == {}
