"""Time, injected: the system's when deployed, set by hand in tests."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's wall clock: deadlines are persisted, so they must outlive a process."""

    def now(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds
