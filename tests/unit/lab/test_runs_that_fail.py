"""Tests that runs that fail in process give the reason in result, stderr and exit code, as over services."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distrust.common.dp.mechanisms.central.additive import UnsafeIdentity
from distrust.common.errors import BAD_INPUT, FAILED, RunFailed
from distrust.lab.__main__ import app
from distrust.lab.cli.console import exit_code_of
from distrust.lab.play import in_process
from distrust.lab.play.run_file import parse
from distrust.lab.services.replay import finished
from distrust.server.policies.elimination import SuccessiveElimination
from tests.support.round_report import VIEW

RUN = """
run = "trial"
horizon = 2000
policy = {first_batch = 5}
mechanism = {name = "identity"}
environment = {name = "bernoulli", means = [0.2, 0.8], seed = 3}
"""
EMPTY = RUN.replace("horizon = 2000", "horizon = 130") + "intermediary = {dropout = 0.01}\nfleet = {dropout = 0.9}\n"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the policy raise when it reads its second batch."""
    honest = SuccessiveElimination.read

    def read(self: SuccessiveElimination, arm: int, estimate: Any) -> tuple[float, float]:
        return honest(self, arm, estimate) if self._batch == 5 else (1 / 0, 0.0)

    monkeypatch.setattr(SuccessiveElimination, "read", read)


@pytest.fixture
def distrust(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return the command line as a function of its words, in this process. It returns the exit code."""
    monkeypatch.setattr("distrust.lab.cli.console.signal.signal", lambda *_: None)

    def command(*words: str) -> int:
        try:
            return exit_code_of(lambda: app(list(words)))
        except SystemExit as end:
            return int(end.code or 0)

    return command


@pytest.mark.usefixtures("broken")
def test_a_policy_that_raises_in_its_second_round_fails_the_run_and_keeps_the_first() -> None:
    result = in_process.run(parse(RUN))
    assert result.fault == "round 2: ZeroDivisionError: division by zero"
    assert [arm.batch for arm in result.arms] == [5, 5]
    assert sum(result.pulls) == 2 * 32 + 2 * 64
    assert (len(result.rounds), result.events.widths) == (2, 2)


def test_an_analyzer_that_raises_fails_the_run_in_the_middle_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = UnsafeIdentity.estimate

    def estimate(self: UnsafeIdentity, total: Any, survivors: int, stream: Any) -> Any:
        if self.clients > 32:
            raise FloatingPointError("overflow encountered in multiply")
        return honest(self, total, survivors, stream)

    monkeypatch.setattr(UnsafeIdentity, "estimate", estimate)
    result = in_process.run(parse(RUN))
    expected = "round 2: cohort trial.2.0.1: the analyzer raised: FloatingPointError: overflow encountered in multiply"
    assert result.fault == expected
    assert [cohort.estimate for cohort in result.rounds[1].cohorts] == [None, None]


def test_a_run_that_measured_nothing_fails_and_counts_its_cohorts() -> None:
    fault = in_process.run(parse(EMPTY)).fault
    assert fault is not None
    assert fault.startswith("nothing was measured: no round was closed, 4 of 4 cohorts were aborted; the last one was ")
    assert fault.endswith(" survivors, needs 32")


@pytest.mark.usefixtures("broken")
def test_a_run_that_fails_exits_1_with_the_reason_on_stderr_and_the_result_on_stdout(
    tmp_path: Path, distrust: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    assert distrust("run", str(tmp_path / "run.toml"), "--in-process", "--json", "-") == FAILED == 1
    shown = capsys.readouterr()
    assert shown.err == "run-failed run trial failed: round 2: ZeroDivisionError: division by zero\n"
    assert json.loads(shown.out)["fault"] == "round 2: ZeroDivisionError: division by zero"


def test_a_run_that_measured_nothing_exits_1_a_good_one_0_and_bad_input_2(
    tmp_path: Path, distrust: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    codes = []
    for text in (EMPTY, RUN, RUN.replace("horizon = 2000", "horizon = 1")):
        path.write_text(text)
        codes.append(distrust("run", str(path), "--in-process"))
    assert codes == [FAILED, 0, BAD_INPUT]
    assert "run-failed run trial failed: nothing was measured" in capsys.readouterr().err


def test_a_policy_that_raises_in_its_first_round_exits_1_without_a_traceback(
    tmp_path: Path,
    distrust: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_self: SuccessiveElimination) -> float:
        raise OverflowError("cannot convert float infinity to integer")

    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.setattr(SuccessiveElimination, "clients", property(nothing))
    assert distrust("run", str(tmp_path / "run.toml"), "--in-process") == FAILED
    message = capsys.readouterr().err.splitlines()
    assert len(message) == 1
    assert "cannot be planned: OverflowError: cannot convert float infinity to integer" in message[0]


@pytest.mark.parametrize(("state", "how"), [("failed", "failed: why"), ("cancelled", "was cancelled: why")])
def test_a_run_over_services_that_did_not_finish_raises_its_reason(state: str, how: str) -> None:
    view = VIEW.model_copy(update={"state": state, "reason": "why"})
    with pytest.raises(RunFailed, match=f"run trial {how}"):
        finished(view)
