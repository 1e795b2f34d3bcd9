"""Live progress of a run: a small moving table on a terminal, a line now and then anywhere else. Always on stderr."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.messages.progress import CohortView, RoundReport, RunView

MOST_COHORTS = 16  # lines of the moving table
LINE_SECONDS = 3.0  # between two plain lines


class Progress:
    """Shows what the server knows of a run, and the stages that S is at. Nothing shown here is private."""

    def __init__(self, err: Console) -> None:
        self._err, self._live = err, None if not err.is_terminal else Live(console=err, refresh_per_second=4)
        self._said, self._next = "", 0.0

    @contextmanager
    def shown(self) -> Iterator["Progress"]:
        """The moving table lives as long as this block."""
        if self._live is None:
            yield self
            return
        with self._live:
            yield self

    def show(self, run: RunView, report: RoundReport, stages: dict[str, str]) -> None:
        """One look at the run. `stages`: where S is, for each open cohort."""
        if self._live is not None:
            self._live.update(_picture(run, report, stages))
            return
        line = _line(run, report, stages)
        if line != self._said and time.monotonic() >= self._next:
            self._said, self._next = line, time.monotonic() + LINE_SECONDS
            self._err.print(line, markup=False)


def _line(run: RunView, report: RoundReport, stages: dict[str, str]) -> str:
    done = sum(cohort.state == "released" for cohort in report.cohorts)
    said = ", ".join(f"{count} in {stage}" for stage, count in _counted(stages).items())
    left = sum(arm.active for arm in run.snapshot.arms)
    return (
        f"round {report.number} (2^{report.batch} clients an arm): {done} of {len(report.cohorts)} cohorts released"
        f"{', ' + said if said else ''}; {run.clients:,} of {run.snapshot.horizon:,} clients, {left} arms left"
    )


def _counted(stages: dict[str, str]) -> dict[str, int]:
    values = list(stages.values())
    return {stage: values.count(stage) for stage in dict.fromkeys(values)}


def _picture(run: RunView, report: RoundReport, stages: dict[str, str]) -> RenderableType:
    left = sum(arm.active for arm in run.snapshot.arms)
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(f"{run.run}: round {report.number}", style="bold"),
        f"{run.clients:,} of {run.snapshot.horizon:,} clients",
        ProgressBar(total=run.snapshot.horizon, completed=run.clients, width=30),
        f"{left} of {len(run.snapshot.arms)} arms left",
        f"{run.cohorts_released} cohorts released, {run.cohorts_aborted} aborted",
    )
    cohorts = Table("cohort", "arm", "clients", "stage", box=None, padding=(0, 2))
    for cohort in report.cohorts[-MOST_COHORTS:]:
        cohorts.add_row(cohort.cohort, str(cohort.arm), _clients(cohort), stages.get(cohort.cohort, cohort.state))
    return Group(head, cohorts)


def _clients(cohort: CohortView) -> str:
    if cohort.survivors is not None:
        return f"{cohort.survivors:,} of {cohort.clients:,} in the sum"
    return f"{cohort.granted:,} of {cohort.clients:,} came"
