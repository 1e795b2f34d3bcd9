"""Tests over sockets that requests go out as they are meant, and that what comes back ends in an answer or an error.

Tests of `Http` without sockets are in test_client.
"""

import asyncio
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress

import pytest

from distrust.common.errors import ProtocolError, TooSmall, Unavailable
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.protocol.web.problems import render
from distrust.common.wire import Message

QUICK = Patience(first=0.001, longest=0.002, total=5)
ONCE = Patience(total=0.0, answer=5.0)


class Hello(Message):
    number: int


class Long(Message):
    text: str


def answer(body: bytes, status: str = "200 OK", *lines: bytes) -> bytes:
    head = [f"HTTP/1.1 {status}".encode(), *lines, f"Content-Length: {len(body)}".encode()]
    return b"\r\n".join([*head, b"", body])


OK = answer(b'{"number":2}')


class Service:
    """Gives these answers one by one, the last one repeatedly; notes each request, and how many connections came.

    closing  closes the connection after each answer, without saying so.
    """

    def __init__(self, *answers: bytes, closing: bool = False) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.serving = set[asyncio.Task[None] | None]()
        self._answers, self._closing = answers, closing

    @property
    def head(self) -> list[bytes]:
        """The lines of the last request's head."""
        return self.heads[-1].split(b"\r\n")[:-2]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.serving.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0))
                writer.write(self._answers[min(len(self.heads), len(self._answers)) - 1])
                await writer.drain()
                if self._closing:
                    break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def talk(service: Service, call: Callable[[Http, str], Awaitable[object]], patience: Patience = QUICK) -> Http:
    """Let `call` use an `Http` and the service's address without http://, and return the `Http`."""
    http = Http(patience)  # before a loop runs, as a service makes its own

    async def whole() -> None:
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        async with server, http:
            await call(http, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ends = [task for task in service.serving if task]
        assert not ends or not (await asyncio.wait(ends, timeout=5))[1]

    asyncio.run(whole())
    return http


def get(http: Http, place: str) -> Awaitable[Hello]:
    return http.peer(f"http://{place}", "sesame").get("/v1/x", Hello)


def test_a_request_has_the_headers_it_needs_and_the_query_as_it_was_given() -> None:
    service = Service(OK)

    async def call(http: Http, place: str) -> None:
        peer = http.peer(f"http://{place}/here%2Fthere/", "sesame")
        params = {"after": 3, "wait": 0.5, "slots": "0-4,7"}
        assert await peer.get("/v1/runs/a..b_c-1", Hello, params) == Hello(number=2)
        line, *others = service.head
        assert line == b"GET /here%2Fthere/v1/runs/a..b_c-1?after=3&wait=0.5&slots=0-4%2C7 HTTP/1.1"
        host = f"Host: {place}".encode()
        assert sorted(others) == [b"Accept-Encoding: identity", b"Authorization: Bearer sesame", host]
        assert await peer.put("/v1/x", Hello(number=1), Hello) == Hello(number=2)
        assert service.bodies[-1] == b'{"number":1}'
        assert {b"Content-Type: application/json", b"Content-Length: 12"} <= set(service.head)

    talk(service, call)
    assert service.connections == 1


@pytest.mark.parametrize(
    ("user", "secret"),
    [("me:s3%2Fcr%40t", "me:s3/cr@t"), ("me", "me:"), (":s3cret", ":s3cret"), ("m%C3%BC:s@1", "mü:s@1")],
)
def test_the_user_of_an_address_is_basic_authentication_in_place_of_a_token(user: str, secret: str) -> None:
    service = Service(OK)
    talk(service, lambda http, place: get(http, f"{user}@{place}"))
    sent = [line.partition(b": ")[2] for line in service.head if line.startswith(b"Authorization")]
    assert sent == [b"Basic " + b64encode(secret.encode())]
    assert user.encode() not in service.heads[0]


def test_bodies_and_header_lines_are_counted_both_ways() -> None:
    service = Service(OK)
    http = talk(service, lambda http, place: http.peer(f"http://{place}").post("/v1/x", Hello(number=1), Hello))
    assert http.sent == sum(len(line) + 2 for line in service.head[1:]) + len(service.bodies[0])
    assert http.received == len(b"Content-Length: 12\r\n") + len(b'{"number":2}')


def test_redirects_are_not_followed_cookies_not_kept_and_proxies_of_the_environment_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    service = Service(answer(b"", "302 Found", b"Location: /v1/y", b"Set-Cookie: a=b; \xff=\x01"), OK)

    async def call(http: Http, place: str) -> None:
        with pytest.raises(ProtocolError, match="HTTP 302, and no problem document"):
            await get(http, place)
        await get(http, place)

    talk(service, call)
    assert [head.split(b" ")[1] for head in service.heads] == [b"/v1/x"] * 2
    assert b"cookie" not in service.heads[1].lower()


NO_HTTP = {
    "nothing": (b"", "ServerDisconnectedError"),
    "no-head": (b"220 mail.example ESMTP\r\n\r\n", r"no HTTP: Bad status line: .*b'220 mail\.example ESMTP'"),
    "tls": (b"\x15\x03\x03\x00\x02\x02\x50", "no HTTP: "),
    "half-a-head": (b"HTTP/1.1 200 OK\r\nContent-", "Disconnected"),
    "long-line": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", "no HTTP: Got more than 8190 bytes"),
    "many-lines": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2000 + b"\r\n", "no HTTP: Too many headers"),
    "two-lengths": (answer(b"{}", "200 OK", b"Content-Length: 7"), "no HTTP: Duplicate Content-Length"),
    "short-body": (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "ClientPayloadError.*received 2 of 99 bytes"),
    "short-chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}", "ClientPayloadError"),
    "no-chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", "no HTTP: Invalid character"),
}


@pytest.mark.parametrize("name", NO_HTTP)
def test_an_answer_that_is_cut_off_or_no_http_is_told_in_a_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.common.protocol.web.tls.PROBE_SECONDS", 0.1)  # the service waits for a request's head
    raw, told = NO_HTTP[name]

    async def call(http: Http, place: str) -> None:
        with pytest.raises(Unavailable, match=rf"(?i)^GET http://me:\*\*\*@{place}/v1/x: .*{told}") as caught:
            await get(http, f"me:s3cret@{place}")
        assert "s3cret" not in caught.value.detail
        assert "\n" not in caught.value.detail

    talk(Service(raw, closing=True), call, ONCE)


def test_an_answer_that_is_cut_off_is_asked_for_again() -> None:
    service = Service(NO_HTTP["short-body"][0], b"", OK, closing=True)

    async def call(http: Http, place: str) -> None:
        peer = http.peer(f"http://{place}")
        assert await peer.post("/v1/x", Hello(number=1), Hello) == Hello(number=2)

    talk(service, call)
    assert service.bodies == [b'{"number":1}'] * 3


def test_strange_bytes_in_headers_are_no_trouble() -> None:
    strange = [b"Retry-After: \xb2", b"Content-Type: \xff\x01; charset=\xfe", b"X-\x7e: \x80"]
    service = Service(answer(b"", "503 \xff", *strange), answer(b'{"number":2}', "200 OK", *strange))
    talk(service, get)
    assert len(service.heads) == 2


def test_a_connection_that_was_idle_for_too_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.common.protocol.web.sending.IDLE_SECONDS", 0.5)
    service = Service(OK)

    async def call(http: Http, place: str) -> None:
        await get(http, place)
        before = service.connections
        await asyncio.sleep(0.75)
        await get(http, place)
        assert service.connections == before + 1

    talk(service, call)


def test_a_connection_that_the_service_closed_while_it_idled_is_replaced() -> None:
    service = Service(OK, closing=True)

    async def call(http: Http, place: str) -> None:
        for _ in range(5):
            await http.peer(f"http://{place}").post("/v1/x", Hello(number=1), Hello)

    talk(service, call)
    assert service.connections >= 5


def test_a_large_body_arrives_whole_and_its_refusal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = render(TooSmall(3, 5))
    service = Service(OK, answer(bytes(refusal.body), f"{refusal.status_code} No"))
    text = "x" * 3_000_000

    async def call(http: Http, place: str) -> None:
        await http.peer(f"http://{place}").put("/v1/x", Long(text=text), Hello)
        with pytest.raises(TooSmall):
            await http.peer(f"http://{place}").post("/v1/x", Long(text=text), Hello)

    talk(service, call)
    assert [len(body) for body in service.bodies] == [len(text) + len('{"text":""}')] * 2


STRANGE = [
    "",
    "ftp://h",
    "http://",
    "http://h:99999",
    "http://h:x",
    "http://[::1",
    "http://a\uff0fb",
    f"http://{'ü' * 64}",
]
NO_HOSTS = ["http://a b", "http://x..y", "http://" + "x" * 70, "http://%00", "http://me:s3cret@h\u00e4\u00df.invalid"]


@pytest.mark.parametrize("url", [*STRANGE, *NO_HOSTS])
def test_an_address_at_which_no_service_can_be_is_told(url: str) -> None:
    async def call() -> None:
        async with Http(ONCE) as http:
            await http.peer(url).get("/v1/x", Hello)

    with pytest.raises(Unavailable) as caught:
        asyncio.run(call())
    assert caught.value.detail.startswith("GET ")
    assert ("must be an address such as" in caught.value.detail) == (url in STRANGE)
    assert "s3cret" not in caught.value.detail


def test_a_header_that_cannot_be_sent_is_told_without_it() -> None:
    async def call(http: Http, place: str) -> None:
        with pytest.raises(Unavailable) as caught:
            await http.peer(f"http://{place}", "open\r\nsesame").get("/v1/x", Hello)
        assert "sesame" not in caught.value.detail

    service = Service(OK)
    talk(service, call, ONCE)
    assert service.heads == []


def test_a_host_that_takes_no_connection_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.common.protocol.web.sending.CONNECT_SECONDS", 0.2)
    with ExitStack() as held:
        full = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # they fill its queue, and it drops what comes then
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())

        async def call() -> None:
            async with Http(Patience(total=0.0, answer=30.0)) as http:
                await get(http, f"127.0.0.1:{full.getsockname()[1]}")

        with pytest.raises(Unavailable, match=r"ConnectionTimeoutError"):
            asyncio.run(call())


def test_a_service_that_is_silent_is_given_up_before_the_deadline() -> None:
    class Silent(Service):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.serving.add(asyncio.current_task())
            await reader.read()
            writer.close()

    async def call(_: Http, place: str) -> None:
        async with Http(Patience(total=0.0, answer=30.0), seconds=0.1) as http:
            with pytest.raises(Unavailable, match=r"SocketTimeoutError.*\(1 attempts\)"):
                await get(http, place)

    talk(Silent(), call)
