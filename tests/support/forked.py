"""Starts services and fleets as forks of one process that has imported them, which saves a second of CPU each.

They are real processes with sockets, logs and signals of their own. They do not start Python and do not import again.
`tests/system/test_services_start.py`, `test_runs_that_fail.py` and `test_command_line.py` start them as users do.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from distrust.lab.stack.data_dir import private, writing
from distrust.lab.stack.process import ServiceProcess

IMPORTED = ("distrust.server.app", "distrust.shuffler.app", "distrust.aggregator.app", "distrust.client.settings")
"""The modules that the parties' `__main__` import. They import the heavy libraries."""


class Forked(ServiceProcess):
    """A `ServiceProcess` that is forked. Output, session and signals are as in its base class."""

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with writing(log), open(log, "ab", opener=private) as output:
            self._begin = output.tell()
        self.process = Process(arguments, {**os.environ, **environment}, log)


class Process(subprocess.Popen[bytes]):
    """A process of the fork server, with the members of `Popen` that `ServiceProcess` uses."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:  # no command to start
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(IMPORTED))
        self._forked = context.Process(target=_run, args=(arguments, environment, str(log)))
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


def _run(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """Run a module as `python -m MODULE ARGUMENTS…` does, in a session of its own, with its output in `log`."""
    os.setsid()
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
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


@contextmanager
def forking() -> Iterator[None]:
    """Make stacks and fleets start forked processes inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distrust.lab.stack.stack.ServiceProcess", Forked)
        patch.setattr("distrust.lab.run.fleet_processes.ServiceProcess", Forked)
        yield
