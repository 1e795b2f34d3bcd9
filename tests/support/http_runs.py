"""Runs over real processes, for the system tests."""

import asyncio
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from distrust.common.dp.mechanisms import MECHANISMS as KINDS
from distrust.common.dp.mechanisms import MechanismName
from distrust.common.wire import Via
from distrust.lab.play.progress import Progress
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.fleet_processes import Fleets
from distrust.lab.services.over_http import HttpRun
from distrust.lab.stack.stack import Stack


def _words(name: MechanismName, intermediary: Via, more: str = "") -> str:
    """Return the lines of a run file's table of a mechanism."""
    noisy = name.startswith(("local", "shuffled-gaussian", "shuffled-laplace", "shuffled-sphere", "tree", "prefix"))
    lines = [f'name = "{name}"', f'via = "{intermediary}"', more]
    lines += [f"epsilon = {16.0 if noisy else 2.0}"] if name != "identity" else []
    lines += ["delta = 1e-5"] if KINDS[name].takes_delta else []
    lines += ["batches = 64"] if KINDS[name].takes_batches else []
    return "\n".join(lines)


# Every mechanism, via every intermediary that it allows.
MECHANISMS = {
    f"{name}-{intermediary}": _words(name, intermediary) for name, kind in KINDS.items() for intermediary in kind.vias
}
MECHANISMS["distributed-polya-paper"] = _words("distributed-polya", "aggregator", 'calibration = "paper"')


def seeded_run(
    name: str,
    *,
    horizon: int,
    policy: str,
    mechanism: str,
    world: str,
    seed: int = 7,
    leaving: float = 0.15,
    processes: int = 2,
) -> RunFile:
    """Return a run whose noise has a seed, so that both drivers draw alike.

    policy, mechanism, world  lines of these tables of the run file.
    leaving                   share of the clients that leave, at every stage; 0 also for rounds of one client, which
                              survive no loss.
    processes                 the fleets.
    """
    survives = "dropout = 0.2\ncorrupt = 0.05\nminimum = 4" if leaving else "dropout = 0.0\ncorrupt = 0.0\nminimum = 1"
    return parse(
        f"""
run = "{name}"
horizon = {horizon}
[policy]
{policy}
[mechanism]
{mechanism}
[intermediary]
{survives}
stage_seconds = 60.0
[unsafe]
noise_seed = {seed}
[environment]
seed = {seed}
{world}
[fleet]
processes = {processes}
dropout = {leaving}
"""
    )


def run_file(name: str, mechanism: str, *, horizon: int = 700, first_batch: int = 6) -> RunFile:
    """Return a small run: two arms far apart and one between, clients that leave at every stage, two fleets."""
    return seeded_run(
        name,
        horizon=horizon,
        policy=f"first_batch = {first_batch}",
        mechanism=MECHANISMS[mechanism],
        world='name = "bernoulli"\nmeans = [0.05, 0.95, 0.5]',
    )


def smallest_run(name: str, mechanism: str, *, seed: int = 7, processes: int = 1) -> RunFile:
    """Return a run of two rounds, whose two arms are so far apart that one is dropped; clients leave at every stage."""
    noisiest = mechanism.startswith("local-sphere")  # cohorts twice as large show the difference of the arms
    return seeded_run(
        name,
        horizon=400 if noisiest else 200,
        policy=f"first_batch = {6 if noisiest else 5}\nfailure = 0.5",
        mechanism=MECHANISMS[mechanism],
        world='name = "bernoulli"\nmeans = [0.05, 0.95]',
        seed=seed,
        processes=processes,
    )


def over_http(
    stack: Stack, file: RunFile, alive: Callable[[], None] = lambda: None, *, post_regret: bool = False
) -> Result:
    """Play a run to its end over running services, and return its result."""
    fleets = Fleets(file, stack.urls, stack.data_dir.path / "logs", stack.data_dir.memory_file)
    progress = Progress(Console(file=io.StringIO()))
    return asyncio.run(HttpRun(file, stack.urls, fleets, progress, alive, post_regret).run())


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Start a run in another thread and return its future, so that the test can disturb the services meanwhile."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def until(happened: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait until the condition is true. Raises AssertionError when `seconds` are over."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def logs(folder: Path) -> str:
    """Return the logs of all services as one text."""
    return "\n".join(path.read_text("utf-8", errors="replace") for path in sorted((folder / "logs").glob("*.log")))


def learned(result: Result) -> dict[str, object]:
    """Return a result without the fields that depend on the driver: all other fields must agree between drivers."""
    return result.model_dump(exclude={"driver", "seconds", "clients_per_second", "bits"})
