"""Tests the `distrust` command as a user runs it: exit codes, errors in one clear line, no processes left."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from distrust.lab.__main__ import app
from distrust.lab.cli import console
from distrust.lab.cli.console import exit_code_of
from distrust.lab.stack.stack import BASE_PORT, LOOPBACK
from tests.support.forked import forking
from tests.support.http_runs import until
from tests.support.picked import picked

pytestmark = pytest.mark.usefixtures("small_cohorts")

DISTRUST = [sys.executable, "-m", "distrust.lab"]
SMALL = """
run = "small"
horizon = 200
[mechanism]
name = "distributed-polya"
epsilon = 1.0
[environment]
name = "bernoulli"
seed = 4
means = [0.1, 0.9]
[fleet]
processes = 1
"""
SMALL_FIRST = SMALL.replace("horizon = 200", "horizon = 200\npolicy.first_batch = 4")


def distrust(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*DISTRUST, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600, env=_env())


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "NO_COLOR": "1", "COLUMNS": "200"}


BAD = {
    "unknown-key": ("horizon", "horizn", "horizn"),
    "epsilon-zero": ("epsilon = 1.0", "epsilon = 0.0", "epsilon = 0.0"),
    "epsilon-negative": ("epsilon = 1.0", "epsilon = -1.0", "epsilon = -1.0"),
    "no-epsilon": ("epsilon = 1.0", "", "epsilon"),
    "delta-half": ("epsilon = 1.0", "epsilon = 1.0\ndelta = 0.5", "delta = 0.5"),
    "delta-of-bits": ('"distributed-polya"', '"shuffled-binomial"\ndelta = 0.5', "delta = 0.5"),
    "horizon-below-arms": ("horizon = 200", "horizon = 1", "horizon = 1"),
    "one-arm": ("[0.1, 0.9]", "[0.1]", "at least 2 arms"),
    "mean-above-one": ("0.9]", "1.5]", "means[1] = 1.5"),
    "wrong-s": ("epsilon = 1.0", 'epsilon = 1.0\nvia = "shuffler"', "via = 'shuffler'"),
}


def check_one_line(code: int, out: str, err: str, names: str) -> None:
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert names in err
    assert "bad.toml" in err


def test_a_bad_run_file_is_one_line_on_stderr_and_exit_2(tmp_path: Path) -> None:
    old, new, names = BAD["unknown-key"]
    (tmp_path / "bad.toml").write_text(SMALL.replace(old, new), "utf-8")
    done = distrust("run", "bad.toml", "--in-process", folder=tmp_path)
    check_one_line(done.returncode, done.stdout, done.stderr, names)


@pytest.mark.parametrize("fault", BAD)
def test_every_fault_of_a_run_file_is_one_line_that_names_it(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command runs in this process, because a process of its own takes seconds to start."""
    monkeypatch.setattr("distrust.lab.cli.console.signal.signal", lambda *_: None)
    (old, new, names), bad = BAD[fault], tmp_path / "bad.toml"
    bad.write_text(SMALL.replace(old, new), "utf-8")
    code = exit_code_of(lambda: app(["run", str(bad), "--in-process"]))
    check_one_line(code, *capsys.readouterr(), names)


def test_json_on_stdout_is_one_object_with_everything_that_was_promised(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL, "utf-8")
    done = distrust("run", "small.toml", "--in-process", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {
        *("run", "policy", "mechanism", "calibration", "horizon", "seed", "pulls", "regret", "rounds"),
        *("guarantee", "bits", "seconds", "clients_per_second"),
        *("driver", "environment", "noise_seed", "chosen", "best", "arms", "aborted", "unfinished"),
        *("events", "fault", "formed", "spent", "refusals"),
    }
    assert set(result["events"]) == {"best_dropped", "best_dropped_at", "widths", "width_failures", "failure"}
    assert set(result["regret"]) == {"final", "curve"}
    assert set(result["bits"]) == {"payload", "modulus", "sent", "wire"}
    assert {"kind", "epsilon", "delta", "neighbours", "assumptions"} <= set(result["guarantee"])
    assert sum(result["pulls"]) == 200
    assert result["regret"]["final"] == pytest.approx(result["regret"]["curve"][-1][1])
    assert result["regret"]["final"] == pytest.approx(0.8 * result["pulls"][0])


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        done = distrust("up", "--port-base", str(port), folder=tmp_path)
    assert done.returncode == 75
    assert f"port {port} for the server is in use" in done.stderr
    assert "--port-base" in done.stderr


def test_a_missing_data_set_is_named_with_the_way_to_make_it(tmp_path: Path) -> None:
    text = SMALL.replace('"bernoulli"', '"mslr"').replace("means = [0.1, 0.9]", 'file = "none.csv"')
    (tmp_path / "lost.toml").write_text(text, "utf-8")
    done = distrust("run", "lost.toml", "--in-process", folder=tmp_path)
    assert done.returncode == 2
    assert "none.csv" in done.stderr
    assert "distrust data mslr" in done.stderr


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = distrust("up", "--data", "file/data", "--port-base", "0", folder=tmp_path)
    assert done.returncode == 2
    assert "--data = 'file/data': file is no folder" in done.stderr


def ours(folder: Path) -> list[int]:
    """Return the ids of processes whose working folder this is."""
    result = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or a zombie
            result += [int(entry.name)] if (entry / "cwd").readlink() == folder else []
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    picked(
        [
            pytest.param(signal.SIGINT, 130, id="ctrl-c"),
            pytest.param(signal.SIGTERM, 143, id="terminated"),
            pytest.param(signal.SIGKILL, -9, id="killed-outright"),
        ],
        1,
        "signals",
    ),
)
def test_however_a_run_ends_no_process_is_left(tmp_path: Path, number: int, code: int) -> None:
    (tmp_path / "long.toml").write_text(SMALL.replace("horizon = 200", "horizon = 200000"), "utf-8")
    command = [*DISTRUST, "run", "long.toml", "--data", str(tmp_path / "data"), "--port-base", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=_env()) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        assert "round 1" in line
        until(lambda: len(ours(tmp_path)) >= 5)  # the command, three services, a fleet
        os.kill(running.pid, number)
        rest = running.stderr.read()
        assert running.wait(240) == code, rest
    until(lambda: ours(tmp_path) == [])
    assert "Traceback" not in rest
    assert ("interrupted" in rest) == (number == signal.SIGINT)


@pytest.mark.slow
def test_run_then_inspect_shows_every_party_and_never_a_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command is a process, with services of its own. The next ones run here, over forked services."""
    (tmp_path / "small.toml").write_text(SMALL_FIRST, "utf-8")
    data = ["--data", str(tmp_path / "data")]
    done = distrust("run", "small.toml", *data, "--port-base", "0", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bits"]["wire"] > 0
    assert str(BASE_PORT) not in done.stderr
    monkeypatch.setattr("distrust.lab.cli.console.signal.signal", lambda *_: None)
    monkeypatch.setattr(console.out, "_width", 200)

    def here(*words: str) -> tuple[int, str, str]:
        with forking():
            code = exit_code_of(lambda: app([*words, *data], standalone_mode=False))
        return code, *capsys.readouterr()

    code, _, err = here("run", str(tmp_path / "small.toml"), "--port-base", "0")
    assert (code, "finished already" in err) == (2, True), err
    monkeypatch.setattr("distrust.lab.stack.stack.ServiceProcess", None)  # a stopped stack is read, and not started
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    code, out, err = here("inspect", "small", "--round", "1", "--limit", "2")
    assert code == 0, err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == before
    columns = ("a client sent", "the aggregator saw", "the server saw")
    assert all(word in out for word in (*columns, "keys", "shares", "masked", "unmask", "estimate"))
    assert "modulo m" in out
    code, _, err = here("inspect", "unheard-of")
    assert (code, "unheard-of" in err) == (2, True), err
