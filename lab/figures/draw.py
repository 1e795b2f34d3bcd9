"""Draws an experiment: curves with bands and points with bars, over time, at T, over the panels, or over the bits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from distrust.common.bandit.error_law import Floats
from distrust.lab.figures.drawing import (
    Band,
    Drawing,
    Spread,
    Value,
    band,
    band_of,
    drawing,
    panel_number,
    repetitions_of,
    stamp,
    uniform_play,
)
from distrust.lab.figures.sheet import Sheet, Style, name_of, save, styles, variant_of
from distrust.lab.sweep.experiment import Experiment, Overlay
from distrust.lab.sweep.row import Row

SYMBOLS = {
    "horizon": "T",
    "mechanism.epsilon": "privacy parameter ε",
    "mechanism.scale": "scaling factor s",
    "returning.contributions": "cohorts that one client takes part in, R",
}
VALUES: dict[Value, str] = {
    "regret": "regret at T",
    "bits": "bits of all reports",
    "payload_bits": "bits of one report",
}
SPREADS: dict[Spread, str] = {"deviation": "standard deviation", "error": "its standard error"}
FEW_DECADES, NARROW = 2.2, 8.0
"""Decades of a y axis below which its ticks are plain numbers, and ratio below which they are evenly spaced."""
LARGEST, SMALLEST = 9.0, 4.0
"""Points: markers of the first and the last name of a trade-off."""
DODGE = 0.16
"""Distance of a variant from its name's place, as a share of a column's width."""
COMPARISON: dict[str, Any] = {"color": "#555555", "linestyle": (0, (1.5, 1.5)), "linewidth": 1.2, "zorder": 3}
"""Look of the lines of what never learns: thin, without a marker, over the curves."""
UNIFORM_LINE: dict[str, Any] = {**COMPARISON, "label": "uniform play", "linestyle": (0, (8, 3)), "linewidth": 1.0}
"""Name and look of the line of uniform play, which is last in the legend."""


def draw(experiment: Experiment, rows: Sequence[Row], stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, both stamped with what they show, and `stem`.svg. Return their paths.

    The same rows give the same bytes with the same matplotlib.
    """
    return save(figure(experiment, rows), stem, experiment.name, stamp(experiment, rows))


def figure(experiment: Experiment, rows: Sequence[Row]) -> Figure:
    """Return the figure of an experiment's rows (`matched`) with its caption. Raises BadParameter."""
    how = drawing(experiment)
    sheet = Sheet(*_size(experiment, how), experiment.title, _caption(experiment, rows, how))
    kinds = {"by-panel": _by_panel, "trade-off": _trade_off}
    kinds.get(how.kind, _over_time)(sheet.above, experiment, rows, how)
    sheet.legend(last=UNIFORM_LINE["label"])
    return sheet.figure


def _size(experiment: Experiment, how: Drawing) -> tuple[float, float]:
    """Return inches, across and down, without the caption."""
    if how.kind == "by-panel" and how.split:
        return 1.0 + 3.2 * min(how.columns, len(_variants(experiment))), 1.3 + 2.7 * _variant_lines(experiment, how)
    if how.kind == "by-panel":
        return (6.8, 5.0) if len(how.values) == 1 else (1.0 + 4.4 * len(how.values), 4.8)
    panels = len(experiment.panels)
    if panels == 1 and not (how.split or how.finals):
        return 6.8, 5.0
    across, down = min(how.columns, panels), _lines(experiment, how)
    legend = 2.6 if how.kind == "trade-off" else 1.3
    return 1.0 + 3.2 * across, legend + 2.7 * down


def _lines(experiment: Experiment, how: Drawing) -> int:
    """Return the number of rows of axes of a figure over time."""
    return (len(_curves(experiment, how)) + _ends(how)) * -(-len(experiment.panels) // how.columns)


def _variant_lines(experiment: Experiment, how: Drawing) -> int:
    """Return the number of rows of axes of a by-panel figure that is split."""
    return (1 + how.bits) * -(-len(_variants(experiment)) // how.columns)


def _curves(experiment: Experiment, how: Drawing) -> list[str | None]:
    """Return the variants that have a row of axes with curves of their own; None stands for all of them together."""
    if how.kind == "finals":
        return []
    return [*_variants(experiment)] if how.split else [None]


def _ends(how: Drawing) -> bool:
    return how.finals or how.kind == "finals"


def _variants(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys(variant_of(series.label) for series in experiment.series))


def _caption(experiment: Experiment, rows: Sequence[Row], how: Drawing) -> str:
    """Return the caption of a figure: source, T where it is one number, spread, repetitions, note."""
    counts = {
        series.label: min(len(repetitions_of(rows, panel.label, series.label)) for panel in experiment.panels)
        for series in experiment.series
    }
    most = max(counts.values())
    fewer = "".join(f" ({count} of {label})" for label, count in counts.items() if count < most)
    quick = "QUICK VERSION. " if experiment.quick else ""
    times = "1 repetition" if most == 1 else f"{most} repetitions"
    horizons = {row.horizon for row in rows}
    same = f" T = {horizons.pop():,} {how.unit}." if len(horizons) == 1 else ""
    return f"{quick}{experiment.source}.{same} Mean and {SPREADS[how.spread]}, {times}{fewer}. {experiment.note}"


def _over_time(above: SubFigure, experiment: Experiment, rows: Sequence[Row], how: Drawing) -> None:
    """Draw axes for each panel, `columns` in a line. Variants and regret at T have lines of their own, where wanted."""
    count, across = len(experiment.panels), min(how.columns, len(experiment.panels))
    grid = above.subplots(_lines(experiment, how), across, squeeze=False)
    over_time = "regret" if how.kind == "regret" else f"regret per {how.unit.removesuffix('s')}"
    at = 0
    for start in range(0, count, how.columns):
        panels = experiment.panels[start : start + how.columns]
        for variant in _curves(experiment, how):
            for axes, panel in zip(grid[at], panels, strict=False):
                _panel(axes, experiment, rows, panel, how=how, variant=variant)
            grid[at, 0].set_ylabel(over_time)
            at += 1
        if _ends(how):
            for axes, panel in zip(grid[at], panels, strict=False):
                _finals(axes, experiment, rows, panel, how)
            grid[at, 0].set_ylabel(VALUES["regret"])
            at += 1
        for axes in grid[at - 1, len(panels) :]:
            axes.remove()


def _panel(
    axes: Axes, experiment: Experiment, rows: Sequence[Row], panel: Overlay, *, how: Drawing, variant: str | None
) -> None:
    """Draw one panel's curves: those of one variant, or all of them for None."""
    looks = styles([series.label for series in experiment.series], how.face)
    labels = [s.label for s in experiment.series if variant is None or variant_of(s.label) == variant]
    uniform = uniform_play(experiment, rows)
    for place, label in enumerate(labels):
        mine = repetitions_of(rows, panel.label, label)
        xs = experiment.places(mine[0].horizon)
        divided = xs if how.kind == "time-average" else np.ones_like(xs)
        look = looks[label]._replace(place=place, among=len(labels))
        _curve(axes, xs, band_of(np.array([row.curve for row in mine]) / divided, how.spread), look, label)
        if uniform and place == 0:  # T is one for all series of a panel
            axes.plot(xs, uniform[panel.label] * xs / xs[-1] / divided, **UNIFORM_LINE)
    for label, regret in how.lines.items():
        axes.plot(xs, regret * xs, label=label, **COMPARISON)
    axes.set_title(panel.label + (f", {variant}" if variant else ""), fontsize=10)
    _finish(axes, how)
    if how.x == "linear":
        axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0), useMathText=True)
    axes.set_xlabel(f"{how.unit} t")


def _finals(axes: Axes, experiment: Experiment, rows: Sequence[Row], panel: Overlay, how: Drawing) -> None:
    """Draw the regret at T: a column for each name, its variants side by side in it."""
    looks = styles([series.label for series in experiment.series], how.face)
    names = list(dict.fromkeys(name_of(label) for label in looks))
    for label, look in looks.items():
        mine = [other for other in looks if name_of(other) == name_of(label)]
        beside = DODGE * (2 * mine.index(label) - (len(mine) - 1))
        ends = band(repetitions_of(rows, panel.label, label), lambda row: [row.regret], how.spread)
        _point(axes, names.index(name_of(label)) + beside, ends, look, label, size=5.0)
    axes.set_yscale("log")
    _name_ticks(axes)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_title(f"{panel.label}, at T", fontsize=10)
    axes.grid(visible=True, axis="y", which="both", alpha=0.2, linewidth=0.6)


def _point(axes: Axes, x: float, ends: Band, look: Style, label: str, *, size: float) -> None:
    """Draw the one mean of `ends`, with its bar; `size` is the marker's, in points."""
    axes.errorbar(
        [x],
        ends.mean,
        yerr=_within(ends),
        label=label,
        color=look.colour,
        marker=look.marker,
        markerfacecolor=look.face,
        markersize=size,
        capsize=2.5,
        linewidth=1.2,
    )


def _trade_off(above: SubFigure, experiment: Experiment, rows: Sequence[Row], how: Drawing) -> None:
    """Draw axes for each panel, `columns` in a line: the regret at T over the bits of one report."""
    panels, across = experiment.panels, min(how.columns, len(experiment.panels))
    grid = above.subplots(_lines(experiment, how), across, squeeze=False, sharex=True, sharey=True)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _bits_and_regret(axes, experiment, rows, panel, how)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(VALUES["regret"])


def _bits_and_regret(axes: Axes, experiment: Experiment, rows: Sequence[Row], panel: Overlay, how: Drawing) -> None:
    """Draw a point for each series of a panel, and a thin line between the variants of a name."""
    looks = styles([series.label for series in experiment.series], how.face)
    names = list(dict.fromkeys(name_of(label) for label in looks))
    sizes = dict(zip(names, np.linspace(LARGEST, SMALLEST, len(names)), strict=True))  # of equal points both show
    ways: dict[str, list[tuple[float, float]]] = {}
    for label, look in looks.items():
        mine = repetitions_of(rows, panel.label, label)
        bits = float(np.mean([row.payload_bits for row in mine]))
        ends = band(mine, lambda row: [row.regret], how.spread)
        ways.setdefault(name_of(label), []).append((bits, float(ends.mean[0])))
        _point(axes, bits, ends, look, label, size=sizes[name_of(label)])
    for name, way in ways.items():
        axes.plot(*zip(*way, strict=True), color=looks[name].colour, linewidth=0.6, zorder=1)
    if uniform := uniform_play(experiment, rows):
        axes.axhline(uniform[panel.label], **UNIFORM_LINE)
    axes.set(xscale=how.x, yscale=how.y)
    for axis, limits, scale in ((axes.xaxis, axes.get_xlim(), how.x), (axes.yaxis, axes.get_ylim(), how.y)):
        if scale == "log":
            _plain_ticks(axis, limits)
    axes.set_title(panel.label, fontsize=10)
    axes.set_xlabel(VALUES["payload_bits"])
    axes.grid(visible=True, which="both", alpha=0.2, linewidth=0.6)


def _within(ends: Band) -> Floats:
    """Return lengths of error bars, shape (2, k): the spread, downwards at most nine tenths of the way to 0."""
    return np.stack([np.minimum(ends.spread, 0.9 * ends.mean), ends.spread])


def _by_panel(above: SubFigure, experiment: Experiment, rows: Sequence[Row], how: Drawing) -> None:
    """Draw axes for each value, with the panels along the x axis."""
    if how.split:
        _by_variant(above, experiment, rows, how)
        return
    looks = styles([series.label for series in experiment.series], how.face)
    panels, xs = _places(experiment, how)
    every = above.subplots(1, len(how.values), squeeze=False)[0]
    for series in experiment.series:
        along = [_along(rows, panels, series, value, how.spread) for value in how.values]
        slopes = ", ".join(f"{_name(how)[-1]}^{exponent(xs, one.mean):.2f}" for one in along) if how.slope else ""
        label = f"{series.label} (∝ {slopes})" if slopes else series.label
        for axes, whole in zip(every, along, strict=True):
            _curve(axes, xs, whole, looks[series.label], label)
    uniform = uniform_play(experiment, rows)
    for axes, value in zip(every, how.values, strict=True):
        if uniform and value == "regret":
            axes.plot(xs, [uniform[panel.label] for panel in panels], **UNIFORM_LINE)
        _finish(axes, how.model_copy(update={"y": "linear"}) if value == "payload_bits" else how)
        _name_panels(axes, xs, how)
        axes.set_ylabel(VALUES[value])


def _places(experiment: Experiment, how: Drawing) -> tuple[list[Overlay], Floats]:
    """Return the panels of a by-panel figure in the order of its x axis, and their places on it."""
    panels = sorted(experiment.panels, key=lambda panel: panel_number(experiment, panel, how.key))
    return panels, np.array([panel_number(experiment, panel, how.key) for panel in panels])


def _name_panels(axes: Axes, xs: Floats, how: Drawing) -> None:
    """Name the x axis of a by-panel figure, and on a logarithmic one each panel's place."""
    if how.x == "log" and how.key != "horizon":
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(_name(how))


def _by_variant(above: SubFigure, experiment: Experiment, rows: Sequence[Row], how: Drawing) -> None:
    """Draw axes for each variant, and below each line of them those of the bits where wanted.

    All axes have one scale of regret. Variants have axes, so that the legend has the names alone.
    """
    variants = _variants(experiment)
    across = min(how.columns, len(variants))
    grid = above.subplots(_variant_lines(experiment, how), across, squeeze=False, sharey=True)
    lines = iter(grid)
    for start in range(0, len(variants), how.columns):
        shown = variants[start : start + how.columns]
        for over_bits in (False, True)[: 1 + how.bits]:
            line = next(lines)
            for axes, variant in zip(line, shown, strict=False):
                _variant(axes, experiment, rows, how, variant=variant, over_bits=over_bits)
            line[0].set_ylabel(VALUES["regret"])
            for axes in line[len(shown) :]:
                axes.remove()
    _name_ticks(grid[0, 0])


def _variant(
    axes: Axes, experiment: Experiment, rows: Sequence[Row], how: Drawing, *, variant: str, over_bits: bool
) -> None:
    """Draw one variant's regrets, a curve for each name: over the panels' numbers, or over the bits of one report."""
    panels, xs = _places(experiment, how)
    looks = styles(list(dict.fromkeys(name_of(series.label) for series in experiment.series)), how.face)
    for series in experiment.series:
        if variant_of(series.label) != variant:
            continue
        name = name_of(series.label)
        regrets = _along(rows, panels, series, "regret", how.spread)
        if over_bits:
            bits = _along(rows, panels, series, "payload_bits", how.spread).mean
            axes.plot(bits, regrets.mean, label=name, **looks[name].words(len(bits)))
        else:
            _curve(axes, xs, regrets, looks[name], name)
    axes.set(title=variant, xscale=how.x, yscale=how.y)
    if over_bits:
        axes.set_xlabel(VALUES["payload_bits"])
        if how.x == "log":
            _plain_ticks(axes.xaxis, axes.get_xlim())
    else:
        if uniform := uniform_play(experiment, rows):
            axes.plot(xs, [uniform[panel.label] for panel in panels], **UNIFORM_LINE)
        _name_panels(axes, xs, how)
    axes.grid(visible=True, which="both", alpha=0.2, linewidth=0.6)


def _name(how: Drawing) -> str:
    """Return the label of the x axis of a by-panel figure."""
    symbol = SYMBOLS.get(how.key, how.key)
    return f"{how.unit} {symbol}" if how.key == "horizon" else symbol


def _along(rows: Sequence[Row], panels: Sequence[Overlay], series: Overlay, value: Value, spread: Spread) -> Band:
    """Return means and spreads of one series, panel by panel."""

    def of_row(row: Row) -> list[float]:
        return [float(getattr(row, value))]

    each = [band(repetitions_of(rows, panel.label, series.label), of_row, spread) for panel in panels]
    return Band(np.concatenate([one.mean for one in each]), np.concatenate([one.spread for one in each]))


def exponent(xs: Floats, ys: Floats) -> float:
    """Return the slope of the least-squares line through (ln x, ln y)."""
    return float(np.polynomial.polynomial.polyfit(np.log(xs), np.log(ys), 1)[1])


def _curve(axes: Axes, xs: Floats, values: Band, style: Style, label: str) -> None:
    low, high = values.mean - values.spread, values.mean + values.spread
    axes.fill_between(xs, low, high, color=style.colour, alpha=0.13, linewidth=0)
    axes.plot(xs, values.mean, label=label, **style.words(len(xs)))


def _finish(axes: Axes, how: Drawing) -> None:
    """Set the scales. A logarithmic y axis ends below the least positive mean; zeros alone get a linear one."""
    axes.set_xscale(how.x)
    means = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.get_lines()])
    if how.y == "log" and (means > 0).any():
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=float(means[means > 0].min()) / 2)
        _name_ticks(axes)
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="both", alpha=0.2, linewidth=0.6)


def _name_ticks(axes: Axes) -> None:
    """Put plain numbers on a logarithmic y axis of few decades."""
    _plain_ticks(axes.yaxis, axes.get_ylim())


def _plain_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Put plain numbers on a logarithmic axis of few decades: at 1, 2 and 5 of each, or evenly on less than one."""
    low, high = limits
    if high < low * 10**FEW_DECADES:
        locator = LogLocator(subs=(1, 2, 5)) if high > NARROW * low else MaxNLocator(5, steps=[1, 2, 5, 10])
        axis.set_major_locator(locator)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
