"""Whether cells that were played again are the rows that were published."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from distrust.lab.sweep.cells import Cell
from distrust.lab.sweep.row import Row

TOLERANCE = 1e-12
"""Relative, of floats: the linear algebra of another processor adds in another order, which moves their last bits."""


def differing(published: Sequence[Row], played: Sequence[Row]) -> dict[Cell, list[str]]:
    """The columns in which a played cell is not the published one, by cell; a cell that was not published has `row`.

    Whole numbers and words must be the same, floats too but for TOLERANCE. Seconds are nobody's promise.
    """
    known = {_cell(row): row.lasting() for row in published}
    found = {_cell(row): _columns(known.get(_cell(row)), row.lasting()) for row in played}
    return {cell: columns for cell, columns in found.items() if columns}


def _cell(row: Row) -> Cell:
    return Cell(row.panel, row.series, row.repetition)


def _columns(published: Mapping[str, Any] | None, played: Mapping[str, Any]) -> list[str]:
    if published is None:
        return ["row"]
    return [name for name, value in played.items() if not _same(published[name], value)]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
