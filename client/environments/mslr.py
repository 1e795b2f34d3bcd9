"""Draws real rewards: relevance labels of MSLR-WEB30K rows, grouped into arms by K-means (see data/README.md).

An environment needs only how many rows of each arm carry each label: a table, kept as CSV. `letor` makes such
a table from LETOR files.
"""

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.client.environments.base import EnvironmentSpec, KnownMeans, Seed
from distrust.common.errors import BadParameter
from distrust.common.inputs import MOST_TABLE, read_file
from distrust.common.randomness import Stream, generator

HEADER = ["arm", "label0", "label1", "label2", "label3", "label4"]
LABELS = 5  # relevance labels, 0 to HIGHEST_LABEL

_HOW = "a table of label counts is made with `distrust data mslr --clusters K --out FILE LETOR-FILES`"

SHIPPED = (10, 50)
"""Numbers of arms of the tables that come with the package."""

HIGHEST_LABEL = 4


def read_counts(path: Path, field: str = "file") -> NDArray[np.int64]:
    """Return the table in `path`, int64, shape (K, 5), K ≥ 2.

    Raises BadParameter, in the name of `field`: no such file, another header, an arm out of order, a count that is
    not a whole number ≥ 0, an arm without rows. The message names the line, and how such a file is made.
    """
    try:
        lines = read_file(path, MOST_TABLE)[0].decode("utf-8").splitlines()
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


class MslrSpec(EnvironmentSpec):
    """`[environment] name = "mslr"`: one of the shipped tables by its number of arms, or a table of the user's.

    arms  K; picks the shipped table of that size.
    file  a table of the user's, as `distrust data mslr` writes it.
    """

    name: Literal["mslr"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=100_000)] | None = None
    file: str | None = None

    def build(self) -> "Mslr":
        """Return the world. Raises BadParameter when the table is missing, broken, or of another size."""
        counts = _counts(self)
        if self.arms is not None and self.arms != len(counts):
            raise BadParameter("environment.arms", self.arms, f"{self.file} has {len(counts)} arms")
        return Mslr(counts)


@dataclass(frozen=True)
class Mslr(KnownMeans):
    """Arm a pays label / 4 of a row drawn uniformly, with replacement, from the rows of the arm.

    counts  int64, shape (K, 5): rows of each arm with relevance label 0..4, at least one row an arm.
    """

    counts: NDArray[np.int64]
    name: str = "mslr"

    @cached_property
    def means(self) -> NDArray[np.float64]:
        return np.asarray(self.counts @ np.arange(5) / (4 * self.counts.sum(axis=1)), dtype=np.float64)

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Return multiples of 1/4, shape (count,)."""
        ends = np.cumsum(self.counts[arm])
        rows = generator(stream).integers(0, ends[-1], count)
        return np.searchsorted(ends, rows, side="right") / 4


def _counts(spec: MslrSpec) -> NDArray[np.int64]:
    if spec.file is not None:
        return read_counts(Path(spec.file), "environment.file")
    arms = 10 if spec.arms is None else spec.arms
    if arms not in SHIPPED:
        allowed = (
            f"the shipped tables have {' or '.join(map(str, SHIPPED))} arms; make another from LETOR files with "
            f"`distrust data mslr --clusters {arms} --out counts.csv FILES` and name it in environment.file"
        )
        raise BadParameter("environment.arms", arms, allowed)
    with resources.as_file(resources.files("distrust.client.environments") / "data" / f"mslr-{arms}.csv") as path:
        return read_counts(path, "environment.arms")


def write_counts(table: NDArray[np.int64], path: Path) -> None:
    """Write `table`, int64 of shape (K, 5), as CSV with a header; an existing file is replaced as a whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([arm, *row] for arm, row in enumerate(table.tolist()))
    part = path.with_name(path.name + ".part")
    part.write_text(text.getvalue(), encoding="utf-8")
    part.replace(path)
