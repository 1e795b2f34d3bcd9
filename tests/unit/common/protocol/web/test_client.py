"""Tests that a call is repeated until it is answered, waits if told to, and raises the service's error."""

import asyncio
import gzip
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import httpx
import pytest
from starlette.responses import Response

from distrust.common.errors import BadMessage, Conflict, ProtocolError, TooSmall, Unavailable
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.protocol.web.problems import document, render
from distrust.common.wire import Message
from tests.support.asgi import OverHttpx

QUICK = Patience(first=0.001, longest=0.002, total=5)


class Hello(Message):
    number: int


Answer = httpx.Response | Exception


def converse(answers: list[Answer], patience: Patience = QUICK) -> tuple[Hello, list[httpx.Request], Http]:
    """Send one POST to a service that gives these answers, the last one repeatedly.

    Return its answer, the requests that it got, and the caller.
    """
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = answers[min(len(requests), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call() -> tuple[Hello, Http]:
        async with Http(patience, sender=OverHttpx(httpx.MockTransport(handle))) as http:
            return await http.peer("http://s/", "sesame").post("/v1/x", Hello(number=1), Hello), http

    hello, http = asyncio.run(call())
    return hello, requests, http


def as_answer(response: Response) -> httpx.Response:
    return httpx.Response(response.status_code, headers=dict(response.headers), content=bytes(response.body))


def ok() -> httpx.Response:
    return httpx.Response(200, json={"number": 2})


def test_a_message_goes_out_and_a_message_comes_back() -> None:
    hello, requests, http = converse([ok()])
    assert hello == Hello(number=2)
    assert (requests[0].url, requests[0].content) == ("http://s/v1/x", b'{"number":1}')
    assert requests[0].headers["authorization"] == "Bearer sesame"
    assert requests[0].headers["content-type"] == "application/json"
    assert http.sent > len(requests[0].content)
    assert http.received >= len(ok().content)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(lambda: httpx.ConnectError("refused"), id="nothing-listens"),
        pytest.param(lambda: httpx.ReadTimeout("slow"), id="no-answer"),
        pytest.param(lambda: httpx.RemoteProtocolError("cut"), id="lost-answer"),
        pytest.param(lambda: httpx.Response(500), id="bug"),
        pytest.param(lambda: httpx.Response(502, text="<html>"), id="proxy"),
        pytest.param(lambda: as_answer(document("urn:x:busy", "busy", 429, "busy")), id="busy"),
    ],
)
def test_passing_trouble_is_waited_out(trouble: Callable[[], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.common.protocol.web.client._retry_after", lambda _: 0.0)
    hello, requests, _ = converse([trouble(), trouble(), ok()])
    assert hello == Hello(number=2)
    assert [request.content for request in requests] == [b'{"number":1}'] * 3


def test_retry_after_is_honoured() -> None:
    started = time.monotonic()
    converse([as_answer(render(Unavailable("not yet"))), ok()])
    assert time.monotonic() - started >= 1


def test_patience_ends_with_the_last_cause() -> None:
    with pytest.raises(Unavailable, match=r"POST http://s/v1/x: HTTP 500: the disk burns \(\d+ attempts\)"):
        converse([as_answer(document("urn:x:y", "y", 500, "the disk burns"))], Patience(0.001, 0.002, 0.05))


@pytest.mark.parametrize("error", [Conflict("differs", cohort="c1"), TooSmall(3, 5)])
def test_a_refusal_is_raised_at_once_as_the_error_that_it_was(error: ProtocolError) -> None:
    with pytest.raises(type(error)) as caught:
        converse([as_answer(render(error))])
    assert (caught.value.detail, caught.value.extra) == (error.detail, error.extra)
    assert vars(caught.value).items() >= error.extra.items()


def test_a_refusal_that_is_no_problem_document_is_still_an_error() -> None:
    with pytest.raises(ProtocolError, match="HTTP 404, and no problem document"):
        converse([httpx.Response(404, text="<html>")])


def test_an_answer_that_is_compressed_or_too_long_is_not_read_to_its_end() -> None:
    """A gzip of a megabyte may unpack to a gigabyte. Of an endless answer the reader takes what it may."""
    asked, taken = [], []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            taken.append(2**20)
            yield bytes(2**20)

    async def read(answer: httpx.Response) -> None:
        transport = httpx.MockTransport(lambda request: asked.append(request) or answer)
        async with Http(QUICK, most=3 * 10**6, sender=OverHttpx(transport)) as http:
            await http.peer("http://me:s3cret@s").get("/v1/x", Hello)

    packed = httpx.Response(200, content=gzip.compress(b" " * 10**6), headers={"content-ENCODING": "gzip"})
    with pytest.raises(BadMessage, match=r"^GET http://me:\*\*\*@s/v1/x: the answer is compressed"):
        asyncio.run(read(packed))
    with pytest.raises(BadMessage, match=r"x: the answer has more than 3,000,000 bytes$"):
        asyncio.run(read(httpx.Response(500, content=endless())))
    assert len(taken) == 3
    assert [request.headers["accept-encoding"] for request in asked] == ["identity"] * 2


def dripping(first: bytes, pause: float) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return a service that sends `first`, and then a byte every `pause` seconds without end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError, asyncio.CancelledError):  # the caller hangs up, or the test ends
            writer.write(first)
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(pause)
        writer.transport.abort()

    return serve


DRIPS = [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"]


@pytest.mark.parametrize("first", DRIPS, ids=["headers", "body"])
def test_a_service_that_sends_a_byte_now_and_then_does_not_hold_its_caller(first: bytes) -> None:
    """The one connection goes from call to call. A call has what is left of 0.2 seconds, at least 0.1, and its wait.

    Time that this process loses between two lines counts, too: hence the ranges of what is stated and measured.
    """

    async def call(http: Http, url: str, wait: float) -> tuple[str, float]:
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            await http.peer(url).get("/v1/x", Hello, {"wait": wait})
        return caught.value.detail, time.monotonic() - began

    async def calls() -> list[tuple[str, float]]:
        server = await asyncio.start_server(dripping(first, 0.01), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Http(Patience(0.001, 0.002, total=0.2, answer=0.1), connections=1) as http:
            return list(await asyncio.gather(*(call(http, url, wait) for wait in (0.5, 0.0, 0.0))))

    (long, polled), (short, _), (_, queued) = asyncio.run(calls())
    assert re.search(r"no whole answer in 0\.(6\d*|7) seconds \(1 attempts\)$", long)
    assert re.search(r"no whole answer in 0\.(1\d*|2) seconds \(1 attempts\)$", short)  # waits in the queue are free
    assert polled > 0.59
    assert queued > 0.59 + 0.09 + 0.09


def test_an_answer_that_comes_fast_enough_is_read_to_its_end_after_its_deadline() -> None:
    async def answer() -> AsyncIterator[bytes]:
        for _ in range(6):
            yield b" " * 2**22  # four more seconds each
            await asyncio.sleep(0.1)
        yield b'{"number": 3}'

    async def read() -> Hello:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=answer()))
        async with Http(Patience(0.001, 0.002, total=0.5, answer=0.1), sender=OverHttpx(transport)) as http:
            return await http.peer("http://s").get("/v1/x", Hello)

    assert asyncio.run(read()) == Hello(number=3)


def test_an_answer_that_is_another_message_is_refused() -> None:
    with pytest.raises(BadMessage, match="http://s answered something that is no Hello"):
        converse([httpx.Response(200, json={"number": "2"})])


def test_pauses_double_up_to_the_longest_with_jitter() -> None:
    patience = Patience(first=1, longest=30)
    for attempt, step in [(1, 1), (2, 2), (5, 16), (6, 30), (10**9, 30)]:
        pauses = {patience.pause(attempt) for _ in range(50)}
        assert step / 2 <= min(pauses) <= max(pauses) <= step
        assert len(pauses) > 1


def test_a_service_as_a_traceback_shows_it_has_no_token() -> None:
    async def shown() -> str:
        async with Http(QUICK) as http:
            return repr(http.peer("http://s/", "sesame"))

    text = asyncio.run(shown())
    assert "http://s" in text
    assert "sesame" not in text
