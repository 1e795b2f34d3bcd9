"""What the committed code plays is what docs/figures.md shows.

Two cells of every series of every experiment: repetition 0 in the first panel, always, and one that the digest of the
code picks among the others, so that each change of the code is met by cells of its own, the same ones at every run.
All of them are `make replay`.
"""

import random
from collections.abc import Iterator
from functools import partial
from statistics import fmean

import pytest

from lab.sweep import Cell, Experiment, Row, code, differing, load
from lab.sweep.play import play
from lab.sweep.workers import unordered
from tests.published import PUBLISHED, rows

pytestmark = pytest.mark.slow


DEAR = 20.0  # seconds a run, when its rows were published: such a series is met by the picked cell alone


def chosen(experiment: Experiment, published: list[Row]) -> Iterator[Cell]:
    picker = random.Random(f"{code.digest()} {experiment.name}")
    for series in dict.fromkeys(row.series for row in published):
        mine = [row for row in published if row.series == series]
        fixed, *others = [Cell(row.panel, row.series, row.repetition) for row in mine]
        if fmean(row.seconds for row in mine) < DEAR:
            yield fixed
        yield picker.choice(others)


@pytest.mark.parametrize("name", PUBLISHED)
def test_cells_that_are_played_again_are_the_published_rows(name: str) -> None:
    experiment, published = load(name), rows(name)
    wanted = list(chosen(experiment, published))
    found = list(unordered(partial(play, experiment), wanted, "loky", 2))
    played = [row for row in found if isinstance(row, Row)]
    assert len(played) == len(wanted), found
    assert {cell.series for cell in wanted} == {series.label for series in experiment.series}
    assert differing(published, played) == {}
