"""docs/figures.md: its rows are the committed experiments', its pictures were drawn from them."""

import pytest

from lab.figures import matched
from lab.figures.stamp import stamp
from lab.sweep import Cell, Experiment, cells, load
from lab.sweep.cells import digest
from tests.published import FIGURES, PUBLISHED, drawn_from, rows


@pytest.fixture(scope="module")
def loaded() -> dict[str, Experiment]:
    return {name: load(name) for name in PUBLISHED}


def test_every_experiment_has_its_rows_published_and_nothing_else_is() -> None:
    assert [path.name for path in sorted((FIGURES / "rows").iterdir())] == [f"{name}.parquet" for name in PUBLISHED]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows_are_those_of_all_cells_as_the_experiment_is_now(
    name: str, loaded: dict[str, Experiment]
) -> None:
    wanted = {cell: digest(loaded[name], cell) for cell in cells(loaded[name])}
    found = {Cell(row.panel, row.series, row.repetition): row.digest for row in rows(name)}
    assert list(found.items()) == list(wanted.items())  # in the order of the table
    assert len(rows(name)) == len(wanted)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_picture_was_drawn_from_the_published_rows_and_the_committed_words(
    name: str, loaded: dict[str, Experiment]
) -> None:
    experiment = loaded[name]
    assert drawn_from(FIGURES / f"{name}.png") == stamp(experiment, matched(experiment, rows(name)))
