"""Tests that the committed code plays the rows that docs/figures.md shows, on a cell of every experiment.

The digest of the code picks the cells. So other code tests other cells, and the same code the same cells. `make replay`
tests all of them.
"""

import random

import pytest

from distrust.lab.sweep import code
from distrust.lab.sweep.cells import load_experiment, play_cell
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import differing_columns
from tests.support.published import PUBLISHED, rows

pytestmark = pytest.mark.slow


DEAR = 3.0  # seconds of a run when its rows were published: only `make replay` plays longer cells
CELLS = 1  # of each experiment


def chosen(experiment: Experiment, published: list[Row]) -> list[Cell]:
    """Return cells of different series that take less than DEAR, or the shortest cell if all take longer."""
    picker = random.Random(f"{code.code_digest()} {experiment.name}")
    cheap = [row for row in published if row.seconds < DEAR] or [min(published, key=lambda row: row.seconds)]
    series = list(dict.fromkeys(row.series for row in cheap))
    picked = picker.sample(series, min(CELLS, len(series)))
    return [cell(picker.choice([row for row in cheap if row.series == label])) for label in picked]


def cell(row: Row) -> Cell:
    return Cell(row.panel, row.series, row.repetition)


@pytest.mark.parametrize("name", PUBLISHED)
def test_cells_that_are_played_again_are_the_published_rows(name: str) -> None:
    experiment, published = load_experiment(name), rows(name)
    wanted = chosen(experiment, published)
    found = [play_cell(experiment, one) for one in wanted]
    played = [row for row in found if isinstance(row, Row)]
    assert len(played) == len(wanted) > 0, found
    assert differing_columns(published, played) == {}
