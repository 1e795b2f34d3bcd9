"""Tests that a service logs its start, ends gracefully, and states in one line why it cannot start."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvloop
from fastapi import FastAPI

from distrust.aggregator.app import AggregatorSettings, aggregator_app
from distrust.common.errors import BadParameter
from distrust.common.protocol.web.proxy import haproxy_config
from distrust.common.protocol.web.serve import allow_connections, bind, options, run_service
from distrust.common.protocol.web.settings import ServiceSettings
from tests.support.cohorts import Authority, address

SERVER = Authority()
PARTIES = ["shuffler", "aggregator"]


def start(party: str, folder: Path, **variables: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "DISTRUST_PORT": "0", "PYTHONPATH": str(Path.cwd() / "src"), **variables}
    command = [sys.executable, "-m", f"distrust.{party}"]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


@contextmanager
def running(party: str, folder: Path, **variables: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    process = start(party, folder, **variables)
    assert process.stderr is not None
    try:
        port = json.loads(process.stderr.readline())["port"]
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def refusal(party: str, folder: Path, **variables: str) -> tuple[int, str]:
    process = start(party, folder, **variables)
    _, words = process.communicate(timeout=240)
    return process.returncode, words


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.few(1)
def test_killed_it_knows_its_cohorts_and_told_to_stop_it_wakes_the_long_polls_and_exits_cleanly(
    party: str, tmp_path: Path
) -> None:
    cohort = SERVER.sealed() if party == "shuffler" else SERVER.masked()
    with running(party, tmp_path) as (process, url):
        httpx.put(f"{url}/v1/cohorts/{address('c1')}", json=cohort.model_dump(mode="json")).raise_for_status()
        process.kill()
    with running(party, tmp_path) as (process, url):
        assert httpx.get(f"{url}/readyz").text == "ready\n"
        assert [entry["cohort"] for entry in httpx.get(f"{url}/v1/cohorts").json()["cohorts"]] == ["c1"]
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), timeout=240) as poll:
            path = f"/v1/cohorts/{address('c1')}/batch?wait=60"
            poll.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            for _ in range(3):  # when the service answers calls that came later, it has read the poll
                assert httpx.get(f"{url}/readyz").text == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=50) == 0  # before the poll is over by itself
            answer = b"".join(iter(lambda: poll.recv(65_536), b""))
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["state"] == "waiting"
    assert (tmp_path / ".distrust" / f"{party}.sqlite3").exists()


def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, words = refusal("shuffler", tmp_path, DISTRUST_PORT=str(port))
    expected = f"port {port} on 127.0.0.1 is busy: another program listens there; stop it or set DISTRUST_PORT"
    assert (code, words) == (2, f"distrust shuffler: {expected}\n")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DISTRUST_PORT": "many"}, "DISTRUST_PORT = 'many': must be a whole number"),
        ({"DISTRUST_DATABASE": "nonsense"}, "DISTRUST_DATABASE = 'nonsense': must be a SQLAlchemy URL"),
        ({"DISTRUST_DATABASE": "sqlite:////dev/null/x"}, "database /dev/null/x: its directory cannot be made"),
        ({"DISTRUST_HOST": "0.0.0.0"}, "must be loopback unless DISTRUST_OPERATOR_TOKEN_FILE is set"),
        ({"DISTRUST_OPERATOR_TOKEN_FILE": "nowhere"}, "DISTRUST_OPERATOR_TOKEN_FILE = 'nowhere': No such file"),
        ({"DISTRUST_CLIENT_CA": "nowhere"}, "DISTRUST_CLIENT_CA = 'nowhere': needs DISTRUST_TLS_CERT and"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    words: str,
) -> None:
    """In this process, which keeps its own umask, threads, memory and log; the busy port has a process of its own."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"DISTRUST_PORT": "0", **variables}.items():
        monkeypatch.setenv(name, value)
    for name in ("os.umask", "sys.setswitchinterval", "configure", "give_memory_back"):
        monkeypatch.setattr(f"distrust.common.protocol.web.serve.{name}", lambda *_: None)
    assert run_service(AggregatorSettings, aggregator_app) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("distrust aggregator: ")
    assert words in stderr
    assert stderr.count("\n") == 1


def test_an_empty_token_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(BadParameter, match="must not be empty"):
        ServiceSettings(operator_token_file=tmp_path / "token").check()


def test_a_services_token_is_text_of_bounded_length_and_may_come_from_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    one = "must hold one token of at most 4096 signs"
    for path, why in ((Path("/dev/zero"), one), (tmp_path / "bytes", "must be text")):
        with pytest.raises(BadParameter, match=f"^operator_token_file = '{path}': {why}$"):
            ServiceSettings(operator_token_file=path).check()
    reading, writing = os.pipe()
    os.write(writing, b"secret\n")
    os.close(writing)
    assert ServiceSettings(operator_token_file=Path(f"/dev/fd/{reading}")).operator_token() == "secret"
    os.close(reading)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_needs_no_token(host: str) -> None:
    ServiceSettings(host=host).check()


def test_short_answers_leave_at_once() -> None:
    """Without the protocol's number asyncio leaves Nagle's algorithm on, and every answer waits 40 ms for an ACK."""
    with bind(ServiceSettings(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_connections_stay_below_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _which, pair: limits.append(pair))
    assert allow_connections(300) == 300
    assert allow_connections(100_000) == 512
    assert limits == [(256, 1024), (812, 1024), (1024, 1024)]


def test_a_service_runs_on_uvloop_where_it_is_installed() -> None:
    assert options(FastAPI(), ServiceSettings()).get_loop_factory() is uvloop.new_event_loop


def test_a_service_bears_more_connections_than_its_proxy_lets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (10**6, 10**6))
    settings = ServiceSettings(max_connections=700, caller_connections=64)
    assert options(FastAPI(), settings).limit_concurrency == 1400
    assert "maxconn 700 " in haproxy_config(settings)
