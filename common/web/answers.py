"""Bounds the long answers that a service holds for callers who do not read them.

An answer is in memory from the end of its request's work until its caller has taken it. A caller that asks much and
reads nothing costs a service what it asks for. So all long answers together have `MOST_ANSWERS` bytes at most: beyond
it, those are cut off of which nothing was taken for the longest time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Message, Send

PIECE = 64 * 1024
"""Bytes that are handed to a connection at once. It takes no others before most of them have left. A shorter answer is
not counted."""

MOST_ANSWERS = 64 * 2**20
"""Bytes of long answers in memory: sixteen of the longest ones that clients are given (`MOST_INBOXES`, as text)."""


class AnswerCutError(Exception):
    """The caller took nothing of its answer for long, and the room was needed."""


class _Held:
    """One answer that is on its way. `left`: its bytes that are in memory."""

    def __init__(self, size: int, timeout: asyncio.Timeout) -> None:
        self.left, self._timeout = size, timeout

    def cut(self) -> None:
        self.left = 0
        self._timeout.reschedule(asyncio.get_running_loop().time())


class Answers:
    """The long answers that a service has in memory, up to `most` bytes; one alone may have more."""

    def __init__(self, most: int = MOST_ANSWERS) -> None:
        self._most = most
        self._held: dict[_Held, None] = {}  # the one of which nothing was taken for the longest time first

    async def send(self, message: Message, send: Send) -> None:
        """Hand a response's body to the connection, piece by piece. Raises AnswerCutError for one that is cut off."""
        body, more = message.get("body", b""), message.get("more_body", False)
        if len(body) <= PIECE:
            await send(message)
            return
        async with self._holding(len(body)) as held:
            for start in range(0, len(body), PIECE):
                last = start + PIECE >= len(body)
                await send({**message, "body": body[start : start + PIECE], "more_body": more or not last})
                self._held[held] = self._held.pop(held)  # to the end: its caller reads

    @asynccontextmanager
    async def _holding(self, size: int) -> AsyncIterator[_Held]:
        try:
            async with asyncio.timeout(None) as timeout:
                held = _Held(size, timeout)
                self._held[held] = None
                self._make_room()
                try:
                    yield held
                finally:
                    del self._held[held]
        except TimeoutError as error:
            raise AnswerCutError from error

    def _make_room(self) -> None:
        """Cut answers off until the rest fits. The newest one, which is the last, always stays."""
        total = sum(held.left for held in self._held)
        for held in list(self._held)[:-1]:
            if total <= self._most:
                return
            total -= held.left
            held.cut()
