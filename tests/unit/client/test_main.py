"""Tests that a fleet as a process ends with a status, a line and a report, however it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from distrust.client.__main__ import _new_loop, main
from distrust.common.protocol.web.client import Http, Patience
from tests.support.asgi import OverHttpx

WORLD = '{"name":"bernoulli","means":[0.2,0.8],"seed":4}'


@pytest.fixture(autouse=True)
def memory_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Name the file of what clients have taken part in, and return it."""
    file = tmp_path / "clients.sqlite3"
    monkeypatch.setenv("DISTRUST_MEMORY_FILE", str(file))
    return file


def _arguments(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["client", *arguments])
    monkeypatch.setattr(
        "distrust.client.__main__.configure", lambda _level: None
    )  # the logs of this process are pytest's


def test_a_server_that_stays_away_is_status_75_with_a_line_and_a_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unheard:  # bound and never listening: connections are refused
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        report = tmp_path / "fleet.json"
        options = ["--run", "demo", "--environment", WORLD, "--server", url, "--patience", "0.2"]
        for target in (str(report), "-"):
            _arguments(monkeypatch, *options, "--json", target, "--log-level", "error", "--process", "f1")
            assert main() == 75
    printed = capsys.readouterr()
    assert [line.split(" http://")[0] for line in printed.err.splitlines()] == ["unavailable GET"] * 2
    written = json.loads(report.read_text())
    (on_stdout,) = (
        json.loads(line) for line in printed.out.splitlines() if line.startswith("{")
    )  # its log is there too
    assert on_stdout | {"seconds": 0} == written | {"seconds": 0}
    assert (written["process"], written["run"], written["state"]) == ("f1", "demo", "failed")
    assert written["clients"]["joined"] == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        pytest.param(
            [],
            "bad-parameter --environment is missing: the [environment] table as JSON, or the path",
            id="no-environment",
        ),
        pytest.param(
            ["--environment", WORLD, "--dropout", "2"], "bad-parameter --dropout = 2: must be below", id="out-of-range"
        ),
        pytest.param(
            ["--environment", WORLD, "--max-epsilon=x"],
            "bad-parameter --max-epsilon = 'x': must be a n",
            id="no-number",
        ),
        pytest.param(["--environment", WORLD, "--run", "A B"], "--run = 'A B': must be a name of 1 to 80", id="name"),
        pytest.param(
            ["--environment", WORLD, "--noise-seed", "1"], "bad-parameter --noise-seed = 1: removes the", id="unsafe"
        ),
        pytest.param(
            ["--environment", WORLD, "--server-url", "nope"],
            "bad-parameter --server-url = 'nope': must be an address such as http://127.0.0.1:8701",
            id="no-address-by-the-settings-name",
        ),
        pytest.param(
            ["--environment", WORLD, "--server=nope"], "--server = 'nope': must be an address such as", id="no-address"
        ),
        pytest.param(
            ["--environment", '{"name":"bernoulli","means":[0,2],"seed":1}'], "environment.means[1] = 2", id="mean"
        ),
        pytest.param(
            ["--environment", '{"a":' * 3000 + "1" + "}" * 3000], ": its tables are nested too deeply", id="nested"
        ),
    ],
)
def test_bad_settings_are_status_2_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], line: str
) -> None:
    _arguments(monkeypatch, *options)
    assert main() == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_a_bad_setting_of_a_variable_is_named_by_its_variable_and_an_option_goes_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISTRUST_MAX_EPSILON", "x")
    _arguments(monkeypatch, "--environment", WORLD)
    assert main() == 2
    assert capsys.readouterr().err == "bad-parameter DISTRUST_MAX_EPSILON = 'x': must be a number\n"
    _arguments(monkeypatch, "--environment", WORLD, "--max-epsilon", "y")
    assert main() == 2
    assert capsys.readouterr().err == "bad-parameter --max-epsilon = 'y': must be a number\n"


def test_a_server_cannot_send_commands_to_the_terminal_in_the_fleets_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refused key of the server's answer sets a terminal's title, clears it, and turns the line's direction."""
    body = {"version": 3, "runs": [], "\x1b]0;owned\x07\x9b2J\u202e": 1}
    answers = httpx.MockTransport(lambda _request: httpx.Response(200, json=body))
    monkeypatch.setattr("distrust.client.__main__.Http", lambda _patience: Http(Patience(), sender=OverHttpx(answers)))
    _arguments(monkeypatch, "--environment", WORLD, "--log-level", "error")
    assert main() == 2
    line = capsys.readouterr().err.removesuffix("\n")
    assert "\ufffd]0;owned\ufffd\ufffd2J\ufffd" in line
    assert line.isprintable()


def test_a_fleet_runs_on_uvloop_and_on_asyncio_where_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = []
    for _ in range(2):
        with closing(_new_loop()) as loop:
            kinds.append(type(loop).__module__.partition(".")[0])
        monkeypatch.setattr("distrust.client.__main__.uvloop", None)
    assert kinds == ["uvloop", "asyncio"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_fleet_that_is_told_to_stop_writes_its_report_and_ends_with_0(tmp_path: Path, number: int) -> None:
    """The server takes the connection and never answers, as in a long poll."""
    report = tmp_path / "fleet.json"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = ["--run", "demo", "--environment", WORLD, "--server-url", url, "--report", str(report)]
        fleet = subprocess.Popen(
            [sys.executable, "-m", "distrust.client", *options], env={**os.environ}, stderr=subprocess.DEVNULL
        )
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            fleet.send_signal(number)
            assert fleet.wait(120) == 0
    assert json.loads(report.read_text())["state"] == "stopped"


def test_a_fleet_whose_file_is_damaged_ends_with_2_and_one_line_before_it_asks_the_server(
    monkeypatch: pytest.MonkeyPatch, memory_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory_file.write_bytes(b"no database " * 1000)
    monkeypatch.setattr("distrust.client.__main__.Http", lambda _patience: pytest.fail("it asks the server"))
    _arguments(monkeypatch, "--environment", WORLD, "--run", "demo", "--memory-file", str(memory_file))
    assert main() == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bad-parameter --memory-file = '{memory_file}': is damaged; it alone tells which clients")
    assert error.count("\n") == 1
