"""Runs the local stack: server, shuffler and aggregator as processes on loopback, while a `with` block lasts."""

import errno
import os
import re
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Self

from distrust.common.errors import BadParameter, Unavailable
from distrust.common.extensions import Extension
from distrust.common.inputs import without_passwords
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.participants import Participants
from distrust.lab.stack.process import ServiceProcess, stop_all

LOOPBACK = "127.0.0.1"
BASE_PORT = 8701  # of the server; shuffler and aggregator have the next two
NAMES = ("server", "shuffler", "aggregator")
START_SECONDS = 60.0  # for all services to be ready; then the start fails
ANSWER_SECONDS = 2.0  # in which a service that starts says something; then it is asked again

_PLAIN = {"DISTRUST_TLS_CERT": "", "DISTRUST_TLS_KEY": "", "DISTRUST_CLIENT_CA": ""}
"""Variables of TLS, unset: services of a stack speak plain HTTP on loopback, whatever their starter's environment."""

_ON_LOOPBACK = re.compile(rf"http://{re.escape(LOOPBACK)}:\d{{1,5}}", re.ASCII)


def choose_ports(base: int, names: list[str]) -> dict[str, int]:
    """Return a port for each name: `base`, `base + 1`, …; free ones that the system picks when `base` is 0.

    All are bound at the same time, so that they differ. Raises Unavailable, naming the port, when one is taken.
    """
    with ExitStack() as held:
        return {name: _probe(held, base and base + index, name) for index, name in enumerate(names)}


def _probe(held: ExitStack, port: int, name: str) -> int:
    """Return the number of a port that is free, and stays bound while `held` is open. Raises Unavailable."""
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, port))
    except OSError as error:
        why = "in use" if error.errno == errno.EADDRINUSE else (error.strerror or "not ours to use")
        raise Unavailable(
            f"port {port} for the {name} is {why}: stop what listens there, or let --port-base 0 pick free ports"
        ) from error
    bound: int = probe.getsockname()[1]
    return bound


@dataclass(frozen=True, slots=True)
class Urls:
    """Addresses of the three services, and the tokens of the operator, the inspector and the fleets.

    participation  the token by which fleets of this machine take part. None: they use the operator's.
    An intermediary that is not called has an empty address. Tokens and passwords are not shown.
    """

    server: str
    shuffler: str
    aggregator: str
    token: str | None = field(default=None, repr=False)
    inspector: str | None = field(default=None, repr=False)
    participation: str | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return the addresses, without their passwords."""
        shown = (f"{name}={without_passwords(getattr(self, name))!r}" for name in NAMES)
        return f"{type(self).__name__}({', '.join(shown)})"


class Stack:
    """Starts the services in order, waits until all are ready, and stops them when the block ends, also by an error.

    data_dir  databases, logs, token; held for as long as the stack runs.
    base      first of three ports; 0 picks free ones.
    extensions  the user's own classes that the server may import.
    Raises  Unavailable: a busy port, a folder in use or not writable, a service that does not start.
    """

    def __init__(self, data_dir: DataDir, base: int = BASE_PORT, extensions: Sequence[Extension] = ()) -> None:
        self.data_dir, self._base, self._extensions = data_dir, base, extensions
        self._services: list[ServiceProcess] = []
        self._ports: dict[str, int] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.data_dir.make()
            self.data_dir.check_space()
            undo.enter_context(self.data_dir.held())
            self.data_dir.stack_file.unlink(missing_ok=True)  # of a stack that was killed outright
            make_tokens(self.data_dir)
            self._ports = choose_ports(self._base, list(NAMES))
            undo.callback(lambda: stop_all(self._services))
            for name in NAMES:
                self._services.append(self._start(name))
            self._wait_until_ready()
            self._write_addresses()
            undo.callback(self.data_dir.stack_file.unlink, missing_ok=True)
            self._cleanup = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    @property
    def urls(self) -> Urls:
        """Return addresses and tokens of the running services."""
        return _urls(self.data_dir, {name: self._url(name) for name in NAMES})

    def check(self) -> None:
        """Raise Unavailable when the disk is full, or, with the end of its log, when a service has died."""
        self.data_dir.check_space()
        for service in self._services:
            service.check()

    def restart(self, name: str) -> None:
        """Kill one service and start it again on its port and its database."""
        index = NAMES.index(name)
        self._services[index].kill()
        self._services[index] = self._start(name)
        self._wait_until_ready()

    def _url(self, name: str) -> str:
        return f"http://{LOOPBACK}:{self._ports[name]}"

    def _start(self, name: str) -> ServiceProcess:
        return ServiceProcess(name, [f"distrust.{name}"], self._environment(name), self.data_dir.log(name))

    def _environment(self, name: str) -> dict[str, str]:
        own = _PLAIN | {
            "DISTRUST_HOST": LOOPBACK,
            "DISTRUST_PORT": str(self._ports[name]),
            "DISTRUST_DATABASE": self.data_dir.database(name),
            "DISTRUST_OPERATOR_TOKEN_FILE": str(self.data_dir.token_file.resolve()),
            "DISTRUST_LOG_LEVEL": os.environ.get("DISTRUST_LOG_LEVEL", "info"),
        }
        if name != "server":
            inspector = {"DISTRUST_INSPECTOR_TOKEN_FILE": str(self.data_dir.inspector_file.resolve())}
            pages = f"{self._url('server')},http://localhost:{self._ports['server']}"
            return {**own, **inspector, "DISTRUST_DASHBOARD_ORIGIN": pages}
        own |= {"DISTRUST_CALCULATOR": "open"}  # the stack serves this machine only
        own |= {"DISTRUST_PARTICIPANTS_FILE": str(self.data_dir.participants_file.resolve())}
        own |= extensions_variable(self._extensions)
        return {**own, **{f"DISTRUST_{peer.upper()}_URL": self._url(peer) for peer in ("shuffler", "aggregator")}}

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not all(is_ready(self._ports[name]) for name in NAMES):
            self.check()
            if time.monotonic() > end:
                raise Unavailable(f"not ready within {START_SECONDS:g} s; see {self.data_dir.path / 'logs'}")
            time.sleep(0.05)

    def _write_addresses(self) -> None:
        services = {name: {"url": self._url(name), "pid": self._services[i].pid} for i, name in enumerate(NAMES)}
        token_file = str(self.data_dir.token_file)
        self.data_dir.write_stack({"services": services, "token_file": token_file, "pid": os.getpid()})


def make_tokens(data_dir: DataDir) -> None:
    """Make the tokens of the operator, the inspector and the folder's fleets, once. Raises BadParameter."""
    data_dir.make_tokens()
    Participants(data_dir).keep_fleet()


def extensions_variable(extensions: Sequence[Extension]) -> dict[str, str]:
    """Return the variable that lets a child process import these `module:Name`, beside this process's own."""
    named = [extension.name for extension in extensions if ":" in extension.name]
    before = os.environ.get("DISTRUST_EXTENSIONS", "")
    return {"DISTRUST_EXTENSIONS": ",".join(filter(None, [before, *named]))} if named else {}


def running_stack(data_dir: DataDir) -> Urls | None:
    """Return the addresses of the stack that another process runs on this folder; None if there is none.

    Raises BadParameter for a folder that another user made, for a damaged stack.json, and for addresses that are not on
    loopback: the tokens of this folder are sent to them.
    """
    if not data_dir.in_use():
        return None
    match data_dir.stack():
        case {
            "services": {"server": {"url": str()}, "shuffler": {"url": str()}, "aggregator": {"url": str()}} as named
        }:
            where = {name: named[name]["url"] for name in NAMES}
            if all(map(_ON_LOOPBACK.fullmatch, where.values())):
                return _urls(data_dir, where)
    needs = f"its {data_dir.stack_file.name} must hold three addresses such as http://{LOOPBACK}:{BASE_PORT}"
    raise BadParameter("data", str(data_dir.path), f"{needs}; stop what holds the folder, or give another one")


def _urls(data_dir: DataDir, where: dict[str, str]) -> Urls:
    fleet = data_dir.fleet_token() if data_dir.fleet_file.exists() else None  # a stack of before has none
    return Urls(**where, token=data_dir.token(), inspector=data_dir.inspector_token(), participation=fleet)


def is_ready(port: int) -> bool:
    """Ask the service at a port of loopback whether it is ready, and return its answer; False for none."""
    connection = HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
