"""Shows a run's progress on stderr: a moving table on a terminal, else a line every few seconds; prints its result."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import Progress as Columns
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distrust.common.protocol.messages.status import CohortEntry, CohortView
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.progress import ARMS_HEAD, RoundReport, arm_lines
from distrust.lab.play.result import Result, arms_known, facts

MOST_COHORTS = 16  # lines of the moving table
LINE_SECONDS = 3.0  # between two plain lines

Standings = Mapping[str, CohortEntry]
"""State of the cohorts that are open at an intermediary, by name."""


def print_result(result: Result, out: Console) -> None:
    """Print the arms with their intervals, then the facts of the run, one a line, and its speed.

    A run whose arms the clients alone know has no table of arms.
    """
    table = Table(*ARMS_HEAD[:4], "", title=f"run {result.run}", title_justify="left")
    for column in table.columns[:4]:
        column.justify = "right"
    for line in arm_lines(result.arms, result.chosen):
        table.add_row(*(Text(cell) for cell in line))
    out.print(table if arms_known(result) else table.title)
    named = facts(result)
    if result.seconds is not None:
        named.append(("speed", f"{result.clients_per_second:,.0f} clients per second, {result.seconds:.1f} s in all"))
    for name, fact in named:
        out.print(f"{name:<10}  {fact}", markup=False)


@contextmanager
def working(what: str, err: Console) -> Iterator[None]:
    """Show on a terminal that `what` is being computed, and for how long, until the block ends."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Columns(*columns, console=err, transient=True, disable=not err.is_terminal) as spinner:
        spinner.add_task(f"computing {what}", total=None)
        yield


class Progress:
    """Shows a run as the server knows it, and the stages of open cohorts. All of it is public."""

    def __init__(self, err: Console) -> None:
        self._err, self._live = err, None if not err.is_terminal else Live(console=err, refresh_per_second=4)
        self._line, self._next = "", 0.0

    @contextmanager
    def running(self) -> Iterator["Progress"]:
        """Keep the moving table on the terminal until the block ends."""
        if self._live is None:
            yield self
            return
        with self._live:
            yield self

    def show(self, run: RunView, report: RoundReport, standings: Standings) -> None:
        """Show the run's present state."""
        if self._live is not None:
            self._live.update(_picture(run, report, standings))
            return
        line = _line(run, report, standings)
        if line != self._line and time.monotonic() >= self._next:
            self._line, self._next = line, time.monotonic() + LINE_SECONDS
            self._err.print(line, markup=False)


def _line(run: RunView, report: RoundReport, standings: Standings) -> str:
    done = sum(cohort.state == "released" for cohort in report.cohorts)
    open_here = [standings[cohort.cohort] for cohort in report.cohorts if cohort.cohort in standings]
    stages = "".join(f", {_stage(stage, open_here)}" for stage in dict.fromkeys(entry.stage for entry in open_here))
    return (
        f"round {report.number} ({_sizes(report)} clients a cohort): "
        f"{done} of {len(report.cohorts)} cohorts released{stages}; {_used(run, report)}, {_left(run)}"
    )


def _sizes(report: RoundReport) -> str:
    """Return the clients of a cohort: `64`, or `2 to 64` where a design gives its actions different cohorts."""
    sizes = [cohort.clients for cohort in report.cohorts]
    return " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)}))


def _stage(stage: str, open_here: list[CohortEntry]) -> str:
    """Return the cohorts in one stage: `3 in shares (512 of 3,072 clients done)`."""
    there = [entry for entry in open_here if entry.stage == stage]
    done, clients = sum(entry.answered or 0 for entry in there), sum(entry.clients for entry in there)
    return f"{len(there)} in {stage} ({done:,} of {clients:,} clients done)"


def _picture(run: RunView, report: RoundReport, standings: Standings) -> RenderableType:
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(total=run.snapshot.horizon, completed=_pulls(run, report), width=30), _used(run, report))
    cohorts = Table("cohort", "arm", "stage", "clients done", box=None, padding=(0, 2))
    for cohort in report.cohorts[-MOST_COHORTS:]:
        standing = standings.get(cohort.cohort)
        stage = standing.stage if standing else cohort.state
        cohorts.add_row(cohort.cohort, str(cohort.arm), stage, _done(cohort, standing))
    head = f"round {report.number}, {_left(run)}; {_cohorts(run)}"
    return Group(Text(head, style="bold"), bar, cohorts)


def _used(run: RunView, report: RoundReport) -> str:
    """Return the pulls of the horizon that are used, and the clients: a client may make several pulls."""
    return f"{_pulls(run, report):,} of {run.snapshot.horizon:,} pulls, {run.clients:,} clients"


def _pulls(run: RunView, report: RoundReport) -> int:
    """Return the planned pulls whose clients have a ticket."""
    planned = [
        sum(count for _, count in report.decision.pulls(cohort.arm, cohort.clients)) for cohort in report.cohorts
    ]
    to_come = [1 - cohort.granted / cohort.clients for cohort in report.cohorts]
    return run.snapshot.pulls - round(sum(pulls * share for pulls, share in zip(planned, to_come, strict=True)))


def _left(run: RunView) -> str:
    arms = run.snapshot.arms
    return f"{sum(arm.active for arm in arms)} of {len(arms)} arms left"


def _cohorts(run: RunView) -> str:
    return f"cohorts: {run.cohorts_released} released, {run.cohorts_aborted} aborted"


def _done(cohort: CohortView, standing: CohortEntry | None) -> str:
    """Return a released cohort's survivors; an open cohort's clients that answered the stage, or have a ticket."""
    if cohort.survivors is not None:
        return f"{cohort.survivors:,} of {cohort.clients:,} in the sum"
    if standing is not None and standing.answered is not None:
        return f"{standing.answered:,} of {cohort.clients:,}"
    return f"{cohort.granted:,} of {cohort.clients:,} came" if cohort.granted else ""
