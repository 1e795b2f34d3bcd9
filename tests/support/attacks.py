"""Starts a real service as a process to attack, and measures its memory and its speed for honest clients."""

import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.web.sending import IDLE_SECONDS
from tests.support.cohorts import address
from tests.support.honest_work import CLIENTS, SERVER, TARGETS, Target

TOKEN = "sesame"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
START_SECONDS = 60.0
MOST_HONEST = 2  # connections of honest clients


class Timed(httpx.Client):
    """A client that counts the seconds for which it has waited for answers."""

    seconds = 0.0

    def send(self, *given: Any, **more: Any) -> httpx.Response:
        began = time.perf_counter()
        try:
            return super().send(*given, **more)
        finally:
            self.seconds += time.perf_counter() - began


@dataclass
class Attacked:
    """A running service.

    port    at which its callers reach it: its own, or that of a proxy in front of it.
    log     the file of its standard error.
    target  the paths that take no token.
    inside  its own port.
    source  the address from which attackers come. Honest clients come from 127.0.0.1.
    proxy   process id of the proxy; 0: there is none.
    """

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path
    target: Target
    inside: int
    source: str = "127.0.0.1"
    proxy: int = 0
    fresh: int = 0  # resident bytes once it has served
    waited: list[str] = field(default_factory=list)  # cohorts for long polls
    _names: Iterator[int] = field(default_factory=itertools.count)
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        kept = httpx.Limits(keepalive_expiry=IDLE_SECONDS)  # as that of our own clients
        headers = {**OPERATOR, "Content-Type": "application/json"}
        self._clients = [
            Timed(base_url=self.url, headers=headers, timeout=120, limits=kept) for _ in range(MOST_HONEST)
        ]
        self._client = self._clients[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory(self) -> int:
        """Return the resident bytes now."""
        return _status(self.process.pid, "VmRSS")

    def peak(self) -> int:
        """Return the most resident bytes since `forget_peak`, or since the start."""
        return _status(self.process.pid, "VmHWM")

    def proxy_memory(self) -> int:
        """Return the resident bytes of the proxy now."""
        return _status(self.proxy, "VmRSS")

    def proxy_peak(self) -> int:
        """Return the most resident bytes of the proxy since `forget_peak`, or since its start."""
        return _status(self.proxy, "VmHWM")

    def forget_peak(self) -> None:
        for pid in filter(None, (self.process.pid, self.proxy)):
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def log_text(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def limit_files(self, size: int) -> None:
        """Let no file of the service grow beyond `size` bytes. A write beyond fails, as on a full disk."""
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def connect(self, raw: bytes = b"") -> socket.socket:
        """Return a new connection on which `raw` has been sent, unless it was refused. `close` closes it at last."""
        made = socket.socket()
        self._sockets.append(made)
        made.settimeout(30)
        made.bind((self.source, 0))
        with suppress(ConnectionError):
            made.connect(("127.0.0.1", self.port))
            made.sendall(raw)
        return made

    def poll(self) -> bytes:
        """Return the bytes of a long poll that waits for its whole time."""
        return f"GET {self.target.poll} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    def open_waited(self, number: int) -> None:
        """Open so many more cohorts at an intermediary, for long polls of their own."""
        while len(self.waited) < number:
            name = f"waited{len(self.waited)}"
            self.target.open(self._client, name)
            self.waited.append(name)

    def upload(self, size: int) -> bytes:
        """Return the head of an upload of `size` bytes that any caller may send."""
        head = f"POST {self.target.upload} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {size}\r\n\r\n".encode()

    def hang_up(self) -> None:
        """Close all connections of `connect`."""
        while self._sockets:  # threads may still connect
            self._sockets.pop().close()

    def close(self) -> None:
        """Close all connections, the honest client's too."""
        self.hang_up()
        for client in self._clients:
            client.close()

    def counted(self, status: int) -> int:
        """Return how many requests the service has answered with this status."""
        wanted = [line for line in self._metrics("distrust_requests_total") if f'"{status}"' in line]
        return int(sum(float(line.rpartition(" ")[2]) for line in wanted))

    def _metrics(self, name: str) -> list[str]:
        lines = httpx.get(f"http://127.0.0.1:{self.inside}/metrics", timeout=60).text.splitlines()
        return [line for line in lines if line.startswith(name)]

    def prepare(self) -> None:
        """Create the cohort or run that attackers name, serve honest work, and store the resident bytes in `fresh`."""
        self.target.open(self._client, "target")
        self.honest_seconds(5)
        self.fresh = self.memory()

    def open(self, name: str, clients: int = CLIENTS) -> Cohort:
        """Open a cohort of sealed records at a shuffler, and return it."""
        cohort = SERVER.sealed(name=name, clients=clients)
        self._client.put(f"/v1/cohorts/{address(name)}", content=cohort.model_dump_json()).raise_for_status()
        return cohort

    def honest_seconds(self, times: int = 7, connections: int = 1) -> float:
        """Play `times` pieces of honest work on each connection. Return the mean seconds of waiting for one piece.

        connections  MOST_HONEST at most, all at once.
        """

        def waited(client: Timed) -> float:
            began = client.seconds
            for _ in range(times):
                self.target.play(client, f"honest{next(self._names)}")()
            return (client.seconds - began) / times

        with ThreadPoolExecutor(connections) as pool:
            return fmean(pool.map(waited, self._clients[:connections]))


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment variables of a service that starts in `folder`: any port, an operator's token."""
    (folder / "token").write_text(TOKEN)
    own = {
        "DISTRUST_PORT": "0",
        "DISTRUST_OPERATOR_TOKEN_FILE": str(folder / "token"),
        "PYTHONPATH": str(Path.cwd() / "src"),
    }
    return {**os.environ, **own, **variables}


def begin(party: str, folder: Path, command: Sequence[str] = (), **variables: str) -> "subprocess.Popen[bytes]":
    """Start `python -m distrust.PARTY`, or another command. Its standard error replaces `PARTY.log`."""
    with (folder / f"{party}.log").open("wb") as log:
        chosen = list(command) or [sys.executable, "-m", f"distrust.{party}"]
        return subprocess.Popen(chosen, cwd=folder, env=environment(folder, **variables), stderr=log)


@contextmanager
def attacked(party: str, folder: Path, command: Sequence[str] = (), **variables: str) -> Iterator[Attacked]:
    """Yield a service that listens. It is killed at the end."""
    process = begin(party, folder, command, **variables)
    log = folder / f"{party}.log"
    try:
        until(lambda: b'"listening"' in log.read_bytes() or process.poll() is not None, START_SECONDS)
        (listening,) = (line for line in log.read_bytes().splitlines() if b'"listening"' in line)
        port = json.loads(listening)["port"]
        service = Attacked(process, port, log, TARGETS[party], port)
        until(lambda: _answers(service), START_SECONDS)
        try:
            yield service
        finally:
            service.close()
    finally:
        process.kill()
        process.wait()


def refusal(party: str, folder: Path, **variables: str) -> tuple[int, str]:
    """Return the exit code and the standard error of a service that does not start."""
    process = begin(party, folder, **variables)
    try:
        code = process.wait(START_SECONDS)
    finally:
        process.kill()
        process.wait()
    return code, (folder / f"{party}.log").read_text("utf-8")


def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until the condition is true. Raises AssertionError when `seconds` are over."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)


def closed(connection: socket.socket) -> bool:
    """Return True if the service has closed a connection. Reads and drops what it sent before."""
    connection.settimeout(0.01)
    try:
        while connection.recv(65_536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def _status(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _answers(service: Attacked) -> bool:
    try:
        return httpx.get(f"{service.url}/healthz").is_success
    except httpx.TransportError:
        return False
