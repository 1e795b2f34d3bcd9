"""Tests that a run whose server code raises ends as failed, with the reason in API, command line and exit code."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUN = """
run = "{name}"
horizon = {horizon}
policy = {{first_batch = 4, failure = {failure}}}
mechanism = {{name = "distributed-polya", epsilon = 1.0}}
environment = {{name = "bernoulli", seed = 4, means = [0.1, 0.9]}}
fleet = {{processes = 1, dropout = {leaving}}}
intermediary = {{dropout = 0.05, stage_seconds = {seconds}}}
"""
PATCH = """
import numpy
from distrust.server import active_run
from distrust.server.policies.elimination import SuccessiveElimination

honest_read, honest_analyze = SuccessiveElimination.read, active_run.analyze


def read(self, arm, estimate):
    if self._failure == 0.25 and self._batch == 5:
        return 1 / 0, 0.0
    return honest_read(self, arm, estimate)


def analyze(mechanism, cohort, *rest):
    if cohort.run == "analyzer" and cohort.round == 2:
        with numpy.errstate(all="raise"):
            numpy.log(numpy.zeros(1))
    return honest_analyze(mechanism, cohort, *rest)


SuccessiveElimination.read, active_run.analyze = read, analyze
"""
FAULTS = {
    "policy": (0.25, "round 2: ZeroDivisionError: division by zero", "run_failed"),
    "analyzer": (
        0.1,
        ": the analyzer raised: FloatingPointError: divide by zero encountered in log",
        "cohort_faulted",
    ),
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Yield services whose Python runs PATCH first, like every process that a test starts."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "sitecustomize.py").write_text(PATCH)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT / 'src'}")
        environment.setenv("NO_COLOR", "1")
        with Stack(DataDir(folder / "data"), 0) as running:
            yield running


def played(file: Path, stack: Stack) -> subprocess.CompletedProcess[str]:
    """Run `distrust run` on services that run already."""
    command = [sys.executable, "-m", "distrust.lab", "run", str(file), "--data", str(stack.data_dir.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=file.parent)


def api(stack: Stack, path: str) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {stack.urls.token}"}
    answer = httpx.get(f"{stack.urls.server}/v1/runs/{path}", headers=headers, trust_env=False)
    return dict(answer.raise_for_status().json())


@pytest.mark.parametrize("fault", FAULTS)
def test_code_that_raises_in_round_2_ends_the_served_run_for_good(stack: Stack, tmp_path: Path, fault: str) -> None:
    failure, reason, event = FAULTS[fault]
    text = RUN.format(name=fault, horizon=400, failure=failure, leaving=0.0, seconds=60.0)
    (tmp_path / "run.toml").write_text(text)
    done = played(tmp_path / "run.toml", stack)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"run-failed run {fault} failed: round 2: ")
    assert last.endswith(reason)
    assert "Traceback" not in done.stderr
    seen = api(stack, fault)
    assert seen["state"] == "failed"
    assert str(seen["reason"]).endswith(reason)
    assert api(stack, f"{fault}/round")["state"] == "failed"
    stack.restart("server")
    assert api(stack, fault) == seen
    assert stack.data_dir.log("server").read_text("utf-8").count(event) in {1, 2}  # one for each arm at most


def test_a_served_run_whose_cohorts_are_all_aborted_fails_and_counts_them(stack: Stack, tmp_path: Path) -> None:
    text = RUN.format(name="empty", horizon=64, failure=0.1, leaving=0.9, seconds=2.0)
    (tmp_path / "run.toml").write_text(text)
    done = played(tmp_path / "run.toml", stack)
    assert done.returncode == 1, done.stderr
    assert "run-failed run empty failed: nothing was measured: no round was closed, 4 of 4 cohorts" in done.stderr
    assert api(stack, "empty")["state"] == "failed"
