"""Describes a figure: the `[draw]` table of its experiment, the rows that it is drawn from, and their digest."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from distrust.client.environments import read_spec
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.explain import first
from distrust.common.wire import Message
from distrust.lab.figures.faces import FACES
from distrust.lab.sweep.cells import cell_digest
from distrust.lab.sweep.experiment import Experiment, Overlay
from distrust.lab.sweep.row import Cell, Row

Spread = Literal["deviation", "error"]
AxisScale = Literal["linear", "log"]
Value = Literal["regret", "bits", "payload_bits"]

STAMPED_DIGITS = 9
"""Digits of a computed number that a stamp has."""


class Drawing(Message):
    """Content of a figure, and its axes.

    kind    time-average: regret(t)/t over t, axes for each panel. regret: the same without the division.
            finals: the regret at T alone, axes for each panel, a column for each algorithm.
            by-panel: one number a run over what tells the panels apart, on axes for all of them.
            trade-off: the regret at T over the bits of one report, axes for each panel, a point for each series, and a
            thin line between the variants of one algorithm.
    x, y    scales of the axes.
    unit    what t and T count: pulls of an arm, or rounds.
    spread  of bands and bars: the standard deviation of one repetition, or the standard error of the mean.
    split   over time: a row of axes for each variant of the series, so that few lines share one pair of axes.
            by-panel: axes for each variant, of the regret alone, with a curve for each name.
    bits    by-panel with split: below them the same regrets over the bits of one report, a line from panel to panel.
    finals  over time: a last row of axes with the regret at T, each series in a column of its own.
    columns panels side by side, at most.
    lines   regret: thin straight lines by label, through 0: the regret a round of what never learns.
    key     by-panel: the run file's key, dotted, whose number is a panel's place on the x axis.
    value   by-panel: the column of a row, or several: axes for each. The bits of one report have a linear y axis.
    slope   by-panel: the least-squares exponents of each series' means, in the legend; for two log axes.
    face    the algorithm that all series are settings of, where no label begins with one: colours are then its own, or
            those of variants that are algorithms, and the names before the commas pick markers.
    uniform a thin line at the regret of uniform play (`uniform_play`). Not on the axes of the regret at T alone: they
            show differences, which it lies far above.
    """

    kind: Literal["time-average", "regret", "finals", "by-panel", "trade-off"]
    x: AxisScale = "linear"
    y: AxisScale = "log"
    unit: Literal["pulls", "rounds"] = "pulls"
    spread: Spread = "deviation"
    split: bool = False
    bits: bool = False
    finals: bool = False
    columns: Literal[2, 3] = 3
    lines: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    key: str = "mechanism.epsilon"
    value: Value | list[Value] = "regret"
    slope: bool = False
    face: str | None = None
    uniform: bool = False

    @property
    def values(self) -> list[Value]:
        """Return the columns of a by-panel figure, in the order of its axes."""
        return self.value if isinstance(self.value, list) else [self.value]


def drawing(experiment: Experiment) -> Drawing:
    """Return the experiment's drawing.

    Raises BadParameter for a table that is none, no value, or a panel that has no place on the axis.
    """
    try:
        how = Drawing.model_validate(experiment.draw)
    except ValidationError as error:
        raise BadParameter("draw", experiment.draw, first(error, Drawing)) from error
    if not how.values or len(set(how.values)) < len(how.values):
        raise BadParameter("draw.value", how.value, "must be one of the columns, or a list of different ones")
    if how.face is not None and how.face not in FACES:
        raise BadParameter("draw.face", how.face, f"must be one of {', '.join(FACES)}")
    if how.uniform and (how.kind == "finals" or "regret" not in how.values):
        raise BadParameter("draw.uniform", True, "needs axes of regret over time, panels or bits")
    if how.lines and how.kind != "regret":
        raise BadParameter("draw.lines", how.lines, 'goes with kind = "regret"')
    if how.bits and not (how.kind == "by-panel" and how.split):
        raise BadParameter("draw.bits", True, "needs kind = 'by-panel' and split")
    if how.kind == "by-panel" and how.split and how.values != ["regret"]:
        raise BadParameter("draw.value", how.value, "must be 'regret' where a by-panel figure is split")
    if how.kind == "by-panel":
        for panel in experiment.panels:
            panel_number(experiment, panel, how.key)
    return how


class Band(NamedTuple):
    """Mean over n repetitions at each place, and how far it spreads; 0 for one repetition.

    spread  deviation: the standard deviation of one repetition (n - 1). error: that divided by √n, of the mean.
    """

    mean: Floats
    spread: Floats


def matched(experiment: Experiment, rows: Sequence[Row]) -> list[Row]:
    """Return the experiment's rows. Raises BadParameter for rows of another one, or where a pair has none.

    A row is of another experiment by its name, or by the digest of its cell's run file when it was played. Rows of
    panels and series that the experiment does not name are left out.
    """
    pairs = [(panel.label, series.label) for panel, series in experiment.all_pairs()]
    kept = [row for row in rows if row.experiment == experiment.name and (row.panel, row.series) in pairs]
    for row in kept:
        if row.digest != cell_digest(experiment, Cell(row.panel, row.series, row.repetition)):
            where = f"panel {row.panel!r}, series {row.series!r}, repetition {row.repetition}"
            raise BadParameter("results", row.digest, f"{where}: a row of another run file; --quick is another one")
    for panel, series in pairs:
        if not repetitions_of(kept, panel, series):
            raise BadParameter("results", 0, f"rows are missing: panel {panel!r}, series {series!r}")
    return kept


def repetitions_of(rows: Sequence[Row], panel: str, series: str) -> list[Row]:
    """Return a pair's repetitions."""
    return [row for row in rows if (row.panel, row.series) == (panel, series)]


def band(rows: Sequence[Row], value: Callable[[Row], Sequence[float] | Floats], spread: Spread = "deviation") -> Band:
    """Return mean and spread over the repetitions of one pair; `value` gives as many numbers for each."""
    return band_of(np.array([value(row) for row in rows], dtype=np.float64), spread)


def band_of(table: Floats, spread: Spread) -> Band:
    """Return mean and spread over the repetitions, one a row of `table`, shape (n, places)."""
    deviation = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(table.shape[1])
    return Band(table.mean(axis=0), deviation if spread == "deviation" else deviation / np.sqrt(len(table)))


def panel_number(experiment: Experiment, panel: Overlay, key: str) -> float:
    """Return the number that a panel has at a dotted key of the run file. Raises BadParameter when there is none."""
    value: Any = experiment.table(panel, Overlay(label="any"))
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadParameter("draw.key", key, f"panel {panel.label!r} has no number there")
    return float(value)


def uniform_play(experiment: Experiment, rows: Sequence[Row]) -> dict[str, float]:
    """Return the expected regret at T if arms are drawn uniformly, by panel; empty for a figure without the line.

    It is a mean over the worlds of the panel's rows. Raises BadParameter where its series play different ones.
    """
    if not drawing(experiment).uniform:
        return {}
    result = {}
    for panel in experiment.panels:
        first, *others = (_world(experiment, panel, series) for series in experiment.series)
        if any(other != first for other in others):
            raise BadParameter("draw.uniform", True, f"the series of panel {panel.label!r} differ in their world or T")
        environment, horizon = first
        seeds = sorted({row.seed for row in rows if row.panel == panel.label})
        each = [_uniform_regret(json.dumps({**environment, "seed": seed})) for seed in seeds]
        result[panel.label] = horizon * float(np.mean(each))
    return result


def _world(experiment: Experiment, panel: Overlay, series: Overlay) -> tuple[dict[str, Any], int]:
    """Return the `[environment]` table of a pair, which has no seed yet, and its T."""
    table = experiment.table(panel, series)
    return table["environment"], table["horizon"]


@cache
def _uniform_regret(environment: str) -> float:
    """Return the regret of a pull of uniform play in the world of an `[environment]` table, which is given as JSON."""
    return read_spec(json.loads(environment)).uniform_regret()


def stamp(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return the digest of experiment, words, drawing, lasting columns of the rows and uniform play, as 64 hex digits.

    Uniform play counts with STAMPED_DIGITS digits: linear algebra on another processor changes the last ones.
    """
    lines = {panel: f"{regret:.{STAMPED_DIGITS}g}" for panel, regret in uniform_play(experiment, rows).items()}
    shown = [experiment.model_dump(), [row.lasting() for row in rows], *([lines] if lines else [])]
    return json_digest(shown)


def json_digest(value: object) -> str:
    """Return the SHA-256 of anything that JSON can hold, as 64 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
