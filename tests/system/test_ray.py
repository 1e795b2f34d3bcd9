"""Tests of sweeps on Ray. `make test-ray` plays them: they start the Python of an environment that has Ray."""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.table import read_rows
from tests.support.experiments import small
from tests.support.sweeps import CELLS, LONG, ROOT, alike, kept, start, until_kept, until_no_process_works, working

PYTHON = ROOT / ".venv-ray" / "bin" / "python"

pytestmark = pytest.mark.ray

SLOW = """
import os
with open(os.environ["IMPORTERS"], "a") as importers:
    importers.write(f"{os.getpid()}\\n")
"""


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield variables of a user who has jsonschema's slow module, and whose home is empty."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "rfc3987_syntax.py").write_text(SLOW)
    (tmp_path / "home").mkdir()
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # a socket's path has at most 107 bytes
        own = {"HOME": tmp_path / "home", "IMPORTERS": tmp_path / "importers", "PYTHONPATH": tmp_path / "modules"}
        yield {"RAY_TMPDIR": short, **{name: str(path) for name, path in own.items()}}


def kill_actors(session: int) -> None:
    """Kill the processes in which Ray plays cells of a sweep."""
    for text in working(session):
        pid = int(text.split()[0])
        with suppress(OSError):  # it ended meanwhile
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::PoolActor"):
                os.kill(pid, signal.SIGKILL)


def test_a_sweep_on_ray_that_lost_a_worker_ends_with_the_rows_of_one_on_this_machine(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """None of Ray's processes imports the slow module, and Ray's token is its user's alone."""
    first = start(tmp_path, "--backend", "ray", python=PYTHON, **variables)
    until_kept(tmp_path, 1, first)
    while first.poll() is None:  # one that has no cell at the moment is not missed
        kill_actors(first.pid)
    _, stderr = first.communicate(timeout=300)
    until_no_process_works(first.pid)
    assert first.returncode == 75
    assert "worker-lost a worker process died, perhaps for want of memory" in stderr
    assert "Traceback" not in stderr
    assert 0 < (before := kept(tmp_path)) < CELLS

    second = start(tmp_path, "--backend", "ray", python=PYTHON, **variables)
    _, stderr = second.communicate(timeout=600)
    until_no_process_works(second.pid)
    assert second.returncode == 0, stderr
    assert f"({before} from before)" in stderr
    (path,) = tmp_path.glob("small-*/rows.parquet")
    here = run_sweep(load_experiment(small(tmp_path, *LONG)), tmp_path / "here", jobs=1)
    assert alike(read_rows(path)) == alike(here.rows)

    importers = (tmp_path / "importers").read_text().split()
    assert set(importers) == {str(first.pid), str(second.pid)}
    written = [(file.name, file.stat().st_mode & 0o077) for file in (tmp_path / "home").rglob("*")]
    assert sorted(written) == [(".ray", 0), ("auth_token", 0)]
