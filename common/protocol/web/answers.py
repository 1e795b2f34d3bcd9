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
"""Bytes of long answers in memory, unless the settings say otherwise: eleven of the longest that clients are given."""


class AnswerCutError(Exception):
    """The caller took nothing of its answer for long, and the room was needed."""


class Answers:
    """The long answers that a service has in memory, up to `most` bytes; one alone may have more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[asyncio.Timeout, int] = {}  # bytes; that of which nothing was taken for longest comes first

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
                if held in self._held:  # else it has been cut off meanwhile
                    self._held[held] = self._held.pop(held)  # to the end: its caller reads

    @asynccontextmanager
    async def _holding(self, size: int) -> AsyncIterator[asyncio.Timeout]:
        try:
            async with asyncio.timeout(None) as held:
                self._held[held] = size
                self._make_room()
                try:
                    yield held
                finally:
                    self._held.pop(held, None)
        except TimeoutError as error:
            raise AnswerCutError from error

    def _make_room(self) -> None:
        """Cut answers off until the rest fits. The newest one, which is the last, always stays."""
        while len(self._held) > 1 and sum(self._held.values()) > self._most:
            longest = next(iter(self._held))
            del self._held[longest]
            longest.reschedule(asyncio.get_running_loop().time())
