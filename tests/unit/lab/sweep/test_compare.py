"""Tests that replayed rows are compared with published ones column by column, without the time."""

import pytest

from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import differing_columns
from tests.support.experiments import played, small

CELL = Cell("wide", "private", 0)


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Row:
    return played(load_experiment(small(tmp_path_factory.mktemp("experiment"))), CELL)


def test_a_row_is_itself_whatever_time_it_took(row: Row) -> None:
    assert differing_columns([row], [row.model_copy(update={"seconds": 1e9})]) == {}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param("clients", 1, id="a-count"),
        pytest.param("chosen", None, id="nothing-chosen"),
        pytest.param("best_dropped", True, id="an-event"),
        pytest.param("failure", None, id="another-promise"),
        pytest.param("mechanism", "identity", id="a-word"),
        pytest.param("digest", "", id="another-run-file"),
        pytest.param("curve", [], id="no-curve"),
    ],
)
def test_a_column_that_differs_is_named(column: str, value: object, row: Row) -> None:
    assert differing_columns([row], [row.model_copy(update={column: value})]) == {CELL: [column]}


def test_a_column_that_the_published_row_lacks_is_not_compared(row: Row) -> None:
    counted, other = (row.model_copy(update={"indefinite": count}) for count in (3, 4))
    assert differing_columns([row], [counted]) == {}
    assert differing_columns([counted], [other]) == differing_columns([counted], [row]) == {CELL: ["indefinite"]}


def test_floats_may_differ_in_their_last_bits_only(row: Row) -> None:
    for factor, result in ((1 + 1e-14, {}), (1 + 1e-11, {CELL: ["regret"]})):
        assert differing_columns([row], [row.model_copy(update={"regret": row.regret * factor})]) == result
    for factor, result in ((1 + 1e-14, {}), (1 + 1e-11, {CELL: ["curve"]})):
        curve = [*row.curve[:-1], row.curve[-1] * factor]
        assert differing_columns([row], [row.model_copy(update={"curve": curve})]) == result


def test_a_cell_that_was_not_published_is_no_equal_and_one_that_was_not_played_is_no_difference(row: Row) -> None:
    other = row.model_copy(update={"repetition": 1})
    assert differing_columns([row], [row, other]) == {Cell("wide", "private", 1): ["row"]}
    assert differing_columns([row, other], [row]) == {}
