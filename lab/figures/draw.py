"""Curves with bands of one standard deviation, for each panel or over the panels."""

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from lab.figures.drawing import Drawing, drawing
from lab.figures.rows import Band, Floats, band, number, of, places
from lab.figures.stamp import KEY, stamp
from lab.figures.style import Style, styles
from lab.sweep import Experiment, Overlay, Row

COLUMNS = 3
DPI = 95
SYMBOLS = {"horizon": "pulls T", "mechanism.epsilon": "ε"}
VALUES = {"regret": "regret at T", "bits": "bits of all reports", "payload_bits": "bits of one report"}
OVER_TIME = {"time-average": "regret / pulls", "regret": "regret"}


def draw(experiment: Experiment, rows: Sequence[Row], stem: Path) -> list[Path]:
    """Write `stem`.png, stamped with what it shows, and `stem`.svg.

    The same rows give the same bytes with the same matplotlib.
    """
    drawn = figure(experiment, rows)
    paths = [Path(f"{stem}.{suffix}") for suffix in ("png", "svg")]
    with mpl.rc_context({"svg.hashsalt": experiment.name, "svg.fonttype": "none"}):
        drawn.savefig(paths[0], dpi=DPI, metadata={KEY: stamp(experiment, rows)})
        drawn.savefig(paths[1], metadata={"Date": None})
    return paths


def figure(experiment: Experiment, rows: Sequence[Row]) -> Figure:
    """The figure of an experiment's rows (`matched`), with its note below. Raises BadParameter for a bad `[draw]`."""
    how = drawing(experiment)
    width, height = _size(len(experiment.panels) if how.kind != "by-panel" else 1)
    note = textwrap.fill(_told(experiment, rows), int(width * 15))
    below = 0.1 + 0.16 * (note.count("\n") + 1)
    whole = Figure(figsize=(width, height + below), layout="constrained")
    above, foot = whole.subfigures(2, 1, squeeze=False, height_ratios=(height, below))[:, 0]
    (_by_panel if how.kind == "by-panel" else _over_time)(above, experiment, rows, how)
    above.suptitle(textwrap.fill(experiment.title, int(width * 12)), fontsize=11)
    handles, labels = above.axes[0].get_legend_handles_labels()
    above.legend(handles, labels, loc="outside lower center", ncols=_columns(width, labels), fontsize=9)
    foot.text(0.01, 1.0, note, fontsize=8, color="#444444", va="top")
    return whole


def _size(panels: int) -> tuple[float, float]:
    """Inches: across and down, without the note."""
    if panels == 1:
        return 6.8, 5.0
    across, down = min(COLUMNS, panels), -(-panels // COLUMNS)
    return 1.0 + 3.2 * across, 1.3 + 2.7 * down


def _told(experiment: Experiment, rows: Sequence[Row]) -> str:
    """What is under a figure."""
    least = min(len(of(rows, panel.label, series.label)) for panel, series in experiment.pairs())
    quick = "QUICK VERSION. " if experiment.quick else ""
    return f"{quick}{experiment.source}. Mean and standard deviation, {least} repetitions. {experiment.note}"


def _over_time(above: SubFigure, experiment: Experiment, rows: Sequence[Row], how: Drawing) -> None:
    """Axes for each panel, three in a line."""
    count = len(experiment.panels)
    grid = above.subplots(-(-count // COLUMNS), min(COLUMNS, count), squeeze=False)
    for axes, panel in zip(grid.flat, experiment.panels, strict=False):
        _panel(axes, experiment, rows, how, panel)
    for axes in grid.flat[count:]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(OVER_TIME[how.kind])


def _panel(axes: Axes, experiment: Experiment, rows: Sequence[Row], how: Drawing, panel: Overlay) -> None:
    looks = styles([series.label for series in experiment.series])
    for series in experiment.series:
        mine = of(rows, panel.label, series.label)
        xs = places(mine[0])
        divided = xs if how.kind == "time-average" else np.ones_like(xs)
        values = band(mine, partial(_curve_of, divided=divided))
        _curve(axes, xs, values, looks[series.label], series.label)
    axes.set_title(panel.label, fontsize=10)
    _finish(axes, how)
    if how.x == "linear":
        axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0), useMathText=True)
    axes.set_xlabel("pulls t")


def _by_panel(above: SubFigure, experiment: Experiment, rows: Sequence[Row], how: Drawing) -> None:
    """One pair of axes, the panels along the x axis."""
    axes = above.subplots()
    looks = styles([series.label for series in experiment.series])
    panels = sorted(experiment.panels, key=lambda panel: number(experiment, panel, how.key))
    xs = np.array([number(experiment, panel, how.key) for panel in panels])
    for series in experiment.series:
        each = [
            band(of(rows, panel.label, series.label), lambda row: [float(getattr(row, how.value))]) for panel in panels
        ]
        whole = Band(np.concatenate([one.mean for one in each]), np.concatenate([one.deviation for one in each]))
        ending = f" (∝ {SYMBOLS.get(how.key, how.key)[-1]}^{exponent(xs, whole.mean):.2f})" if how.slope else ""
        _curve(axes, xs, whole, looks[series.label], series.label + ending)
    _finish(axes, how)
    axes.set_xlabel(SYMBOLS.get(how.key, how.key))
    axes.set_ylabel(VALUES[how.value])


def exponent(xs: Floats, ys: Floats) -> float:
    """Slope of the least-squares line through (ln x, ln y)."""
    return float(np.polynomial.polynomial.polyfit(np.log(xs), np.log(ys), 1)[1])


def _curve_of(row: Row, divided: Floats) -> Floats:
    return np.array(row.curve) / divided


def _curve(axes: Axes, xs: Floats, values: Band, style: Style, label: str) -> None:
    axes.fill_between(
        xs, values.mean - values.deviation, values.mean + values.deviation, color=style.colour, alpha=0.13, linewidth=0
    )
    axes.plot(xs, values.mean, label=label, **style.words(len(xs)))


def _finish(axes: Axes, how: Drawing) -> None:
    """Scales, and a floor for what would reach 0 where a scale has none. Zeros alone stay on a linear one."""
    axes.set_xscale(how.x)
    means = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.get_lines()])
    if how.y == "log" and (means > 0).any():
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=float(means[means > 0].min()) / 2)
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="both", alpha=0.2, linewidth=0.6)


def _columns(width: float, labels: list[str]) -> int:
    """Columns of the legend that fit below the axes, evenly filled."""
    fitting = max(1, min(int(width * 12 / (max(map(len, labels)) + 8)), len(labels)))
    return -(-len(labels) // -(-len(labels) // fitting))
