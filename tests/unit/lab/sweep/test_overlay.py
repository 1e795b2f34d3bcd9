"""Tests that tables are laid over tables without changing them, and that dotted keys are removed."""

import copy
from typing import Any

import pytest

from distrust.lab.sweep.experiment import has, merged, removed

BASE: dict[str, Any] = {"a": {"x": 1, "y": [1, 2]}, "b": 2}


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        pytest.param({}, BASE, id="nothing"),
        pytest.param({"a": {"x": 5}}, {"a": {"x": 5, "y": [1, 2]}, "b": 2}, id="a-key-in-a-table"),
        pytest.param({"a": {"y": [3]}}, {"a": {"x": 1, "y": [3]}, "b": 2}, id="lists-are-replaced"),
        pytest.param({"a": 7}, {"a": 7, "b": 2}, id="a-table-by-a-number"),
        pytest.param({"b": {"z": 1}}, {"a": {"x": 1, "y": [1, 2]}, "b": {"z": 1}}, id="a-number-by-a-table"),
    ],
)
def test_tables_are_laid_over_tables_and_stay_what_they_were(over: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(BASE)
    laid = merged(BASE, over)
    assert laid == expected
    laid["a"] = None
    assert before == BASE


def test_dotted_keys_are_taken_out_and_missing_ones_passed_over() -> None:
    assert removed(BASE, ["a.x", "c.d", "b.e"]) == {"a": {"y": [1, 2]}, "b": 2}
    assert BASE["a"]["x"] == 1
    assert has(BASE, "a.x")
    assert has(BASE, "a")
    assert not has(BASE, "b.e")
    assert not has(BASE, "c.d")
