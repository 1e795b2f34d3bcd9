"""One of our services as a process of its own: started with a log, watched, stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from distrust.common.errors import Unavailable
from distrust.lab.stack.data_dir import private, writing

GRACE_SECONDS = 10.0
LAST_LINES = 12


class ServiceProcess:
    """`python -m MODULE ARGUMENTS…` in a session of its own, so that the terminal's Ctrl-C reaches only us.

    name         what people call it in messages.
    environment  variables added to ours.
    log          file that takes its output, appended to.
    """

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        python = [
            sys.executable,
            "-P",
        ]  # without the working folder on the path: what lies there is not run in our place
        me = [*python, "-m", "distrust.lab.stack.parent_death", str(os.getpid()), *python, "-m", *arguments]
        with writing(log), open(log, "ab", opener=private) as output:
            self._begin = output.tell()  # what is there already, an earlier process said
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
        """Raise Unavailable, with its last words, when the service is gone."""
        code = self.process.poll()
        if code is not None:
            raise Unavailable(f"the {self.name} ended with status {code}; the last lines of {self.log}:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines that it said."""
        said = self.log.read_bytes()[self._begin :] if self.log.exists() else b""
        lines = said.decode("utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (nothing)"

    def ask_to_stop(self) -> None:
        """SIGTERM: finish what is in flight and leave."""
        self._signal(signal.SIGTERM)

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Wait for the end after `ask_to_stop`; kill what has not ended within `grace` seconds."""
        self.ask_to_stop()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """SIGKILL for the whole session, and reap."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def stop_all(services: list[ServiceProcess]) -> None:
    """Stop them together; whatever interrupts us meanwhile, none is left behind."""
    try:
        for service in services:
            service.ask_to_stop()
        for service in services:
            service.stop()
    except BaseException:
        for service in services:
            service.kill()
        raise
