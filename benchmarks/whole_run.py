"""Measures a whole run over real processes: one batch of equal arms, two fleets, CPU and memory of every service."""

import asyncio
import json
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from rich.console import Console

from benchmarks.meter import peak_bytes, process_seconds
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.lab.play.progress import Progress
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.fleet_processes import Fleets
from distrust.lab.services.over_http import HttpRun
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, Stack

FLEETS = 2


@dataclass(frozen=True, slots=True)
class Gauge:
    """Time, CPU and memory of a run.

    seconds  of the slowest fleet, from the moment that it was ready to the end.
    cpu      CPU seconds by service; `fleets`: those of all fleets together, their start included.
    start    peak bytes of each service before the run.
    peak     peak bytes of each service after it.
    fleet    peak bytes of the largest fleet process, at the last look at it.
    """

    clients: int
    seconds: float
    cpu: dict[str, float]
    start: dict[str, int]
    peak: dict[str, int]
    fleet: int


def run_file(mechanism: str, *, batch: int, clients: int) -> RunFile:
    """Return a run of one round with about `clients` clients: a cohort of 2^batch for each of many equal arms."""
    arms = max(2, round(clients / 2**batch))
    delta = ", delta = 1e-6" if MECHANISMS[mechanism].takes_delta == "needed" else ""
    return parse(
        f"""
        run = "benchmark"
        horizon = {arms * 2**batch}
        policy = {{first_batch = {batch}}}
        mechanism = {{name = "{mechanism}", epsilon = 1.0{delta}}}
        environment = {{name = "bernoulli", means = {[0.5] * arms}, seed = 1}}
        fleet = {{processes = {FLEETS}}}
        """
    )


def gauge(file: RunFile) -> Gauge:
    """Play the run on a stack of its own, in a folder of its own, and return its time, CPU and memory."""
    with TemporaryDirectory(prefix="distrust-benchmark-") as place, Stack(DataDir(Path(place) / "data"), 0) as stack:
        start, before, children = _each(stack, peak_bytes), _each(stack, process_seconds), _children()
        watch = _Watch(stack)
        play(file, stack, watch)
        cpu = {name: after - before[name] for name, after in _each(stack, process_seconds).items()}
        cpu["fleets"] = _children() - children
        return Gauge(file.config.horizon, _seconds(stack.data_dir), cpu, start, _each(stack, peak_bytes), watch.fleet)


def play(file: RunFile, stack: Stack, watch: Callable[[], None] = lambda: None) -> None:
    """Play a run to its end on a stack, without a word."""
    fleets = Fleets(file, stack.urls, stack.data_dir.path / "logs", stack.data_dir.memory_file)
    asyncio.run(HttpRun(file, stack.urls, fleets, Progress(Console(file=StringIO())), watch).run())


class _Watch:
    """Reads the fleets' peak memory now and then. `ru_maxrss` would count the memory of the process that forked."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self.fleet = stack, 0

    def __call__(self) -> None:
        self._stack.check()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()
        for pid in set(map(int, children)) - set(_each(self._stack, int).values()):
            with suppress(OSError, StopIteration):  # it ended meanwhile
                self.fleet = max(self.fleet, peak_bytes(pid))


N = TypeVar("N", int, float)


def _each(stack: Stack, look: Callable[[int], N]) -> dict[str, N]:
    services = json.loads(stack.data_dir.stack_file.read_text("utf-8"))["services"]
    return {name: look(services[name]["pid"]) for name in NAMES}


def _children() -> float:
    """Return the CPU seconds of child processes that have ended: the fleets, not yet the services."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds(data_dir: DataDir) -> float:
    """Return the longest of the fleets' own times, each from the last line of its log."""
    logs = list((data_dir.path / "logs").glob("benchmark.fleet-*.log"))
    return max(float(json.loads(log.read_text("utf-8").splitlines()[-1])["seconds"]) for log in logs)
