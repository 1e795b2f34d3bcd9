"""Real contexts: rows of MSLR-WEB30K, reduced to a few numbers each; a row pays its relevance (see data/README.md).

A client meets K rows, drawn uniformly with replacement from a table, and chooses one: an arm is a place among them. The
rows are fixed, so a reward is a function of the context, and has no noise. No linear function of the context is that
function: with 10 arms and 9 components the best of 10 rows pays 0.52 on average, the row of the largest least-squares
prediction 0.26, and a row at random 0.15. Regret is against the best row, so it grows linearly for every policy here,
and only differences between policies mean something.

`letor` makes such a table from LETOR files, for `distrust data mslr-contexts`.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.client.environments.base import Seed
from distrust.client.environments.contextual import LARGEST_ENTRY, Contexts, ContextualSpec, LongContexts, within_ball
from distrust.client.environments.mslr import HIGHEST_LABEL
from distrust.common.bandit.contextual_choice import Link
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.inputs import MOST_TABLE, read_file
from distrust.common.randomness import Stream, generator
from distrust.common.specs.contextual import Parameters

SHIPPED_TABLE = "mslr-contexts.csv"
"""5,000 rows with 10 components."""

FIRST_ROW = 3
"""Line of the first row: the header and the radii are above it."""

DECIMALS = 3  # of each number in the table

_MADE_BY = "a table of contexts is made with `distrust data mslr-contexts --fit HELD-BACK --out FILE LETOR-FILES`"


class ContextTable(NamedTuple):
    """A table of contexts.

    labels      relevance 0..4, int64, shape (n,).
    components  of each row, float64, shape (n, D), D ≥ 1.
    radii       entry j - 1 is the length that 95 % of the held-back rows have at most in their first j components.
    """

    labels: NDArray[np.int64]
    components: Floats
    radii: Floats


class ContextualMslrSpec(ContextualSpec):
    """`[environment] name = "contextual-mslr"`: the shipped table, or a table of the user's.

    arms           K rows that a client meets.
    dimension      d: the first d - 1 components and a constant. 1 would leave the constant only.
    file           a table of the user's, as `distrust data mslr-contexts` writes it.
    radius         length of components that becomes 1; that of 95 % of the held-back rows when absent.
    long_contexts  what becomes of longer ones.
    """

    name: Literal["contextual-mslr"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=10_000)] = 10
    dimension: Annotated[int, Field(ge=2, le=137)] = 10
    file: str | None = None
    radius: Annotated[float, Field(gt=0, le=1e6)] | None = None
    long_contexts: LongContexts = "clip"

    def build(self) -> "ContextualMslr":
        """Return the world.

        Raises BadParameter: no such table, a broken one, too few components, a long context that is refused.
        """
        table = _table(self.file)
        several = self.dimension - 1
        if several > table.components.shape[1]:
            most = table.components.shape[1] + 1
            allowed = f"the table has {most - 1} components, so at most {most}; {_MADE_BY}"
            raise BadParameter("environment.dimension", self.dimension, allowed)
        radius = float(table.radii[several - 1]) if self.radius is None else self.radius
        short, clipped = within_ball(table.components[:, :several] / radius, self.long_contexts, FIRST_ROW)
        rows = np.concatenate([short, np.ones((len(short), 1))], axis=1) / np.sqrt(2)
        return ContextualMslr(self.arms, rows, table.labels / HIGHEST_LABEL, clipped)


@dataclass(frozen=True)
class ContextualMslr:
    """Contexts are the rows of a table, φ = (x, 1)/√2 with ‖x‖ ≤ 1, so ‖φ‖ ≤ 1.

    rows       φ, shape (n, d).
    relevance  label/4 of each row, shape (n,).
    clipped    rows whose x was longer than 1.
    """

    arms: int
    rows: Floats
    relevance: Floats
    clipped: int
    name: str = "contextual-mslr"

    link: ClassVar[Link] = "identity"
    parameters: ClassVar[Parameters] = "single"
    rewards: ClassVar[tuple[float, float]] = (0.0, 1.0)
    weights: ClassVar[tuple[float, ...] | None] = None

    @property
    def dimension(self) -> int:
        """Return d, the numbers of a context."""
        return int(self.rows.shape[1])

    def contexts(self, count: int, stream: Stream) -> Contexts:
        drawn = generator(stream).integers(0, len(self.rows), (count, self.arms))
        return Contexts(self.rows[drawn], np.zeros(count))  # rewards have no noise, and need no luck

    def means(self, features: Floats) -> Floats:
        """Return the relevance of each context; rows with equal contexts all pay their average.

        Raises BadParameter for a context that is in no row.
        """
        known, relevance = self._paid
        wanted = _whole(features)
        rows = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        if (known[rows] != wanted).any():
            raise BadParameter("context", "unknown", "rewards are known for the rows of the table only")
        paid: Floats = relevance[rows]
        return paid

    def pay(self, means: Floats, payout_draws: Floats) -> Floats:
        del payout_draws
        return means

    @cached_property
    def _paid(self) -> tuple[NDArray[np.void], Floats]:
        """Return the different contexts, as sorted bytes, and the average relevance of each."""
        known, which, counts = np.unique(_whole(self.rows), return_inverse=True, return_counts=True)
        return known, np.bincount(which, weights=self.relevance) / counts


def _whole(contexts: Floats) -> NDArray[np.void]:
    """Return each context, shape (…, d), as one value that can be compared and sorted, shape (…)."""
    plain = np.ascontiguousarray(contexts, dtype=np.float64)
    whole: NDArray[np.void] = plain.view(np.dtype((np.void, 8 * plain.shape[-1])))[..., 0]
    return whole


def _table(file: str | None) -> ContextTable:
    if file is not None:
        return read_contexts(Path(file), "environment.file")
    with resources.as_file(resources.files("distrust.client.environments") / "data" / SHIPPED_TABLE) as path:
        return read_contexts(path, "environment.file")


def read_contexts(path: Path, field: str = "file") -> ContextTable:
    """Return the table in `path`. It is kept while the file does not change.

    Raises BadParameter, in the name of `field`: no such file, another header, a number that is missing or outside
    its range. The message names the line.
    """
    try:
        return _read(path, field, path.stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(field, str(path), f"cannot be read ({error}); {_MADE_BY}") from error


@lru_cache(maxsize=4)
def _read(path: Path, field: str, changed: int) -> ContextTable:
    del changed  # a file that has changed is another key
    lines = read_file(path, MOST_TABLE)[0].decode("utf-8").splitlines()
    names = lines[0].split(",") if lines else []
    if len(names) < 2 or names != _header(len(names) - 1):
        raise BadParameter(field, str(path), f"line 1 must be label,x1,x2 and so on; {_MADE_BY}")
    radii = _numbers(lines[1].removeprefix("radius,"), len(names) - 1) if len(lines) > 1 else None
    if radii is None or not lines[1].startswith("radius,") or not (radii > 0).all():
        raise BadParameter(field, str(path), f"line 2 must be radius and {len(names) - 1} numbers above 0; {_MADE_BY}")
    if len(lines) < FIRST_ROW:
        raise BadParameter(field, str(path), f"has no rows; {_MADE_BY}")
    table = np.empty((len(lines) - 2, len(names)))
    for number, line in enumerate(lines[2:], start=FIRST_ROW):
        row = _numbers(line, len(names))
        if row is None or row[0] not in range(HIGHEST_LABEL + 1):
            allowed = f"line {number} must be a label 0 to {HIGHEST_LABEL} and {len(names) - 1} numbers"
            raise BadParameter(field, str(path), allowed)
        table[number - FIRST_ROW] = row
    return ContextTable(table[:, 0].astype(np.int64), table[:, 1:], radii)


def _header(components: int) -> list[str]:
    return ["label", *(f"x{index}" for index in range(1, components + 1))]


def _numbers(line: str, count: int) -> Floats | None:
    """Return the numbers of a line; None unless it has `count`, none above LARGEST_ENTRY in size."""
    try:
        numbers = np.array([float(cell) for cell in line.split(",")])
    except ValueError:
        return None
    return numbers if len(numbers) == count and (np.abs(numbers) <= LARGEST_ENTRY).all() else None


def write_contexts(table: ContextTable, path: Path) -> None:
    """Write a table as CSV with `DECIMALS` decimals; an existing file is replaced as a whole."""
    lines = [",".join(_header(table.components.shape[1])), ",".join(["radius", *map(_short, table.radii.tolist())])]
    rows = zip(table.labels.tolist(), table.components.tolist(), strict=True)
    lines.extend(",".join([str(label), *map(_short, row)]) for label, row in rows)
    part = path.with_name(path.name + ".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(path)


def _short(number: float) -> str:
    return f"{round(number, DECIMALS) + 0.0:.{DECIMALS}f}"
