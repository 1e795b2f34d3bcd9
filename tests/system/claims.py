"""Quick versions of the experiments, played once a session, as paired tables.

Every cell is a function of the experiment's file: the same rows each time, so that nothing here is left to chance.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from lab.sweep import load, run

Floats = NDArray[np.float64]


class Seen:
    """Rows of one experiment by panel and series; repetition r of every pair plays the same world."""

    def __init__(self, name: str) -> None:
        with TemporaryDirectory() as folder:
            outcome = run(load(name, quick=True), Path(folder), jobs=2)
        assert not outcome.failures, outcome.failures
        self.rows = outcome.rows
        self.panels = list(dict.fromkeys(row.panel for row in self.rows))

    def regret(self, panel: str, series: str) -> Floats:
        """Shape (repetitions,)."""
        return self._of(panel, series, "regret")

    def bits(self, panel: str, series: str) -> Floats:
        return self._of(panel, series, "bits")

    def mean(self, panel: str, series: str) -> float:
        """Of the regrets."""
        return float(self.regret(panel, series).mean())

    def means(self, series: str) -> Floats:
        """Panel by panel."""
        return np.array([self.mean(panel, series) for panel in self.panels])

    def curve(self, panel: str, series: str) -> Floats:
        """Mean regret at the checkpoints, shape (points,)."""
        table = [row.curve for row in self.rows if (row.panel, row.series) == (panel, series)]
        return np.array(table).mean(axis=0)

    def _of(self, panel: str, series: str, column: str) -> Floats:
        found = [getattr(row, column) for row in self.rows if (row.panel, row.series) == (panel, series)]
        assert found, f"no rows for {panel!r}, {series!r}"
        return np.array(found, dtype=np.float64)


@cache
def seen(name: str) -> Seen:
    """One sweep a session."""
    return Seen(name)
