"""Tests that answers which callers do not read are bounded, and that readers get theirs whole."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
import uvicorn
from fastapi import APIRouter, Response
from starlette.types import Message

from distrust.common.protocol.web.answers import PIECE, AnswerCutError, Answers
from distrust.common.protocol.web.app import make_app
from distrust.common.protocol.web.settings import ServiceSettings
from tests.support.attacks import until

LONG = 10 * PIECE


class Reader:
    """A caller that takes pieces of its answer when it is told to."""

    def __init__(self, held: Answers, size: int = LONG) -> None:
        self.taken, self._go = bytearray(), asyncio.Queue[None]()
        body: Message = {"type": "http.response.body", "body": bytes(size)}
        self.sending = asyncio.create_task(held.send(body, self._take))

    async def _take(self, message: Message) -> None:
        await self._go.get()
        self.taken += message["body"]
        self.whole = not message.get("more_body")

    async def reads(self, pieces: int) -> None:
        for _ in range(pieces):
            self._go.put_nowait(None)
        for _ in range(2 * pieces):
            await asyncio.sleep(0)


def test_a_caller_that_reads_gets_its_answer_whole() -> None:
    async def play() -> None:
        reader = Reader(Answers(LONG), LONG + 1)
        await reader.reads(11)
        await reader.sending
        assert reader.taken == bytes(LONG + 1)
        assert reader.whole

    asyncio.run(play())


def test_beyond_the_room_the_answer_of_which_nothing_was_taken_for_longest_is_cut_off() -> None:
    async def play() -> None:
        held = Answers(2 * LONG)
        slow, stalled = Reader(held), Reader(held)
        await asyncio.sleep(0)
        await slow.reads(1)
        newest = Reader(held)
        with pytest.raises(AnswerCutError):
            await stalled.sending
        for reader, pieces in ((slow, 9), (newest, 10)):
            await reader.reads(pieces)
            await reader.sending
            assert reader.whole

    asyncio.run(play())


def test_one_answer_that_is_longer_than_the_room_is_sent() -> None:
    async def play() -> None:
        reader = Reader(Answers(1))
        await reader.reads(10)
        await reader.sending
        assert len(reader.taken) == LONG

    asyncio.run(play())


def test_a_short_answer_waits_for_nothing_and_is_not_counted() -> None:
    async def play() -> None:
        held = Answers(0)
        for _ in range(3):
            reader = Reader(held, PIECE)
            await reader.reads(1)
            await reader.sending

    asyncio.run(play())


router = APIRouter()


@router.get("/long")
async def long() -> Response:
    return Response(bytes(2**24))


@contextmanager
def served() -> Iterator[int]:
    """Run a service with a long answer in a thread, and yield its port."""
    app = make_app("a service", None, [router], ServiceSettings(max_answers=2**25))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until(lambda: server.started)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def test_a_connection_whose_answer_is_cut_off_is_closed_and_others_get_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over real sockets: callers that ask and do not read, and then one that reads."""
    cut = list[str]()
    note = lambda event, **_: cut.append(event)  # noqa: E731
    monkeypatch.setattr("distrust.common.protocol.web.app._log", SimpleNamespace(warning=note, info=note, error=note))
    question = b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served() as port, ExitStack() as sockets:
        for _ in range(6):
            stalled = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(question)
        until(lambda: cut.count("answer_cut") >= 3)
        reader = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
        reader.sendall(question.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = bytearray()
        while piece := reader.recv(2**16):
            received += piece
        assert len(received) > 2**24
