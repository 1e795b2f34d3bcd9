"""The fleet processes of one run: started together, watched, their reports added up."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from common.errors import Unavailable
from lab.run_file import RunFile
from lab.service import Service
from lab.stack import Urls


class Fleets:
    """`python -m client` as often as the run file says, for as long as a `with` block lasts.

    logs  folder of the fleets' logs.
    """

    def __init__(self, file: RunFile, urls: Urls, logs: Path) -> None:
        self._file, self._urls, self._logs = file, urls, logs
        self._fleets: list[Service] = []
        self._folder = tempfile.TemporaryDirectory(prefix="distrust-fleets-")

    def __enter__(self) -> Self:
        try:
            for number in range(1, self._file.fleet.processes + 1):
                self._fleets.append(self._start(number))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def running(self) -> bool:
        """Whether any fleet is still at work."""
        return any(fleet.process.poll() is None for fleet in self._fleets)

    def check(self) -> None:
        """Raise Unavailable, with its last words, when a fleet has failed; one that is done is fine."""
        for fleet in self._fleets:
            if fleet.process.poll():
                fleet.check()
        if not self.running:
            raise Unavailable("every fleet has ended, and the run has not")
