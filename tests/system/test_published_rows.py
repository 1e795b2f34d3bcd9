"""What the committed code plays is what docs/figures.md shows.

Two cells of every series of every experiment: repetition 0 in the first panel, always, and one that the digest of the
code picks among the others, so that each change of the code is met by cells of its own, the same ones at every run.
All of them are `make replay`.
"""

import random
from functools import partial

import pytest

from lab.sweep import Cell, Experiment, Row, cells, code, differing, load
from lab.sweep.play import play
from lab.sweep.workers import unordered
from tests.published import PUBLISHED, rows

pytestmark = pytest.mark.slow


def chosen(experiment: Experiment) -> list[Cell]:
    picker = random.Random(f"{code.digest()} {experiment.name}")
    fixed = [Cell(experiment.panels[0].label, series.label, 0) for series in experiment.series]
    others = [cell for cell in cells(experiment) if cell not in fixed]
    return fixed + [picker.choice([cell for cell in others if cell.series == one.series]) for one in fixed]


@pytest.mark.parametrize("name", PUBLISHED)
def test_cells_that_are_played_again_are_the_published_rows(name: str) -> None:
    experiment = load(name)
    wanted = chosen(experiment)
    found = list(unordered(partial(play, experiment), wanted, "loky", 2))
    played = [row for row in found if isinstance(row, Row)]
    assert len(played) == len(wanted) == 2 * len(experiment.series), found
    assert differing(rows(name), played) == {}
