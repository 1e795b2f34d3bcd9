"""Long polls: routes that wait until something changes, ends, or the service stops."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")

LOOK_SECONDS = 0.25  # another worker's commit rings no bell here, and a deadline passes silently: so look again
LONGEST_WAIT = 60.0  # seconds that one request may wait


class Doorbell:
    """Services ring it after a commit; waiting requests look again. Thread-safe; topics are cohorts or runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[_Waiter]] = {}
        self._closed = False

    def ring(self, topic: str) -> None:
        """Wake everybody who waits for this topic."""
        with self._lock:
            waiters = list(self._waiting.get(topic, ()))
        for waiter in waiters:
            waiter.wake()

    @property
    def closed(self) -> bool:
        """Whether the service stops: streams end."""
        return self._closed

    def close(self) -> None:
        """Wake everybody, and let nobody wait any more: the service stops."""
        with self._lock:
            self._closed = True
            waiters = [waiter for group in self._waiting.values() for waiter in group]
        for waiter in waiters:
            waiter.wake()

    async def until(self, topic: str, look: Callable[[], T], ready: Callable[[T], bool], seconds: float) -> T:
        """What `look` returns as soon as it is `ready`, or when `seconds` are over; `look` runs in a worker thread."""
        waiter = self._enter(topic)
        end = time.monotonic() + min(seconds, LONGEST_WAIT)
        try:
            while True:
                waiter.event.clear()  # before looking: a ring from now on is not lost
                value = await run_in_threadpool(look)
                left = end - time.monotonic()
                if ready(value) or left <= 0 or self._closed:
                    return value
                await waiter.wait(min(LOOK_SECONDS, left))
        finally:
            self._leave(topic, waiter)

    def _enter(self, topic: str) -> "_Waiter":
        waiter = _Waiter()
        with self._lock:
            self._waiting.setdefault(topic, set()).add(waiter)
        return waiter

    def _leave(self, topic: str, waiter: "_Waiter") -> None:
        with self._lock:
            self._waiting[topic].discard(waiter)
            if not self._waiting[topic]:
                del self._waiting[topic]


class _Waiter:
    """One waiting request: an event of its own event loop."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.event.set)

    async def wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.event.wait(), seconds)
        except TimeoutError:
            return
