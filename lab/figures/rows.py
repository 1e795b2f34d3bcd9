"""From rows to what is drawn: means over the repetitions, and their spread."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.lab.sweep.cells import cell_digest
from distrust.lab.sweep.experiment import Experiment, Overlay
from distrust.lab.sweep.row import Row

Floats = NDArray[np.float64]
Spread = Literal["deviation", "error"]


class Band(NamedTuple):
    """Mean over n repetitions at each place, and how far it spreads; 0 for one repetition.

    spread  deviation: the standard deviation of one repetition (n - 1). error: that divided by √n, of the mean.
    """

    mean: Floats
    spread: Floats


def matched(experiment: Experiment, rows: Sequence[Row]) -> list[Row]:
    """The experiment's rows. Raises BadParameter for rows of another one, or where a pair has none.

    Another one: by its name, or by the digest of a cell: its run file was another one when the row was played.
    `rows` may be more than the experiment asks for: what its panels and series do not name is left out.
    """
    asked = [(panel.label, series.label) for panel, series in experiment.all_pairs()]
    kept = [row for row in rows if row.experiment == experiment.name and (row.panel, row.series) in asked]
    for row in kept:
        if row.digest != cell_digest(experiment, row.cell):
            where = f"panel {row.panel!r}, series {row.series!r}, repetition {row.repetition}"
            raise BadParameter("results", row.digest, f"{where}: a row of another run file; --quick is another one")
    for panel, series in asked:
        if not of(kept, panel, series):
            raise BadParameter("results", 0, f"rows are missing: panel {panel!r}, series {series!r}")
    return kept


def of(rows: Sequence[Row], panel: str, series: str) -> list[Row]:
    """A pair's repetitions."""
    return [row for row in rows if (row.panel, row.series) == (panel, series)]


def band(rows: Sequence[Row], value: Callable[[Row], Sequence[float] | Floats], spread: Spread = "deviation") -> Band:
    """Over the repetitions of one pair; `value` gives as many numbers for each."""
    table = np.array([value(row) for row in rows], dtype=np.float64)
    deviation = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(table.shape[1])
    return Band(table.mean(axis=0), deviation if spread == "deviation" else deviation / np.sqrt(len(table)))


def number(experiment: Experiment, panel: Overlay, key: str) -> float:
    """What the panel says at a dotted key of the run file. Raises BadParameter when that is no number."""
    found: Any = experiment.table(panel, Overlay(label="any"))
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BadParameter("draw.key", key, f"panel {panel.label!r} has no number there")
    return float(found)
