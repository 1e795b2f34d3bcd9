"""Tests that a sweep's table is the same after a kill, a lost worker and Ctrl-C, with loky and with Dask."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.row import Row
from distrust.lab.sweep.table import read_rows
from tests.support.experiments import small

ROOT = Path(__file__).parents[2]
LONG = (("repetitions = 3", "repetitions = 4"), ("horizon = 2000", "horizon = 200000"))
CELLS = 16

pytestmark = pytest.mark.slow


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "distrust.lab",
        "sweep",
        small(folder, *LONG),
        "--out",
        str(folder),
        "--jobs",
        "2",
        *words,
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def kept(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("small-*/rows-*.jsonl"))


def until_kept(folder: Path, count: int, sweep: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 600
    while kept(folder) < count:
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def working(session: int) -> list[str]:
    """Return the /proc status lines of a session's processes that still run."""
    result = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            text = path.read_text("utf-8", errors="replace")
            state, _, _, sid = text.rsplit(")", 1)[1].split()[:4]
            result += [text] if int(sid) == session and state != "Z" else []
    return result


def until_no_process_works(session: int) -> None:
    end = time.monotonic() + 120
    while left := working(session):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def alike(rows: list[Row]) -> list[dict[str, object]]:
    return [row.lasting() for row in rows]


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


def test_a_sweep_that_was_killed_lost_a_worker_and_was_stopped_ends_with_the_table_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    """With loky and with Dask, in one folder: each start goes on from what the ones before it kept."""
    killed(tmp_path)
    without_a_worker(tmp_path)
    stopped(tmp_path)
    stopped(tmp_path, "--backend", "dask", "--jobs", "1")
    before = kept(tmp_path)
    assert before < CELLS
    done = start(tmp_path, "--backend", "dask", "--format", "csv")
    _, stderr = done.communicate(timeout=600)
    assert done.returncode == 0, stderr
    until_no_process_works(done.pid)
    assert f"({before} from before)" in stderr
    (path,) = tmp_path.glob("small-*/rows.csv")
    uninterrupted = run_sweep(load_experiment(small(tmp_path, *LONG)), tmp_path / "uninterrupted", jobs=1)
    assert alike(read_rows(path)) == alike(uninterrupted.rows)
