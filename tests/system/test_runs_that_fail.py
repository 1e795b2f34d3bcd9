"""Tests that a run whose server code raises ends as failed, with the reason in API, command line and exit code.

The services fork and the command runs here: `tests/system/test_command_line.py` starts it as users do.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from distrust.lab.__main__ import app
from distrust.lab.cli.console import exit_code_of
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_cohorts")]

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
from distrust.server.runs import settlement
from distrust.server.policies.elimination import SuccessiveElimination

honest_read, honest_analyze = SuccessiveElimination.read, settlement.analyze


def read(self, arm, estimate):
    if self._failure == 0.25 and self._batch == 5:
        return 1 / 0, 0.0
    return honest_read(self, arm, estimate)


def analyze(mechanism, cohort, *rest):
    if cohort.run == "analyzer" and cohort.round == 2:
        with numpy.errstate(all="raise"):
            numpy.log(numpy.zeros(1))
    return honest_analyze(mechanism, cohort, *rest)


SuccessiveElimination.read, settlement.analyze = read, analyze
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
    """Yield services whose Python runs PATCH first, like the fleets."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "sitecustomize.py").write_text(PATCH)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT / 'src'}")
        with forking(), Stack(DataDir(folder / "data"), 0) as running:
            yield running


@pytest.fixture(autouse=True)
def own_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the signals of this process alone when the command runs in it."""
    monkeypatch.setattr("distrust.lab.cli.console.signal.signal", lambda *_: None)


def played(file: Path, stack: Stack, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return exit code and errors of `distrust run` on services that run already."""
    capsys.readouterr()
    words = ["run", str(file), "--data", str(stack.data_dir.path)]
    code = exit_code_of(lambda: app(words, standalone_mode=False))
    return code, capsys.readouterr().err


def api(stack: Stack, path: str) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {stack.urls.token}"}
    answer = httpx.get(f"{stack.urls.server}/v1/runs/{path}", headers=headers, trust_env=False)
    return dict(answer.raise_for_status().json())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.few(1)
def test_code_that_raises_in_round_2_ends_the_served_run_for_good(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    failure, reason, event = FAULTS[fault]
    text = RUN.format(name=fault, horizon=400, failure=failure, leaving=0.0, seconds=60.0)
    (tmp_path / "run.toml").write_text(text)
    code, errors = played(tmp_path / "run.toml", stack, capsys)
    assert code == 1, errors
    last = errors.splitlines()[-1]
    assert last.startswith(f"run-failed run {fault} failed: round 2: ")
    assert last.endswith(reason)
    assert "Traceback" not in errors
    seen = api(stack, fault)
    assert seen["state"] == "failed"
    assert str(seen["reason"]).endswith(reason)
    assert api(stack, f"{fault}/round")["state"] == "failed"
    stack.restart("server")
    assert api(stack, fault) == seen
    assert stack.data_dir.log("server").read_text("utf-8").count(event) in {1, 2}  # one for each arm at most


def test_a_served_run_whose_cohorts_are_all_aborted_fails_and_counts_them(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RUN.format(name="empty", horizon=64, failure=0.1, leaving=0.9, seconds=2.0)
    (tmp_path / "run.toml").write_text(text)
    code, errors = played(tmp_path / "run.toml", stack, capsys)
    assert code == 1, errors
    assert "run-failed run empty failed: nothing was measured: no round was closed, 4 of 4 cohorts" in errors
    assert api(stack, "empty")["state"] == "failed"
