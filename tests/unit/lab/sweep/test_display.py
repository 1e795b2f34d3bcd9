"""Tests that a sweep shows its progress as a bar on a terminal, and as plain lines elsewhere."""

import io

from rich.console import Console

from distrust.lab.sweep.cells import Standing
from distrust.lab.sweep.display import SweepProgress, progress_line


def test_a_line_says_cells_speed_and_time_left() -> None:
    assert (
        progress_line(Standing(400, 80, 120), 10.0) == "120 of 400 cells (80 from before), 10 cells/s, about 28 s left"
    )
    assert progress_line(Standing(400, 0, 398, 2), 10.0) == "398 of 400 cells, 2 failed, 10 cells/s"
    assert progress_line(Standing(400, 400, 400), 0.0) == "400 of 400 cells (400 from before)"


def test_without_a_terminal_there_are_plain_lines_and_the_end_is_always_one() -> None:
    text = io.StringIO()
    with SweepProgress(Console(file=text), "small") as progress:
        for done in range(101):
            progress(Standing(100, 0, done))
    lines = text.getvalue().splitlines()
    assert lines[0] == "small: 0 of 100 cells"
    assert lines[-1].startswith("small: 100 of 100 cells, ")
    assert len(lines) <= 3


def test_on_a_terminal_there_is_a_bar() -> None:
    text = io.StringIO()
    with SweepProgress(Console(file=text, force_terminal=True, width=100), "small") as progress:
        for done in range(4, 11):
            progress(Standing(10, 4, done))
    shown = text.getvalue()
    assert "10/10" in shown
    assert "cells/s" in shown
