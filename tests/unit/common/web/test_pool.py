"""The pool of connections: whole answers however they arrive, no answer to another request, no connection too many."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from distrust.common.web.client import Pool

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, list[bytes]], Awaitable[None]]

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Service:
    """A listener whose connections are served by `talk`; `requests` has the heads of all requests."""

    def __init__(self, talk: Talk, tls: ssl.SSLContext | None = None) -> None:
        self._talk, self._tls = talk, tls
        self.requests: list[bytes] = []
        self.connections = self.now = self.peak = 0

    async def __aenter__(self) -> "Service":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections, self.now = self.connections + 1, self.now + 1
        self.peak = max(self.peak, self.now)
        try:
            await self._talk(reader, writer, self.requests)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.now -= 1
            writer.close()


def answering(*parts: bytes, close: bool = False, pause: float = 0.0) -> Talk:
    """Answer every request with these parts, one write each."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[bytes]) -> None:
        while True:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
            if close:
                return

    return talk


def converse(
    talk: Talk, calls: int = 1, *, most: int = 4, seconds: float = 5.0, at_once: bool = False
) -> tuple[list[httpx.Response | BaseException], Service]:
    """Make calls, one after the other or at once. Return their answers or errors, and the service."""

    async def call() -> tuple[list[httpx.Response | BaseException], Service]:
        pool, answers = Pool(most, seconds), []
        async with Service(talk) as service:
            requests = [httpx.Request("GET", f"{service.url}/{number}") for number in range(calls)]
            made = [pool.handle_async_request(request) for request in requests]
            if at_once:
                answers = list(await asyncio.gather(*made, return_exceptions=True))
            else:
                for one in made:
                    answers += await asyncio.gather(one, return_exceptions=True)
            await pool.aclose()
        return answers, service

    return asyncio.run(call())


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"
EARLY_HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n", HELLO


@pytest.mark.parametrize(
    ("parts", "close", "connections"),
    [
        pytest.param((HELLO,), False, 1, id="at-once"),
        pytest.param(tuple(HELLO[i : i + 1] for i in range(len(HELLO))), False, 1, id="byte-by-byte"),
        pytest.param(CHUNKED, False, 1, id="chunked"),
        pytest.param(EARLY_HINT, False, 1, id="after-a-hint"),
        pytest.param((HELLO.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"),), True, 3, id="closed-after-each"),
        pytest.param(UNTIL_CLOSED, True, 3, id="until-closed"),
    ],
)
def test_an_answer_is_whole_however_it_arrives_and_open_connections_are_used_again(
    parts: tuple[bytes, ...], close: bool, connections: int
) -> None:
    answers, service = converse(answering(*parts, close=close), calls=3)
    assert [isinstance(one, httpx.Response) and one.content for one in answers] == [b"hello"] * 3
    assert service.connections == connections
    assert [head.split()[1] for head in service.requests] == [b"/0", b"/1", b"/2"]


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        pytest.param((), httpx.ReadError, id="closed-without-an-answer"),
        pytest.param((HELLO[:-1],), httpx.RemoteProtocolError, id="closed-before-the-end"),
        pytest.param((CHUNKED[0], CHUNKED[1]), httpx.RemoteProtocolError, id="closed-between-chunks"),
        pytest.param((b"SSH-2.0-x\r\n\r\n",), httpx.RemoteProtocolError, id="no-http"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(parts: tuple[bytes, ...], error: type[Exception]) -> None:
    answers, _ = converse(answering(*parts, close=True))
    assert isinstance(answers[0], error)


def test_an_answer_that_does_not_come_is_given_up_and_a_slow_one_is_not() -> None:
    answers, service = converse(answering(), calls=2, seconds=0.1)
    assert all(isinstance(one, httpx.ReadTimeout) for one in answers)
    assert service.connections == 2  # an answer that comes late must not be taken for that of the next request
    answers, _ = converse(answering(*(HELLO[i : i + 6] for i in range(0, len(HELLO), 6)), pause=0.05), seconds=0.2)
    assert isinstance(answers[0], httpx.Response)
    assert answers[0].content == b"hello"


def test_bytes_that_were_not_asked_for_end_the_connection() -> None:
    answers, service = converse(answering(HELLO + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nlie"), calls=3)
    assert [isinstance(one, httpx.Response) and one.content for one in answers] == [b"hello"] * 3
    assert service.connections == 3


def test_no_more_connections_are_open_than_allowed() -> None:
    answers, service = converse(answering(HELLO, pause=0.01), calls=20, most=3, at_once=True)
    assert [isinstance(one, httpx.Response) and one.content for one in answers] == [b"hello"] * 20
    assert service.peak == service.connections == 3
    assert len(set(service.requests)) == 20


def test_an_idle_connection_to_one_service_gives_way_to_another_service() -> None:
    async def call() -> list[int]:
        pool = Pool(1, 5.0)
        async with Service(answering(HELLO)) as one, Service(answering(HELLO)) as other:
            for service in (one, one, other, one):
                await pool.handle_async_request(httpx.Request("GET", service.url))
            await pool.aclose()
            return [one.connections, other.connections]

    assert asyncio.run(call()) == [2, 1]


def test_the_connection_of_a_caller_that_is_cancelled_is_not_used_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[bytes]) -> None:
        while True:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            await asyncio.sleep(0.05 if len(requests) == 1 else 0)
            path = requests[-1].split()[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))

    async def call() -> bytes:
        pool = Pool(1, 5.0)
        async with Service(talk) as service:
            first = asyncio.create_task(pool.handle_async_request(httpx.Request("GET", f"{service.url}/first")))
            while not service.requests:
                await asyncio.sleep(0.001)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            second = await pool.handle_async_request(httpx.Request("GET", f"{service.url}/second"))
            await pool.aclose()
            return second.content

    assert asyncio.run(call()) == b"/second"


def test_a_service_that_is_not_there_is_an_error() -> None:
    async def call(url: str) -> None:
        await Pool(1, 5.0).handle_async_request(httpx.Request("GET", url))

    with pytest.raises(httpx.ConnectError):
        asyncio.run(call("http://127.0.0.1:1/"))
    with pytest.raises(httpx.UnsupportedProtocol, match="ftp"):
        asyncio.run(call("ftp://127.0.0.1/"))


@pytest.mark.parametrize("trusted", [True, False])
def test_a_service_over_tls_must_have_a_certificate_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, trusted: bool
) -> None:
    key, name = Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(hours=1))
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    file = tmp_path / "service.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + builder.sign(key, None).public_bytes(serialization.Encoding.PEM))
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(file)
    if trusted:
        monkeypatch.setattr(httpx, "create_ssl_context", lambda **_: ssl.create_default_context(cafile=str(file)))

    async def call() -> bytes:
        pool = Pool(1, 5.0)
        async with Service(answering(HELLO), own) as service:
            try:
                return (await pool.handle_async_request(httpx.Request("GET", service.url))).content
            finally:
                await pool.aclose()

    if trusted:
        assert asyncio.run(call()) == b"hello"
    else:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            asyncio.run(call())
