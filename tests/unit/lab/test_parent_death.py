"""Tests that a started command ends with its parent, also if the parent is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.http_runs import until

SLEEP = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_a_tethered_command_dies_with_a_parent_that_was_killed_outright() -> None:
    command = f"[sys.executable, '-m', 'distrust.lab.stack.parent_death', str(os.getpid()), *{SLEEP!r}]"
    script = f"import os, subprocess, sys; p = subprocess.Popen({command}); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "begun\n"
        assert not gone(child)
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: gone(child))


def test_a_command_whose_parent_is_gone_already_never_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distrust.lab.stack.parent_death", "1", *SLEEP], check=False, timeout=120
    )
    assert done.returncode == 1
