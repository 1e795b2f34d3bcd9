"""Prints a sweep: its progress on stderr, and at the end regret and confidence as tables."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from distrust.common.extras import stats
from distrust.lab.play.progress import LINE_SECONDS
from distrust.lab.sweep.cells import Standing
from distrust.lab.sweep.row import Row

WIDE = 160
"""Characters that the tables may be wide; a narrower terminal wraps their lines."""

LEVEL = 0.99
"""Level of the Clopper-Pearson intervals: a policy that keeps its p is called broken in at most 1 of 200 cases."""


REGRET_HEAD = ("panel", "series", "final regret", "±", "runs", "bits a client")
CONFIDENCE_HEAD = ("series", "best arm dropped", "a width failed", "p", "holds", "widths missed")
"""A width is an arm's interval for its mean, or the ellipsoid of a contextual decision for θ*."""
SHARES_CAPTION = f"shares of runs, [{LEVEL:.0%} Clopper-Pearson]; p: probability that any width fails, as stated"


class SweepProgress:
    """A `watch` for a sweep: shows cells done, cells a second since this start, time left.

    A bar on a terminal, a line every few seconds elsewhere.
    """

    def __init__(self, err: Console, title: str) -> None:
        self._err, self._title = err, title
        self._began = self._next = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._err.is_terminal:
            columns = (BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            self._bar = Progress(TextColumn("{task.description}"), *columns, console=self._err)
            self._task = self._bar.add_task(self._title, total=None, rate="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, standing: Standing) -> None:
        """Show the sweep's progress."""
        rate = standing.played / max(time.monotonic() - self._began, 1e-9)
        if self._bar is not None:
            self._move(self._bar, standing, rate)
        elif time.monotonic() >= self._next or not standing.left:
            self._next = time.monotonic() + LINE_SECONDS
            self._err.print(f"{self._title}: {progress_line(standing, rate)}", markup=False)

    def _move(self, bar: Progress, standing: Standing, rate: float) -> None:
        """Move the bar. It starts at the cells from earlier starts, which say nothing about the speed."""
        if not standing.played:
            bar.reset(self._task, total=standing.total, completed=standing.kept)
            return
        ended = standing.total - standing.left
        bar.update(self._task, total=standing.total, completed=ended, rate=f"{rate:.3g} cells/s")


def progress_line(standing: Standing, rate: float) -> str:
    """Return the progress: `120 of 400 cells (80 from before), 12.3 cells/s, about 23 s left`."""
    before = f" ({standing.kept} from before)" if standing.kept else ""
    failed = f", {standing.failed} failed" if standing.failed else ""
    going = f", {rate:.3g} cells/s" if standing.played else ""
    left = f", about {standing.left / rate:.0f} s left" if standing.played and standing.left else ""
    return f"{standing.done} of {standing.total} cells{before}{failed}{going}{left}"


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `runs`, and the Clopper-Pearson interval of their probability."""

    hits: int
    runs: int
    low: float
    high: float

    def text(self) -> str:
        """Return the share and its interval: `1/30 [0.000, 0.085]`."""
        return f"{self.hits}/{self.runs} [{self.low:.3f}, {self.high:.3f}]"


def share(hits: int, runs: int) -> Share:
    """Return the share and its exact two-sided interval at LEVEL."""
    interval = stats.binomtest(hits, runs).proportion_ci(confidence_level=LEVEL, method="exact")
    return Share(hits, runs, float(interval.low), float(interval.high))


@dataclass(frozen=True, slots=True)
class Confidence:
    """Failures of the policy of a series over all its panels, whose runs are independent given the worlds.

    dropped     runs in which the best arm was dropped; None for contextual runs, whose clients have best arms of their
                own.
    failed      runs in which any interval missed the true mean, or any decision's ellipsoid θ*.
    widths      intervals or ellipsoids formed in all.
    missed      those of them that miss.
    indefinite  batches that left the matrix of a contextual policy indefinite.
    stated      the largest probability of `failed` that the policy states for one of the runs; None: it states none.
    """

    series: str
    dropped: Share | None
    failed: Share
    widths: int
    missed: int
    indefinite: int
    stated: float | None

    @property
    def holds(self) -> str:
        """Return `yes` if the whole interval is at most p, `no` if it is above, else `not refuted`: too few runs."""
        if self.stated is None:
            return "nothing stated"
        if self.failed.low > self.stated:
            return "no"
        return "yes" if self.failed.high <= self.stated else "not refuted"

    def cells(self) -> tuple[str, ...]:
        """Return the line under `CONFIDENCE_HEAD`. Cells are empty for what the runs do not have."""
        dropped = "" if self.dropped is None else self.dropped.text()
        stated = "" if self.stated is None else f"{self.stated:.3g}"
        failed = self.failed.text() if self.widths else ""
        missed = f"{self.missed:,} of {self.widths:,}" if self.widths else "no widths"
        return (self.series, dropped, failed, stated, self.holds, missed)


def confidence(rows: Sequence[Row]) -> list[Confidence]:
    """Return the confidence of each series, in the order of the rows."""
    names = dict.fromkeys(row.series for row in rows)
    return [_confidence(name, [row for row in rows if row.series == name]) for name in names]


def _confidence(series: str, rows: Sequence[Row]) -> Confidence:
    stated, one_best = [row.failure for row in rows], all(row.best is not None for row in rows)
    return Confidence(
        series=series,
        dropped=share(sum(row.best_dropped for row in rows), len(rows)) if one_best else None,
        failed=share(sum(row.width_failures > 0 for row in rows), len(rows)),
        widths=sum(row.widths for row in rows),
        missed=sum(row.width_failures for row in rows),
        indefinite=sum(row.indefinite or 0 for row in rows),
        stated=None if None in stated else max(one for one in stated if one is not None),
    )


@dataclass(frozen=True, slots=True)
class RegretSummary:
    """Final regret of one series in one panel: mean and standard deviation over so many runs.

    deviation  None for a single run.
    bits       of one client's report, and seconds of a run: means over the runs.
    """

    panel: str
    series: str
    regret: float
    deviation: float | None
    runs: int
    bits: float
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """Return all but the seconds as text."""
        spread = "" if self.deviation is None else f"{self.deviation:,.1f}"
        return (self.panel, self.series, f"{self.regret:,.1f}", spread, str(self.runs), f"{self.bits:,.1f}")


def regret_summaries(rows: Sequence[Row]) -> list[RegretSummary]:
    """Return the final regret of every panel and series, in the order of the rows."""
    return [
        _regret(panel, series, list(group))
        for (panel, series), group in groupby(rows, key=lambda row: (row.panel, row.series))
    ]


def _regret(panel: str, series: str, rows: Sequence[Row]) -> RegretSummary:
    final = [row.regret for row in rows]
    return RegretSummary(
        panel=panel,
        series=series,
        regret=statistics.fmean(final),
        deviation=statistics.stdev(final) if len(final) > 1 else None,
        runs=len(rows),
        bits=statistics.fmean(row.payload_bits for row in rows),
        seconds=statistics.fmean(row.seconds for row in rows),
    )


def regret_table(rows: Sequence[Row]) -> Table:
    """Return a table of the final regret, mean ± standard deviation over repetitions, and the time of one run."""
    table = Table(*REGRET_HEAD[:2], box=None, padding=(0, 2, 0, 0))
    for head in (*REGRET_HEAD[2:], "seconds a run"):
        table.add_column(head, justify="right")
    for summary in regret_summaries(rows):
        table.add_row(*summary.cells(), f"{summary.seconds:.3g}")
    return _whole(table)


def confidence_table(rows: Sequence[Row]) -> Table:
    """Return a table of failure events by series, beside the probability that the policy states."""
    series = confidence(rows)
    shifted = ["indefinite batches"] if any(one.indefinite for one in series) else []
    table = Table(box=None, padding=(0, 2, 0, 0), caption=SHARES_CAPTION, caption_justify="left")
    for head in (*CONFIDENCE_HEAD, *shifted):
        table.add_column(head, no_wrap=True)
    for one in series:
        table.add_row(*(Text(cell) for cell in (*one.cells(), *(f"{one.indefinite:,}" for _ in shifted))))
    return _whole(table)


def _whole(table: Table) -> Table:
    """Return the table, as wide as its content wherever it is printed."""
    wide = Console(width=WIDE)
    table.width = Measurement.get(wide, wide.options, table).maximum
    return table
