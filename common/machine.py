"""What a party takes from its machine: the time, and threads for linear algebra."""

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

from threadpoolctl import threadpool_limits


class Clock(Protocol):
    """Seconds since the epoch."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's wall clock: deadlines are persisted, so they must outlive a process."""

    def now(self) -> float:
        return time.time()


class ManualClock:
    """A clock for tests: it moves only by `advance`."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


def one_thread() -> AbstractContextManager[Any]:
    """Use one thread for linear algebra inside a `with` block.

    Matrices are small here, and more threads only wait for each other. Every program that plays a run takes one thread,
    in process or over services, so that its numbers do not depend on the number of cores.
    """
    limits: AbstractContextManager[Any] = threadpool_limits(1)  # untyped
    return limits
