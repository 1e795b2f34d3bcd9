"""From rows to what is drawn: means and standard deviations over the repetitions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import BadParameter
from lab.sweep import Experiment, Overlay, Row

Floats = NDArray[np.float64]


class Band(NamedTuple):
    """Mean and standard deviation (of a single repetition, n - 1) at each place; deviation 0 for one repetition."""

    mean: Floats
    deviation: Floats


def matched(experiment: Experiment, rows: Sequence[Row]) -> list[Row]:
    """The experiment's rows. Raises BadParameter for rows of another one, of other horizons, or where a pair has none.

    `rows` may be more than the experiment asks for: what its panels and series do not name is left out.
    """
    horizons = {(p.label, s.label): horizon(experiment, p, s) for p, s in experiment.pairs()}
    kept = [row for row in rows if row.experiment == experiment.name and (row.panel, row.series) in horizons]
    for row in kept:
        asked = horizons[row.panel, row.series]
        if row.horizon != asked:
            where = f"panel {row.panel!r}, series {row.series!r}: rows of horizon {row.horizon}"
            raise BadParameter("results", row.horizon, f"{where}, the experiment has {asked}; --quick is another one")
    for panel, series in horizons:
        if not of(kept, panel, series):
            raise BadParameter("results", 0, f"rows are missing: panel {panel!r}, series {series!r}")
    return kept


def of(rows: Sequence[Row], panel: str, series: str) -> list[Row]:
    """A pair's repetitions."""
    return [row for row in rows if (row.panel, row.series) == (panel, series)]


def band(rows: Sequence[Row], value: Callable[[Row], Sequence[float] | Floats]) -> Band:
    """Over the repetitions of one pair; `value` gives as many numbers for each."""
    table = np.array([value(row) for row in rows], dtype=np.float64)
    deviation = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(table.shape[1])
    return Band(table.mean(axis=0), deviation)


def places(row: Row) -> Floats:
    """The pulls at which a row's curve was read, shape (points,)."""
    return row.horizon * np.arange(1, len(row.curve) + 1) / len(row.curve)


def horizon(experiment: Experiment, panel: Overlay, series: Overlay) -> int:
    """T of a pair."""
    return int(experiment.table(panel, series)["horizon"])


def number(experiment: Experiment, panel: Overlay, key: str) -> float:
    """What the panel says at a dotted key of the run file. Raises BadParameter when that is no number."""
    found: Any = experiment.table(panel, Overlay(label="any"))
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BadParameter("draw.key", key, f"panel {panel.label!r} has no number there")
    return float(found)
