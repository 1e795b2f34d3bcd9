"""LETOR files, line by line: `label qid:q 1:v 2:v …`, as MSLR-WEB10K and WEB30K are published."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import BadParameter

FEATURES = 136
HIGHEST_LABEL = 4


class Row(NamedTuple):
    """A query-url pair: relevance label 0..4, query id, features, float64 of shape (136,); absent ones are 0."""

    label: int
    query: int
    features: NDArray[np.float64]


def rows(path: Path) -> Iterator[Row]:
    """The rows of a file, streamed. Blank lines and what follows a # are skipped.

    Raises BadParameter that names file, line and what was expected there.
    """
    try:
        with path.open(encoding="ascii", errors="replace") as lines:
            for number, line in enumerate(lines, start=1):
                cells = line.partition("#")[0].split()
                if cells:
                    yield _row(cells, f"{path} line {number}")
    except OSError as error:
        raise BadParameter("file", str(path), f"cannot be read: {error.strerror}") from error


def _row(cells: list[str], where: str) -> Row:
    label, query = _label(cells[0], where), _query(cells, where)
    features = np.zeros(FEATURES)
    last = 0
    for cell in cells[2:]:
        index, value = _feature(cell, where)
        if index <= last:
            raise BadParameter(where, cell, f"features must be in rising order, and {last} came before")
        features[index - 1] = value
        last = index
    return Row(label, query, features)


def _label(cell: str, where: str) -> int:
    if cell not in {"0", "1", "2", "3", "4"}:
        raise BadParameter(where, cell, f"a line must begin with a relevance label, 0 to {HIGHEST_LABEL}")
    return int(cell)


def _query(cells: list[str], where: str) -> int:
    cell = cells[1] if len(cells) > 1 else ""
    key, _, value = cell.partition(":")
    if key != "qid" or not (value.isascii() and value.isdigit()):
        raise BadParameter(where, cell, "the second entry must be qid:NUMBER")
    return int(value)


def _feature(cell: str, where: str) -> tuple[int, float]:
    key, _, text = cell.partition(":")
    if not (key.isascii() and key.isdigit() and len(key) <= 3 and 1 <= int(key) <= FEATURES):
        raise BadParameter(where, cell, f"a feature must be INDEX:VALUE with an index from 1 to {FEATURES}")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadParameter(where, cell, "the value of a feature must be a finite number")
    return int(key), value
