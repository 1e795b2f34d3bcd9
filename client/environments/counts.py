"""The table behind the `mslr` environment: how many rows of each arm carry each relevance label."""

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter

HEADER = ["arm", "label0", "label1", "label2", "label3", "label4"]
LABELS = 5

_HOW = "a table of label counts is made with `distrust data mslr --clusters K --out FILE LETOR-FILES`"


def write_counts(table: NDArray[np.int64], path: Path) -> None:
    """Write `table`, int64 of shape (K, 5), as CSV with a header; an existing file is replaced as a whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([arm, *row] for arm, row in enumerate(table.tolist()))
    part = path.with_name(path.name + ".part")
    part.write_text(text.getvalue(), encoding="utf-8")
    part.replace(path)


def read_counts(path: Path, field: str = "file") -> NDArray[np.int64]:
    """The table in `path`, int64, shape (K, 5), K ≥ 2.

    Raises BadParameter, in the name of `field`: no such file, another header, an arm out of order, a count that is
    not a whole number ≥ 0, an arm without rows. The text names the line and how such a file is made.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(field, str(path), f"cannot be read ({error}); {_HOW}") from error
    rows = list(csv.reader(lines))
    if not rows or rows[0] != HEADER:
        raise BadParameter(field, str(path), f"line 1 must be {','.join(HEADER)}; {_HOW}")
    table = [_row(cells, arm, path, field) for arm, cells in enumerate(rows[1:])]
    if len(table) < 2:
        raise BadParameter(field, str(path), "at least 2 arms are needed")
    return np.array(table, dtype=np.int64)


def _row(cells: list[str], arm: int, path: Path, field: str) -> list[int]:
    whole = len(cells) == len(HEADER) and all(cell.isascii() and cell.isdigit() and len(cell) <= 15 for cell in cells)
    if not whole or int(cells[0]) != arm:
        raise BadParameter(field, str(path), f"line {arm + 2} must be arm {arm} and {LABELS} whole numbers, at least 0")
    counts = [int(cell) for cell in cells[1:]]
    if not any(counts):
        raise BadParameter(field, str(path), f"line {arm + 2}: arm {arm} has no rows")
    return counts
