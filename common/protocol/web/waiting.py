"""Serves long polls: requests that wait for a change, their time limit, their caller's end or the service's.

Requests with the same topic and question share a watch, so the cost does not grow with their number. A watch looks up
the answer as it begins and after every notification; every `LOOK_SECONDS` it looks in any case, as the confirmation of
a commit may be lost, and its notification with it. A deadline passes without one: while requests wait, the service
sweeps up what is due, for all its topics at once, every `SWEEP_SECONDS`, and notifies.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import structlog
from fastapi import Depends, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from distrust.common.errors import ProtocolError, describe_error

T = TypeVar("T")

_log = structlog.get_logger("distrust.web")

SWEEP_SECONDS = 0.25  # between two sweeps: how late a passed deadline may be noticed
LOOK_SECONDS = 15.0  # between two looks of a watch without a notification
LONGEST_WAIT = 60.0  # seconds that one request may wait
JOIN_SECONDS = 0.02
"""Between two looks of a watch for requests that joined it: many requests cost 50 looks a second, not one each."""

MOST_WAITS = 512  # requests that wait at once in one service, unless its settings say otherwise


class ChangeNotifier:
    """Wakes waiting requests when a service commits a change. Thread-safe; topics are cohorts or runs.

    most   requests that wait at once. One more, and the request that has waited longest is answered at once.
    sweep  settles what is due in the service, and notifies; called in a thread. The service sets it.
    """

    sweep: Callable[[], None] | None = None

    def __init__(self, most: int = MOST_WAITS) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str, dict[Hashable, _Watch[Any]]] = {}
        self._waits: dict[_Wait[Any], None] = {}  # the longest one first
        self._most = most
        self._closed = False
        self._sweeping: asyncio.Task[None] | None = None

    def notify(self, topic: str) -> None:
        """Let every watch of this topic look again."""
        with self._lock:
            watches = list(self._watches.get(topic, {}).values())
        for watch in watches:
            watch.wake()

    @property
    def closed(self) -> bool:
        """Return whether the service stops: streams end."""
        return self._closed

    def close(self) -> None:
        """Answer every waiting request with its newest value, and let none wait any more. Thread-safe."""
        self._closed = True
        for wait in list(self._waits):
            wait.loop.call_soon_threadsafe(wait.end)

    async def until(
        self,
        topic: str,
        look: Callable[[], T],
        ready: Callable[[T], bool],
        seconds: float,
        *,
        question: Hashable = None,
        known: Callable[[], T | None] = lambda: None,
        left: Awaitable[None] | None = None,
    ) -> T:
        """Call `look` in a thread. Return its value as soon as it is `ready`, or when `seconds` are over.

        known     called on the event loop before each look, so it must not wait. Its value stands for that of `look`;
                  None: it knows none.
        question  requests with the same topic and question share their looks, so `look` must not depend on the
                  request. None: a look of this request's own.
        left      completes when the caller hangs up. Raises ClientDisconnect then.
        """
        if seconds <= 0 or self._closed:
            return await _look(look, known)
        wait = _Wait(ready)
        watch = self._enter(topic, object() if question is None else question, _Watch(look, known), wait)
        timer = wait.loop.call_later(min(seconds, LONGEST_WAIT), wait.end)
        listener = None if left is None else asyncio.ensure_future(left)
        if listener is not None:
            listener.add_done_callback(wait.leave)
        try:
            return await wait.answer
        finally:
            timer.cancel()
            if listener is not None:
                listener.cancel()
            self._leave(topic, watch, wait)

    def _enter(self, topic: str, question: Hashable, fresh: "_Watch[T]", wait: "_Wait[T]") -> "_Watch[T]":
        with self._lock:
            watch = self._watches.setdefault(topic, {}).setdefault(question, fresh)
        self._waits[wait] = None
        if len(self._waits) > self._most:
            longest = next(iter(self._waits))
            del self._waits[longest]
            longest.end()
        watch.add(wait)
        if self.sweep is not None and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = wait.loop.create_task(self._sweep_on(self.sweep))
        return watch

    async def _sweep_on(self, sweep: Callable[[], None]) -> None:
        """Sweep as long as a request waits."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if not self._waits or self._closed:
                return
            try:
                await run_in_threadpool(sweep)
            except Exception as error:  # noqa: BLE001  the next sweep tries again
                known = isinstance(error, ProtocolError)
                _log.warning("sweep_delayed", why=describe_error(error), exc_info=not known)
                for topic in list(self._watches):
                    self.notify(topic)  # requests that wait meet it, too

    def _leave(self, topic: str, watch: "_Watch[T]", wait: "_Wait[T]") -> None:
        self._waits.pop(wait, None)
        watch.waits.discard(wait)
        if watch.waits:
            return
        watch.wake()  # its task ends
        with self._lock:
            left = {question: other for question, other in self._watches.get(topic, {}).items() if other is not watch}
            self._watches[topic] = left
            if not left:
                del self._watches[topic]


class _Wait(Generic[T]):
    """One waiting request."""

    def __init__(self, ready: Callable[[T], bool]) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[T] = self.loop.create_future()
        self._ready = ready
        self._seen: list[T] = []  # the newest value
        self._over = False

    def offer(self, value: T) -> None:
        """Take a value that was looked up after this request began to wait."""
        if self.answer.done():
            return
        self._seen = [value]
        try:
            enough = self._over or self._ready(value)
        except Exception as error:  # noqa: BLE001  the request that asked gets it
            self.fail(error)
            return
        if enough:
            self.answer.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def end(self) -> None:
        """Answer now: with the newest value, or with the first one when none has come yet."""
        self._over = True
        if self._seen and not self.answer.done():
            self.answer.set_result(self._seen[0])

    def leave(self, listener: "asyncio.Future[None]") -> None:
        """Stop waiting: the caller hung up, or sent something that cannot be read."""
        if not listener.cancelled():
            self.fail(listener.exception() or ClientDisconnect())


class _Watch(Generic[T]):
    """One question: a task that looks, as long as a request waits for the answer."""

    def __init__(self, look: Callable[[], T], known: Callable[[], T | None]) -> None:
        self.waits: set[_Wait[T]] = set()
        self._look, self._known = look, known
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None  # the next look, for requests that joined
        self._looked = 0.0  # when the last look began

    def add(self, wait: _Wait[T]) -> None:
        """Let a request wait. It gets no value that was looked up before it came."""
        self.waits.add(wait)
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif self._soon is None:
            self._soon = self._loop.call_at(self._looked + JOIN_SECONDS, self._changed.set)

    def wake(self) -> None:
        """Look again, or end when no request waits. Thread-safe."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._look_again)

    def _look_again(self) -> None:
        """Offer what is known at once. The task looks for those that still wait, and ends without any."""
        with suppress(Exception):  # the task meets it, too, and has the requests fail
            value = self._known() if self.waits else None
            if value is not None:
                for wait in list(self.waits):
                    wait.offer(value)
        if not self.waits or not all(wait.answer.done() for wait in self.waits):
            self._changed.set()

    async def _run(self) -> None:
        while self.waits:
            self._changed.clear()  # before looking: a notification from now on is not lost
            if self._soon is not None:
                self._soon.cancel()
                self._soon = None
            waiting, self._looked = list(self.waits), self._loop.time()
            try:
                value = await _look(self._look, self._known)
            except Exception as error:  # noqa: BLE001  every request that asked gets it
                for wait in waiting:
                    wait.fail(error)
            else:
                for wait in waiting:
                    wait.offer(value)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()


async def _look(look: Callable[[], T], known: Callable[[], T | None]) -> T:
    value = known()
    return await run_in_threadpool(look) if value is None else value


@dataclass(frozen=True, slots=True)
class Waiting:
    """A service's notifier for one request: its waits end when the caller hangs up."""

    changes: ChangeNotifier
    receive: Receive

    async def until(
        self,
        topic: str,
        look: Callable[[], T],
        ready: Callable[[T], bool],
        seconds: float,
        *,
        question: Hashable = None,
        known: Callable[[], T | None] = lambda: None,
    ) -> T:
        """Return the value as `ChangeNotifier.until` does. Raises ClientDisconnect when the caller hangs up."""
        left = self._left() if seconds > 0 and not self.changes.closed else None
        return await self.changes.until(topic, look, ready, seconds, question=question, known=known, left=left)

    async def _left(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


async def waiting(request: Request) -> Waiting:
    """Return the notifier of the request's service, as a FastAPI dependency.

    Asynchronous, as all of ours: FastAPI would run a plain function in a thread, which costs more than the function.
    """
    changes: ChangeNotifier = request.app.state.notifier
    return Waiting(changes, request.receive)


NotifierDep = Annotated[Waiting, Depends(waiting)]
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for an answer that says more")]
