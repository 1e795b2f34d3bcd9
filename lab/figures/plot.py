"""Draws results for a notebook: regret with bands, intervals round by round, bits against regret.

Each function returns the matplotlib axes that it drew on, and draws on axes of the caller's where some are given. Means
and bands, colours and markers are those of the figures (`lab.figures.drawing`, `lab.figures.sheet`).

>>> import distrust
>>> table = {"run": "doc", "horizon": 2_000, "mechanism": {"name": "distributed-polya", "epsilon": 1.0}}
>>> table["environment"] = {"name": "bernoulli", "seed": 4, "means": [0.1, 0.9]}
>>> results = [distrust.run(table | {"run": name}) for name in ("one", "two")]
>>> axes = distrust.plot.regret({"private": results, "the first alone": results[0]})
>>> [text.get_text() for text in axes.get_legend().get_texts()]
['private (2 runs)', 'the first alone']
>>> distrust.plot.intervals(results[0]).get_xlabel()
'round'
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.extras import pyplot
from distrust.lab.figures.drawing import Band, Spread, band_of, repetitions_of
from distrust.lab.figures.faces import COLOURS, MARKERS
from distrust.lab.figures.sheet import LINES, styles
from distrust.lab.play.result import FormedInterval, Result, ends_of_records
from distrust.lab.sweep.cells import checkpoints
from distrust.lab.sweep.engine import SweepOutcome

__all__ = ["bits_against_regret", "intervals", "regret"]

Drawn = Result | Sequence[Result] | Mapping[str, Result | Sequence[Result]] | SweepOutcome
"""Input of a plot: a result or repetitions of it, drawn as one curve; several of these by label; or a sweep."""

POINTS = 200
"""Places at which curves of several results are read, to average them."""

MOST_ARMS = 12
"""Arms that `intervals` shows unless some are chosen: those that stayed longest."""

MOST_SHOWN = len(COLOURS) * len(LINES)
"""Arms that have a look of their own."""

INCHES = (6.4, 4.2)  # width and height of a picture


@dataclass(frozen=True, slots=True)
class Group:
    """Repetitions of one thing. curves: regret at `pulls`, shape (repetitions, places); finals and bits: of each."""

    pulls: Floats
    curves: Floats
    finals: Floats
    bits: Floats


class Mark(NamedTuple):
    """A formed interval with its place on the x axis: its round, or the pulls until its end."""

    place: float
    interval: FormedInterval


def __dir__() -> list[str]:
    """Return the public names, for completion in a notebook."""
    return __all__


def regret(*results: Drawn, spread: Spread = "deviation", axes: Axes | None = None) -> Axes:
    """Draw cumulated regret over pulls, with a band where there are repetitions. Return the axes.

    results  each a result; a list of results, which are repetitions of one thing; a dictionary from a label to either;
             or what `distrust.sweep` returned, with a curve for each panel and series.
    spread   of the band: "deviation" of one repetition, or "error" of their mean.
    """
    groups, drawn = labelled_groups(results), _axes(axes)
    looks = styles(list(groups))
    for label, group in groups.items():
        whole, look = band_of(group.curves, spread), looks[label]
        xs, mean = np.concatenate([[0.0], group.pulls]), np.concatenate([[0.0], whole.mean])
        if len(group.curves) > 1:
            low, high = _edges(whole)
            drawn.fill_between(group.pulls, low, high, color=look.colour, alpha=0.15, linewidth=0)
        drawn.plot(xs, mean, label=f"{label}{_times(group)}", **look.words(len(xs)))
    drawn.set(xlabel="pulls t", ylabel="regret", xlim=(0, None), ylim=(0, None))
    return _finished(drawn)


def bits_against_regret(*results: Drawn, spread: Spread = "deviation", axes: Axes | None = None) -> Axes:
    """Draw the final regret over the bits that one client sends, a point for each result. Return the axes.

    results, spread  as `regret` takes them; repetitions have an error bar.
    """
    groups, drawn = labelled_groups(results), _axes(axes)
    looks = styles(list(groups))
    for label, group in groups.items():
        ends, look = band_of(group.finals[:, np.newaxis], spread), looks[label]
        low, high = _edges(ends)
        drawn.errorbar(
            [float(group.bits.mean())],
            ends.mean,
            yerr=np.stack([ends.mean - low, high - ends.mean]) if len(group.finals) > 1 else None,
            label=f"{label}{_times(group)}",
            color=look.colour,
            marker=look.marker,
            markerfacecolor=look.face,
            markersize=8,
            capsize=3,
            linestyle="none",
        )
    drawn.set(xlabel="bits of one client's message", ylabel="regret at the end", xlim=(0, None), ylim=(0, None))
    return _finished(drawn)


def intervals(
    result: Result, *, arms: Sequence[int] | None = None, by: str = "round", axes: Axes | None = None
) -> Axes:
    """Draw each arm's confidence interval after every round, with a cross where the arm was dropped. Return the axes.

    The first rounds, whose intervals are all wider than the picture, are left out, and the title says so.

    arms    to draw, at most MOST_SHOWN; by default the MOST_ARMS that stayed longest.
    by      the x axis: "round", or "pulls" until the end of the round, on a logarithmic axis.
    Raises  BadParameter for a run that formed no intervals: the arms are the clients' own, or a round is one client.
    """
    if by not in {"round", "pulls"}:
        raise BadParameter("by", by, "must be round or pulls")
    if not isinstance(result, Result):
        raise BadParameter("result", type(result).__name__, "must be the result of one run")
    shown, drawn = _shown(result, arms), _axes(axes)
    places, window = _places(result, by), _window(result, shown)
    latest = [interval for interval in result.formed if interval.arm in shown]
    # An arm's last interval lies in the window, so there is such a round, and each arm has one from there on.
    first = min(mark.round for mark in latest if window[0] <= mark.lower and mark.upper <= window[1])
    for at, arm in enumerate(shown):
        beside = 0.5 * ((at + 0.5) / len(shown) - 0.5)
        marks = [
            Mark(places[mark.round] * 1.25**beside if by == "pulls" else places[mark.round] + beside, mark)
            for mark in latest
            if mark.arm == arm and mark.round >= first
        ]
        _arm(drawn, result, marks, at)
    across = "round" if by == "round" else "pulls of all arms"
    drawn.set(xlabel=across, ylabel="estimate and confidence interval", ylim=window)
    if by == "pulls":
        drawn.set_xscale("log")
    else:
        drawn.xaxis.set_major_locator(MaxNLocator(integer=True))
    some = [f"{len(shown)} of {len(result.arms)} arms"] if len(shown) < len(result.arms) else []
    late = [f"from round {first} on"] if first > 1 else []
    drawn.set_title(", ".join(some + late), fontsize=10)
    return _finished(drawn, ncols=1 + len(shown) // 7)


def _arm(axes: Axes, result: Result, marks: Sequence[Mark], at: int) -> None:
    """Draw the intervals of one arm, and where it fell. Colours come again after a while, with another line."""
    arm, colour = marks[0].interval.arm, COLOURS[at % len(COLOURS)]
    view = next(view for view in result.arms if view.arm == arm)
    left = "active" if view.active else f"out after round {view.eliminated}"
    means = np.array([mark.interval.mean for mark in marks])
    below = means - [mark.interval.lower for mark in marks]
    above = np.array([mark.interval.upper for mark in marks]) - means
    axes.errorbar(
        [mark.place for mark in marks],
        means,
        yerr=np.stack([below, above]),
        label=f"arm {arm}, {'chosen' if arm == result.chosen else left}",
        color=colour,
        marker=MARKERS[at // len(COLOURS)],
        linestyle=LINES[at // len(COLOURS)],
        markersize=3.5,
        capsize=2,
        linewidth=0.8,
        elinewidth=1.2,
    )
    if not view.active:
        axes.plot([marks[-1].place], [means[-1]], marker="X", markersize=9, color=colour, markeredgecolor="white")


def _window(result: Result, shown: Sequence[int]) -> tuple[float, float]:
    """Return the ends of the y axis: around each arm's last interval. The first ones are cut, as they are far wider."""
    last = {interval.arm: interval for interval in result.formed if interval.arm in shown}
    low, high = min(end.lower for end in last.values()), max(end.upper for end in last.values())
    return low - 0.6 * (high - low), high + 0.6 * (high - low)


def _shown(result: Result, arms: Sequence[int] | None) -> list[int]:
    """Return the arms to draw, in their order. Raises BadParameter."""
    seen = Counter(interval.arm for interval in result.formed)
    if not seen:
        why = "formed no intervals of arms: they are the clients' own choice, or each round is one client"
        raise BadParameter("result", result.run, why)
    if arms is None:
        last = {one.arm: one.mean for one in result.formed}
        return sorted(sorted(seen, key=lambda arm: (-seen[arm], -last[arm]))[:MOST_ARMS])
    if not 1 <= len(arms) <= MOST_SHOWN:
        raise BadParameter("arms", list(arms), f"must name 1 to {MOST_SHOWN} arms")
    for arm in arms:
        if arm not in seen:
            raise BadParameter("arms", arm, f"must be one of {', '.join(map(str, sorted(seen)))}")
    return list(arms)


def _places(result: Result, by: str) -> dict[int, float]:
    """Return the x of each round."""
    if by == "round":
        return {record.number: float(record.number) for record in result.rounds}
    ends = zip(result.rounds, ends_of_records(result), strict=True)
    return {one.number: float(pulls) for one, (pulls, _) in ends}


def labelled_groups(results: Sequence[Drawn]) -> dict[str, Group]:
    """Return the repetitions of each thing to draw, by label. Raises BadParameter for none, or two of one label."""
    groups: dict[str, Group] = {}
    for label, group in (one for drawn in results for one in _groups(drawn)):
        if label in groups:
            raise BadParameter("results", label, 'two have this label: give them as {"label": result, …}')
        groups[label] = group
    if not groups:
        raise BadParameter("results", [], "give at least one result")
    return groups


def _groups(drawn: Drawn) -> Iterator[tuple[str, Group]]:
    if isinstance(drawn, SweepOutcome):
        yield from _of_sweep(drawn)
    elif isinstance(drawn, Mapping):
        for label, one in drawn.items():
            yield str(label), _of_results(_listed(one))
    else:
        several = _listed(drawn)
        yield f"{several[0].policy} by {several[0].mechanism}" if several else "", _of_results(several)


def _listed(drawn: object) -> list[Result]:
    """Return one result or several as a list. Raises BadParameter for anything else."""
    several = [drawn] if isinstance(drawn, Result) else drawn
    if not isinstance(several, Sequence) or not all(isinstance(one, Result) for one in several):
        raise BadParameter("results", type(drawn).__name__, "must be a result, a list of results or a sweep's outcome")
    return list(several)


def _of_results(results: Sequence[Result]) -> Group:
    """Return repetitions with curves at common places. Raises BadParameter for none, and for different horizons."""
    horizons = {result.horizon for result in results}
    if len(horizons) != 1:
        raise BadParameter("results", sorted(horizons), "repetitions must be at least one, and have one horizon")
    if len(results) == 1:
        pulls = np.array([pulls for pulls, _ in results[0].regret.curve], dtype=np.float64)
    else:
        pulls = np.linspace(0, horizons.pop(), POINTS + 1)[1:]
    curves = np.array([checkpoints(one.regret.curve, pulls) for one in results])
    finals = np.array([one.regret.final for one in results])
    return Group(pulls, curves, finals, np.array([one.bits.payload for one in results]))


def _of_sweep(outcome: SweepOutcome) -> Iterator[tuple[str, Group]]:
    """Yield each series of each panel; the panel is named where there are several."""
    experiment = outcome.experiment
    for panel, series in experiment.all_pairs():
        rows = repetitions_of(outcome.rows, panel.label, series.label)
        if rows:
            label = series.label if len(experiment.panels) == 1 else f"{series.label}, {panel.label}"
            columns = (np.array([getattr(row, name) for row in rows]) for name in ("curve", "regret", "payload_bits"))
            yield label, Group(experiment.places(rows[0].horizon), *columns)


def _edges(whole: Band) -> tuple[Floats, Floats]:
    """Return the ends of a band, which does not go below 0: regret is never negative."""
    return np.maximum(whole.mean - whole.spread, 0.0), whole.mean + whole.spread


def _times(group: Group) -> str:
    return f" ({len(group.curves)} runs)" if len(group.curves) > 1 else ""


def _axes(axes: Axes | None) -> Axes:
    """Return the caller's axes, or axes of a new figure: pyplot's where a notebook shows it."""
    if axes is not None:
        return axes
    figure: Figure = pyplot.figure(figsize=INCHES, layout="constrained")
    return figure.subplots()


def _finished(axes: Axes, ncols: int = 1) -> Axes:
    axes.grid(visible=True, alpha=0.2, linewidth=0.6)
    axes.legend(fontsize=8, ncols=ncols)
    return axes
