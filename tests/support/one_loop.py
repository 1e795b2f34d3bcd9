"""An event loop that takes its steps, its threads' work and its time from a test: the same calls give the same run."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from distrust.client.cohort.session import Worker
from tests.support.manual_clock import ManualClock

T = TypeVar("T")
MOST_STEPS = 2000  # of the loop until nothing is ready any more; more of them would be work without end


class InTurn(Worker):
    """An executor whose work is done at once, in the thread that submits it."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  the caller of `result` meets it
            done.set_exception(error)
        return done


class OneLoop:
    """An event loop in which all parties play. It moves when a test says so, and its timers follow a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.time = clock.now  # type: ignore[method-assign]
        self.loop.set_default_executor(InTurn())

    def turn(self, steps: int = MOST_STEPS) -> None:
        """Let every task go on until it waits for time or for a test, or for so many steps of the loop."""
        self.loop.run_until_complete(self._turn(steps))

    async def _turn(self, steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)  # something is ready: the loop never waits in real time
            if not self.loop._ready:  # type: ignore[attr-defined]
                return
        assert steps < MOST_STEPS, "the parties do not come to rest"

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.turn()
        self.loop.close()
