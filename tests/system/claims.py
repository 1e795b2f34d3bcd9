"""Experiments as paired tables: quick versions, played once a session, and what docs/figures.md publishes.

Every cell is a function of the experiment's file: the same rows each time, so that nothing here is left to chance. That
published rows are what the code plays is `test_published_rows.py`'s to show.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.files import load_experiment
from distrust.lab.sweep.row import Row
from tests.support import published as shown

Floats = NDArray[np.float64]


class Seen:
    """Rows of one experiment by panel and series; repetition r of every pair plays the same world."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.panels = list(dict.fromkeys(row.panel for row in rows))

    def regret(self, panel: str, series: str) -> Floats:
        """Shape (repetitions,)."""
        return self.of(panel, series, "regret")

    def bits(self, panel: str, series: str) -> Floats:
        return self.of(panel, series, "bits")

    def mean(self, panel: str, series: str) -> float:
        """Of the regrets."""
        return float(self.regret(panel, series).mean())

    def means(self, series: str) -> Floats:
        """Panel by panel."""
        return np.array([self.mean(panel, series) for panel in self.panels])

    def curve(self, panel: str, series: str) -> Floats:
        """Mean regret at the checkpoints, shape (points,)."""
        table = [row.curve for row in self.rows if (row.panel, row.series) == (panel, series)]
        return np.asarray(np.mean(table, axis=0), dtype=np.float64)

    def of(self, panel: str, series: str, column: str) -> Floats:
        """A column, shape (repetitions,)."""
        found = [getattr(row, column) for row in self.rows if (row.panel, row.series) == (panel, series)]
        assert found, f"no rows for {panel!r}, {series!r}"
        return np.array(found, dtype=np.float64)


@cache
def seen(name: str) -> Seen:
    """The quick version: one sweep a session."""
    with TemporaryDirectory() as folder:
        outcome = run_sweep(load_experiment(name, quick=True), Path(folder), jobs=2)
    assert not outcome.failures, outcome.failures
    return Seen(outcome.rows)


@cache
def published(name: str) -> Seen:
    """The whole one, as it is in docs/figures/rows."""
    return Seen(shown.rows(name))
