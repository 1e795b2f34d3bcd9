"""One request under its service's limits: the size and type of its body, and the time that it may take to arrive."""

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from distrust.common.web.observability import known_method
from distrust.common.web.problems import document
from distrust.common.web.settings import ServiceSettings

SMALL = 16 * 1024
"""Bytes of a body that always has room."""

MOST_BODIES = 32
"""Larger bodies at once: each takes up to a quarter of a megabyte beside what is counted, on its way in."""


class Visit:
    """One request on its way in and out.

    bodies  all the bodies that the service has in memory.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServiceSettings, bodies: "Bodies") -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._max_body, self._bodies = settings.max_body, bodies
        self._headers = dict(scope["headers"])
        self._body_seconds = settings.body_seconds
        self._timeout: asyncio.Timeout | None = None
        self.evicted = False
        self.arriving = True  # until the body is whole
        self.method = known_method(scope["method"])
        self.started = time.perf_counter()
        self.received = 0
        self.status = 500  # unless an answer says otherwise

    @property
    def route(self) -> str:
        """The route's template, never the path itself: metrics must not grow with callers' imagination."""
        return getattr(self._scope.get("route"), "path", "(none)")

    @property
    def age(self) -> float:
        """Seconds since the request's head was there."""
        return time.perf_counter() - self.started

    def refusal(self) -> Response | None:
        """Return an answer from the headers alone, before a byte of the body is read; None: go on."""
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body:
            return document("urn:distrust:problem:too-large", "too-large", 413, self._too_large())
        has_body = length != b"0" or b"transfer-encoding" in self._headers
        if has_body and self.method not in ("POST", "PUT"):
            return document("urn:distrust:problem:too-large", "too-large", 413, f"{self.method} takes no body here")
        kind = self._headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if has_body and kind != b"application/json":
            code = "unsupported-media-type"
            return document(f"urn:distrust:problem:{code}", code, 415, "the body must be application/json")
        return None

    async def receive(self) -> Message:
        """Return the next message. Raises HTTPException for a body that is too large, too slow, or one too many."""
        if not self.arriving:
            return await self._receive()
        left = self._body_seconds - self.age
        try:
            async with asyncio.timeout(left) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            left = 0.0
        finally:
            self._timeout = None
        if self.evicted or left <= 0:
            self.arriving = False
            raise _one_too_many() if self.evicted else HTTPException(408, f"no whole body in {self._body_seconds:g} s")
        if message["type"] == "http.request":
            await self._count(len(message.get("body", b"")))
            self.arriving = message.get("more_body", False)
        return message

    async def _count(self, size: int) -> None:
        self.received += size
        if self.received > self._max_body:  # a chunked body has no length to refuse beforehand
            raise HTTPException(413, self._too_large())
        if self.received > SMALL and not await self._bodies.add(self, size):
            raise _one_too_many()

    def evict(self) -> None:
        """Stop reading the body, as others need its room."""
        self.evicted = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    def close(self) -> None:
        """The request is over: its body is not in memory any more."""
        self._bodies.remove(self)

    def _too_large(self) -> str:
        return f"the body is larger than {self._max_body} bytes"


def _one_too_many() -> HTTPException:
    return HTTPException(503, "too many bodies at once, and this one is slow: try again")


class Bodies:
    """The request bodies that a service has in memory, up to `most` bytes and MOST_BODIES. Small ones are not counted.

    Where room is wanting, bodies that arrive wait for those that are worked on. Where none is worked on, the slowest of
    those that arrive is given up, so that the others arrive.
    """

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._held: dict[Visit, int] = {}
        self._room = asyncio.Event()

    async def add(self, visit: Visit, size: int) -> bool:
        """Count bytes that arrived, once there is room for them. Return False when the body must be given up."""
        if visit not in self._held:
            await self._let_in(visit)
        while self._total + size > self._most and not visit.evicted:
            arriving = [one for one in self._held if one.arriving]
            if len(arriving) < len(self._held):
                self._room.clear()
                await self._room.wait()
                continue
            self._give_up(arriving)
        if visit.evicted:
            return False
        self._held[visit] += size
        self._total += size
        return True

    async def _let_in(self, visit: Visit) -> None:
        """Find a place among the bodies."""
        while len(self._held) >= MOST_BODIES:
            arriving = [one for one in self._held if one.arriving]
            if arriving:
                self._give_up(arriving)
                break
            self._room.clear()
            await self._room.wait()
        self._held[visit] = 0

    def _give_up(self, arriving: list[Visit]) -> None:
        slowest = min(arriving, key=lambda one: one.received / one.age)
        self.remove(slowest)
        slowest.evict()

    def remove(self, visit: Visit) -> None:
        """The request is over, or its body was given up."""
        self._total -= self._held.pop(visit, 0)
        self._room.set()
