"""How far a sweep is: a bar on a terminal, a line now and then anywhere else. Always on stderr."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from distrust.lab.sweep.engine import Standing

LINE_SECONDS = 3.0  # between two plain lines


class SweepProgress:
    """A `watch` for a sweep: cells done, cells a second of this start, time left."""

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
        """Show where the sweep is."""
        rate = standing.played / max(time.monotonic() - self._began, 1e-9)
        if self._bar is not None:
            self._move(self._bar, standing, rate)
        elif time.monotonic() >= self._next or not standing.left:
            self._next = time.monotonic() + LINE_SECONDS
            self._err.print(f"{self._title}: {line(standing, rate)}", markup=False)

    def _move(self, bar: Progress, standing: Standing, rate: float) -> None:
        """The bar starts with what is there from before, which says nothing about the speed."""
        if not standing.played:
            bar.reset(self._task, total=standing.total, completed=standing.kept)
            return
        ended = standing.total - standing.left
        bar.update(self._task, total=standing.total, completed=ended, rate=f"{rate:.3g} cells/s")


def line(standing: Standing, rate: float) -> str:
    """`120 of 400 cells (80 from before), 12.3 cells/s, about 23 s left`."""
    before = f" ({standing.kept} from before)" if standing.kept else ""
    failed = f", {standing.failed} failed" if standing.failed else ""
    going = f", {rate:.3g} cells/s" if standing.played else ""
    left = f", about {standing.left / rate:.0f} s left" if standing.played and standing.left else ""
    return f"{standing.done} of {standing.total} cells{before}{failed}{going}{left}"
