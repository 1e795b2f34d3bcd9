"""Experiments as paired tables: the rows that docs/figures.md publishes.

These helpers play nothing. `test_published_rows.py` plays a cell of every experiment again, `make replay` all of them.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from distrust.lab.sweep.row import Row
from tests.support import published as shown

Floats = NDArray[np.float64]


class PublishedRows:
    """Rows of one experiment by panel and series; repetition r of every pair plays the same world."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.panels = list(dict.fromkeys(row.panel for row in rows))

    def regret(self, panel: str, series: str) -> Floats:
        """Return the regret of each repetition, shape (repetitions,)."""
        return self.of(panel, series, "regret")

    def bits(self, panel: str, series: str) -> Floats:
        return self.of(panel, series, "bits")

    def mean(self, panel: str, series: str) -> float:
        """Return the mean of the regrets over the repetitions."""
        return float(self.regret(panel, series).mean())

    def means(self, series: str) -> Floats:
        """Return a series' mean regret in each panel, shape (panels,)."""
        return np.array([self.mean(panel, series) for panel in self.panels])

    def differs(self, panel: str, series: str, other: str) -> tuple[float, float]:
        """Return the ends of the 95 % interval of a difference of two series, as shares of the other one's regret.

        Differences are paired, over the repetitions that both series have. Both ends above 0: the first series has more
        regret. Ends of both signs: undecided.
        """
        return _paired(self.regret(panel, series), self.regret(panel, other))

    def changes(self, series: str, panel: str, other: str) -> tuple[float, float]:
        """Return the same interval for a difference of two panels of one series, as shares of its regret in the other.

        They are paired by their worlds alone: panels have other rewards.
        """
        return _paired(self.regret(panel, series), self.regret(other, series))

    def sign(self, panel: str, series: str, other: str) -> int:
        """Return 1 where the first series has more regret, -1 where it has less, and 0 where that is undecided."""
        low, high = self.differs(panel, series, other)
        return int(low > 0) - int(high < 0)

    def shown_difference(self, panel: str, series: str, other: str) -> str:
        """Return `-1.2 ± 0.3 %` for a difference, without decimals from 100 % on; `undecided, …` where it may be 0.

        Of equal regrets, repetition by repetition, it is `none`.
        """
        low, high = (100 * end for end in self.differs(panel, series, other))
        if low == high == 0:
            return "none"
        middle, half = (low + high) / 2, (high - low) / 2
        digits = 0 if abs(middle) >= 100 else 1
        shown = round(middle, digits) + 0.0  # no minus before 0
        return f"{'undecided, ' if low <= 0 <= high else ''}{shown:,.{digits}f} ± {half:,.{digits}f} %"

    def less(self, panel: str, series: str, other: str) -> bool | None:
        """Return whether a series has less regret than another one; None where the interval holds both signs."""
        low, high = self.differs(panel, series, other)
        return None if low <= 0 <= high else high < 0

    def curve(self, panel: str, series: str) -> Floats:
        """Return the mean regret at the checkpoints, shape (points,)."""
        table = [row.curve for row in self.rows if (row.panel, row.series) == (panel, series)]
        return np.asarray(np.mean(table, axis=0), dtype=np.float64)

    def of(self, panel: str, series: str, column: str) -> Floats:
        """Return a column, shape (repetitions,)."""
        result = [getattr(row, column) for row in self.rows if (row.panel, row.series) == (panel, series)]
        assert result, f"no rows for {panel!r}, {series!r}"
        return np.array(result, dtype=np.float64)


def _paired(more: Floats, less: Floats) -> tuple[float, float]:
    """Return the ends of the 95 % interval (Student's t) of a mean difference, as shares of the second one's mean."""
    more, less = more[: less.size], less[: more.size]
    differences = (more - less) / less.mean()
    half = t.ppf(0.975, less.size - 1) * differences.std(ddof=1) / np.sqrt(less.size)
    return float(differences.mean() - half), float(differences.mean() + half)


def standard_error(values: Floats) -> float:
    """Return the standard error of the mean of independent values."""
    return float(values.std(ddof=1) / np.sqrt(values.size))


@cache
def published(name: str) -> PublishedRows:
    """Return a whole experiment, as it is in docs/figures/rows."""
    return PublishedRows(shown.rows(name))
