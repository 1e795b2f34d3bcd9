"""Tests that the published rows are the committed experiments', and that the pictures were drawn from them."""

import pytest

from distrust.lab.cli.sweep import COMPOSITION, DELTA, EPSILON
from distrust.lab.figures.composition import composition_curves, composition_stamp
from distrust.lab.figures.drawing import matched, stamp
from distrust.lab.sweep.cells import all_cells, cell_digest, read_experiment
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell
from tests.support.published import FIGURES, PUBLISHED, TUNINGS, drawn_from, rows


@pytest.fixture(scope="module")
def loaded() -> dict[str, Experiment]:
    return {name: read_experiment(path) for name, path in [*zip(PUBLISHED, PUBLISHED, strict=True), *TUNINGS.items()]}


def test_every_experiment_has_its_rows_published_and_nothing_else_is() -> None:
    folder = FIGURES / "rows"
    wanted = {f"{name}.parquet" for name in PUBLISHED}
    assert {path.name for path in folder.iterdir()} == {*wanted, "tuning"}
    assert {path.name for path in (folder / "tuning").iterdir()} == {f"{name}.parquet" for name in TUNINGS}


@pytest.mark.parametrize("name", [*PUBLISHED, *TUNINGS])
def test_published_rows_are_those_of_all_cells_as_the_experiment_is_now(
    name: str, loaded: dict[str, Experiment]
) -> None:
    wanted = {cell: cell_digest(loaded[name], cell) for cell in all_cells(loaded[name])}
    result = {Cell(row.panel, row.series, row.repetition): row.digest for row in rows(name)}
    assert list(result.items()) == list(wanted.items())  # in the order of the table
    assert len(rows(name)) == len(wanted)


def test_every_figure_is_kept_as_png_and_pdf_and_only_the_papers_pages_lie_beside_them() -> None:
    """SVGs are written by the command, and not kept."""
    wanted = {f"{name}.{suffix}" for name in (*PUBLISHED, COMPOSITION) for suffix in ("png", "pdf")}
    pages = {f"{name.partition('-')[0]}.md" for name in PUBLISHED}
    assert {path.name for path in FIGURES.iterdir()} == {*wanted, *pages, "rows"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_pictures_were_drawn_from_the_published_rows_and_the_committed_words(
    name: str, loaded: dict[str, Experiment]
) -> None:
    wanted = stamp(loaded[name], matched(loaded[name], rows(name)))
    assert [drawn_from(FIGURES / f"{name}.{suffix}") for suffix in ("png", "pdf")] == [wanted, wanted]


def test_composition_was_drawn_from_what_is_computed_now() -> None:
    wanted = composition_stamp(composition_curves(EPSILON, DELTA))
    assert [drawn_from(FIGURES / f"{COMPOSITION}.{suffix}") for suffix in ("png", "pdf")] == [wanted, wanted]


def test_a_pdf_is_small_and_has_no_date() -> None:
    """Drawing again from the same rows changes no byte, and the repository stays small."""
    for name in (*PUBLISHED, COMPOSITION):
        content = (FIGURES / f"{name}.pdf").read_bytes()
        assert content.startswith(b"%PDF"), name
        assert b"CreationDate" not in content, name
        assert b"ModDate" not in content, name
        assert len(content) < 150_000, name
