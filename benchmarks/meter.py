"""Meters CPU and memory of other processes for the benchmarks, and has their options, JSON and tables."""

import argparse
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_CPU_OF_PROCESS = 2  # CPUCLOCK_SCHED: all threads, dead ones too, in nanoseconds


def process_seconds(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used so far. Linux only."""
    return time.clock_gettime(~pid << 3 | _CPU_OF_PROCESS)


def peak_bytes(pid: int) -> int:
    """Return the most bytes of memory that a process has held at once (VmHWM). Linux only."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one JSON object too")
    return parser


def deliver(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print one table."""
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console().print(table)


def write(path: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures and the machine as one JSON object, if there is a path."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n", "utf-8")


def machine() -> dict[str, str | int | list[float]]:
    """Return the machine's CPU, its cores, and its load over the last 1, 5 and 15 minutes.

    A load above 0 may be that of other work, which makes the figures worse.
    """
    model = [line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if line.startswith("model name")]
    return {
        "cpu": model[0].partition(":")[2].strip() if model else "unknown",
        "cores": os.cpu_count() or 0,
        "load": [round(value, 2) for value in os.getloadavg()],
    }
