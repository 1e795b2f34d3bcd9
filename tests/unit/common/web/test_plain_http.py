"""Calls over plain connections: answers of every framing, connections used again, and each way to fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from distrust.common.web.plain_http import PlainTransport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Service:
    """Answers each request on a connection with the next of `answers`; the last one for ever. None: hang up."""

    def __init__(self, *answers: bytes | None, pause: float = 0.0) -> None:
        self.answers, self.pause = list(answers), pause
        self.requests: list[bytes] = []
        self.connections = self.open = self.most_open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":0"
                )
                self.requests.append(head + await reader.readexactly(int(length.partition(b":")[2])))
                await asyncio.sleep(self.pause)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def standing(service: Service) -> AsyncIterator[str]:
    server = await asyncio.start_server(service, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def request(url: str, content: bytes | None = None, seconds: float = 5.0) -> httpx.Request:
    method = "GET" if content is None else "POST"
    timeout = httpx.Timeout(seconds).as_dict()
    return httpx.Request(method, f"{url}/v1/x", content=content, params={"a": 1}, extensions={"timeout": timeout})


def play(
    service: Service, *contents: bytes | None, seconds: float = 5.0, idle: float = 5.0, most: int = 4
) -> list[bytes]:
    """The answers to these requests, one after another."""

    async def run() -> list[bytes]:
        transport = PlainTransport(most, idle)
        try:
            async with standing(service) as url:
                return [(await transport.handle_async_request(request(url, one, seconds))).content for one in contents]
        finally:
            await transport.aclose()

    return asyncio.run(run())


def test_one_connection_serves_many_calls() -> None:
    service = Service(OK)
    assert play(service, None, b"body", None) == [b"hello"] * 3
    assert service.connections == 1
    assert service.requests[0].startswith(b"GET /v1/x?a=1 HTTP/1.1\r\n")
    assert service.requests[1].startswith(b"POST /v1/x?a=1 HTTP/1.1\r\n")
    assert service.requests[1].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
)
def test_other_framings_are_read(answer: bytes) -> None:
    assert play(Service(answer), None, None) == [b"hello"] * 2


def test_a_connection_that_the_service_ends_is_not_used_again() -> None:
    service = Service(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert play(service, None, None) == [b"hello"] * 2
    assert service.connections == 2


def test_an_idle_connection_is_closed() -> None:
    service = Service(OK)
    assert play(service, None, None, idle=0.0) == [b"hello"] * 2
    assert service.connections == 2


def test_an_answer_that_nothing_asked_for_is_never_taken_for_the_next_one() -> None:
    service = Service(OK + OK, OK.replace(b"hello", b"other"))
    answers = play(service, None, None)
    assert answers == [b"hello", b"other"]
    assert service.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, httpx.TransportError),
        (b"nonsense\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\n", httpx.RemoteProtocolError),
    ],
)
def test_what_is_no_answer_is_a_transport_error(answer: bytes | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        play(Service(answer), None)


def test_a_service_that_answers_nothing_is_given_up() -> None:
    with pytest.raises(httpx.ReadTimeout, match=r"nothing moved for 0\.05 s"):
        play(Service(OK, pause=1.0), None, seconds=0.05)


def test_nothing_listens() -> None:
    async def run() -> None:
        async with standing(Service(OK)) as url:
            free = url
        await PlainTransport(4, 5.0).handle_async_request(request(free))

    with pytest.raises(httpx.ConnectError):
        asyncio.run(run())


def test_no_more_calls_at_once_than_allowed() -> None:
    service = Service(OK, pause=0.01)

    async def run() -> None:
        transport = PlainTransport(2, 5.0)
        async with standing(service) as url:
            await asyncio.gather(*(transport.handle_async_request(request(url)) for _ in range(8)))
        await transport.aclose()

    asyncio.run(run())
    assert (len(service.requests), service.most_open, service.connections) == (8, 2, 2)


def test_a_cancelled_call_ends_its_connection() -> None:
    service = Service(OK, pause=0.05)

    async def run() -> bytes:
        transport = PlainTransport(2, 5.0)
        async with standing(service) as url:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await transport.handle_async_request(request(url))
            answer = await transport.handle_async_request(request(url))
        await transport.aclose()
        return answer.content

    assert asyncio.run(run()) == b"hello"
    assert service.connections == 2


def test_a_large_body_arrives_whole() -> None:
    service, body = Service(OK), bytes(range(256)) * 16_384
    assert play(service, body) == [b"hello"]
    assert service.requests[0].endswith(body)
