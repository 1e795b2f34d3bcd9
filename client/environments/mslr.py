"""Real rewards: relevance labels of MSLR-WEB30K rows, grouped into arms by K-means (see data/README.md)."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.client.environments.base import EnvironmentSpec, Seed
from distrust.client.environments.counts import read_counts
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream, generator

SHIPPED = (10, 50)
"""The numbers of arms whose counts come with the package."""


class MslrSpec(EnvironmentSpec):
    """`[environment] name = "mslr"`: one of the shipped tables by its number of arms, or a table of the user's."""

    name: Literal["mslr"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=100_000)] | None = None
    file: str | None = None

    def build(self) -> "Mslr":
        """Raises BadParameter when the table is missing, broken, or of another size."""
        counts = _counts(self)
        if self.arms is not None and self.arms != len(counts):
            raise BadParameter("environment.arms", self.arms, f"{self.file} has {len(counts)} arms")
        return Mslr(counts)


@dataclass(frozen=True, slots=True)
class Mslr:
    """Arm a pays label / 4 of a row drawn uniformly, with replacement, from the rows of the arm.

    counts  int64, shape (K, 5): rows of each arm with relevance label 0..4, at least one row an arm.
    """

    counts: NDArray[np.int64]
    name: str = "mslr"

    @property
    def arms(self) -> int:
        return len(self.counts)

    @property
    def means(self) -> NDArray[np.float64]:
        return np.asarray(self.counts @ np.arange(5) / (4 * self.counts.sum(axis=1)), dtype=np.float64)

    @property
    def best(self) -> int:
        return int(np.argmax(self.means))

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Multiples of 1/4, shape (count,)."""
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
