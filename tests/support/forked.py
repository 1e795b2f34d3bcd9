"""Starts services and fleets as forks of one process that has imported them, which saves a second of CPU each.

They are real processes with sockets, logs and signals of their own. They do not start Python and do not import again.
`tests/system/test_services_start.py` and `test_command_line.py` start them as users do.
"""

import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from distrust.lab.stack.data_dir import private, writing
from distrust.lab.stack.process import ServiceProcess
from tests.support.attacks import begin, environment

IMPORTED = (
    "distrust.server.app",
    "distrust.shuffler.app",
    "distrust.aggregator.app",
    "distrust.client.fleet.settings",
    "distrust.common.protocol.web.serve",
    "anyio._backends._asyncio",
    "mpmath",
    "scipy.fft",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.special",
    "uvloop",
)
"""The modules that the parties' `__main__` import, and the libraries that these import when they are first used."""


class Forked(ServiceProcess):
    """A `ServiceProcess` that is forked. Output, session and signals are as in its base class."""

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with writing(log), open(log, "ab", opener=private) as output:
            self._begin = output.tell()
        self.process = Process(arguments, {**os.environ, **environment}, log)


class Process(subprocess.Popen[bytes]):
    """A process of the fork server, with the members of `Popen` that `ServiceProcess` and tests use.

    It has this process's working folder, or `folder`, and umask.
    """

    def __init__(  # no command to start
        self, arguments: list[str], environment: dict[str, str], log: Path, folder: Path | None = None
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(IMPORTED))
        umask = os.umask(0)
        os.umask(umask)
        given = (arguments, environment, str(log.absolute()), str(folder or Path.cwd()), umask)
        self._forked = context.Process(target=_run, args=given)
        self._forked.start()
        assert self._forked.pid is not None
        self.pid = self._forked.pid
        while self._forked.is_alive() and os.getpgid(self.pid) != self.pid:
            time.sleep(0.001)  # until it leads its session, and a signal reaches it

    @property
    def returncode(self) -> int | None:  # type: ignore[override]
        return self._forked.exitcode

    def poll(self) -> int | None:
        return self._forked.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._forked.join(timeout)
        if self._forked.exitcode is None:
            raise subprocess.TimeoutExpired(self._forked.name, timeout or 0.0)
        return self._forked.exitcode

    def __del__(self) -> None:
        """Leave the process to multiprocessing."""


def _run(arguments: list[str], environment: dict[str, str], log: str, folder: str, umask: int) -> None:
    """Run a module as `python -m MODULE ARGUMENTS…` does, in a session of its own, with its output in `log`."""
    os.setsid()
    os.umask(umask)
    os.chdir(folder)
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(arguments)
    added = environment.get("PYTHONPATH", "").split(os.pathsep)
    ends = ("site-packages", "dist-packages")  # a .pth file may name another environment's
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix)) or path.endswith(ends)]
    sys.path[:] = [*filter(None, added), *installed]  # a party does not see the path of the tests
    if any((Path(path) / "sitecustomize.py").exists() for path in filter(None, added)):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")  # as Python's start does
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


@contextmanager
def forking() -> Iterator[None]:
    """Make stacks, fleets and the services of `tests.support.attacks` start forked processes inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distrust.lab.stack.stack.ServiceProcess", Forked)
        patch.setattr("distrust.lab.services.fleet_processes.ServiceProcess", Forked)
        patch.setattr("tests.support.attacks.begin", _begin)
        yield


def _begin(party: str, folder: Path, command: Sequence[str] = (), **variables: str) -> subprocess.Popen[bytes]:
    """Do as `begin`, but fork the party unless another command is named."""
    if command:
        return begin(party, folder, command, **variables)
    log = folder / f"{party}.log"
    log.write_bytes(b"")
    return Process([f"distrust.{party}"], environment(folder, **variables), log, folder)
