"""Sweeps as processes of their own, which are watched and stopped while they play."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from distrust.lab.sweep.row import Row
from tests.support.experiments import small

ROOT = Path(__file__).parents[2]
LONG = (("repetitions = 3", "repetitions = 4"), ("horizon = 2000", "horizon = 200000"))
CELLS = 16


def start(folder: Path, *words: str, python: Path | str = sys.executable, **variables: str) -> subprocess.Popen[str]:
    """Start the long sweep, or go on with it, in a session of its own."""
    experiment = small(folder, *LONG)
    command = [str(python), "-m", "distrust.lab", "sweep", experiment, "--out", str(folder), "--jobs", "2", *words]
    pipe, environment = subprocess.PIPE, {**os.environ, **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


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
