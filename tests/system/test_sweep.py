"""Tests that a sweep's table is the same after a kill, a lost worker and Ctrl-C, with loky and with Dask."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from distributed import LocalCluster

from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.table import read_rows
from tests.support.experiments import small
from tests.support.picked import picked
from tests.support.sweeps import CELLS, LONG, alike, kept, start, until_kept, until_no_process_works, working

pytestmark = pytest.mark.slow


def killed(folder: Path) -> None:
    """Kill a sweep once a cell has ended."""
    sweep = start(folder)
    until_kept(folder, 1, sweep)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    until_no_process_works(sweep.pid)


def without_a_worker(folder: Path) -> None:
    """Kill a sweep's worker: the sweep says so in one sentence."""
    sweep = start(folder)
    before = kept(folder)
    until_kept(folder, before + 1, sweep)
    workers = [int(text.split()[0]) for text in working(sweep.pid) if f" {sweep.pid} " in text]
    named = [pid for pid in workers if b"LokyProcess" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(named[0], signal.SIGKILL)
    _, stderr = sweep.communicate(timeout=300)
    until_no_process_works(sweep.pid)
    assert sweep.returncode == 75
    assert "worker-lost a worker process died, perhaps for want of memory" in stderr
    assert "Traceback" not in stderr
    assert before < kept(folder)


def stopped(folder: Path, *words: str) -> None:
    """Stop a sweep by Ctrl-C: it ends all its processes and says how to go on."""
    sweep = start(folder, *words)
    until_kept(folder, kept(folder) + 1, sweep)
    os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does, also to the workers
    _, stderr = sweep.communicate(timeout=300)
    until_no_process_works(sweep.pid)
    assert sweep.returncode == 130
    assert f"stopped: {kept(folder)} finished cells are kept" in stderr
    assert "the same command goes on from there" in stderr
    assert "Traceback" not in stderr
    assert "warning" not in stderr.lower()  # Dask warns of every worker that is killed in the middle of a cell


def listening(sweep: subprocess.Popen[str]) -> Iterator[tuple[int, str]]:
    """Yield process and address of each port at which a sweep and its processes listen."""
    whole = psutil.Process(sweep.pid)
    for process in (whole, *whole.children(recursive=True)):
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                yield process.pid, connection.laddr.ip


def dask_workers(sweep: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes in which Dask plays cells: those that listen, but for the sweep, which has the scheduler."""
    return [psutil.Process(pid) for pid in dict(listening(sweep)) if pid != sweep.pid]


def test_a_sweep_that_was_killed_lost_a_worker_and_was_stopped_ends_with_the_table_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    """With loky and with Dask, in one folder: each start goes on from what the ones before it kept.

    Dask replaces a worker that is killed, and its cells are played again.
    With one job a sweep plays in its own process.
    """
    killed(tmp_path)
    without_a_worker(tmp_path)
    for words in picked([(), ("--backend", "dask")], 1, "stopped sweeps"):
        stopped(tmp_path, *words)
    before = kept(tmp_path)
    assert before + 1 < CELLS
    done = start(tmp_path, "--backend", "dask", "--format", "csv")
    until_kept(tmp_path, before + 1, done)
    assert {address for _, address in listening(done)} == {"127.0.0.1"}
    dask_workers(done)[0].kill()
    _, stderr = done.communicate(timeout=600)
    assert done.returncode == 0, stderr
    until_no_process_works(done.pid)
    assert f"({before} from before)" in stderr
    (path,) = tmp_path.glob("small-*/rows.csv")
    uninterrupted = run_sweep(load_experiment(small(tmp_path, *LONG)), tmp_path / "uninterrupted", jobs=1)
    assert alike(read_rows(path)) == alike(uninterrupted.rows)


def test_a_sweep_plays_on_the_cluster_of_the_schedulers_address(tmp_path: Path) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster:
        done = start(tmp_path, "--quick", "--backend", "dask", DASK_SCHEDULER_ADDRESS=cluster.scheduler_address)
        _, stderr = done.communicate(timeout=600)
        assert done.returncode == 0, stderr
        assert cluster.scheduler.transition_counter > 0
    (path,) = tmp_path.glob("small-*/rows.parquet")
    here = run_sweep(load_experiment(small(tmp_path, *LONG), quick=True), tmp_path / "here", jobs=1)
    assert alike(read_rows(path)) == alike(here.rows)
