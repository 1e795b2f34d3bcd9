"""Runs a service or fleet as a process of its own: starts it with a log, watches it, stops it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from distrust.common.errors import Unavailable
from distrust.lab.stack.data_dir import private, writing

GRACE_SECONDS = 10.0  # from SIGTERM to SIGKILL
LAST_LINES = 12  # of a log that an error repeats


class ServiceProcess:
    """`python -m MODULE ARGUMENTS…` in a session of its own, so that the terminal's Ctrl-C reaches only this process.

    name         its name in messages.
    environment  variables added to this process's own.
    log          file that its output is appended to.
    """

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        # -P: without the working folder on the path, so that no module there is run in place of ours
        python = [sys.executable, "-P"]
        me = [*python, "-m", "distrust.lab.stack.parent_death", str(os.getpid()), *python, "-m", *arguments]
        with writing(log), open(log, "ab", opener=private) as output:
            self._begin = output.tell()  # what is there already is an earlier process's
            self.process = subprocess.Popen(
                me,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raise Unavailable, with the end of its log, when the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise Unavailable(f"the {self.name} ended with status {code}; the last lines of {self.log}:\n{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of its output."""
        output = self.log.read_bytes()[self._begin :] if self.log.exists() else b""
        lines = output.decode("utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (nothing)"

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the service finishes what is in flight and ends."""
        self._signal(signal.SIGTERM)

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Wait for the end after `ask_to_stop`; kill what has not ended within `grace` seconds."""
        self.ask_to_stop()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the whole session, and reap it."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def stop_all(services: list[ServiceProcess]) -> None:
    """Stop services together. An interruption meanwhile kills them, so that none is left."""
    try:
        for service in services:
            service.ask_to_stop()
        for service in services:
            service.stop()
    except BaseException:
        for service in services:
            service.kill()
        raise
