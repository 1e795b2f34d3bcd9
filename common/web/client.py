"""Calls to the services: one pool of connections a process, retries until answered, problems raised as our errors.

Every call of ours may be repeated (creation is idempotent, messages are counted once), so every call is retried.

A round of one client is six calls in a row, so `Pool` sends httpx's requests over h11 and asyncio itself: a call
costs a fifth of one through httpx.AsyncClient, whose redirects, cookies and proxies no call of ours needs.
"""

import asyncio
import secrets
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import h11
import httpx
from pydantic import BaseModel, ValidationError

from distrust.common.errors import BadMessage, Unavailable
from distrust.common.messages.explain import first
from distrust.common.web.problems import from_document

A = TypeVar("A", bound=BaseModel)
Params = Mapping[str, str | int | float]

IDLE_SECONDS = 12.0
"""Seconds that an unused connection stays open. Services close one after 15 seconds, and make new ones queue."""

CONNECT_SECONDS = 10.0
"""Seconds in which a connection must be made."""

_chance = secrets.SystemRandom()


@dataclass(frozen=True, slots=True)
class Patience:
    """Rule for retries: pauses double from `first` to `longest` seconds, with jitter, until `total` are over."""

    first: float = 1.0
    longest: float = 30.0
    total: float = 300.0

    def pause(self, attempt: int) -> float:
        """Return the seconds before the retry after `attempt` failures (1, 2, …), between half and the whole step."""
        step = min(self.longest, self.first * 2 ** min(attempt - 1, 30))
        return _chance.uniform(step / 2, step)


class Http:
    """One pool of connections for a whole process; `peer` names a service behind it. Counts bytes both ways."""

    def __init__(
        self,
        patience: Patience = Patience(),
        *,
        seconds: float = 90.0,
        connections: int = 16,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._transport = Pool(connections, seconds) if transport is None else transport
        self.patience = patience
        self.sent = 0  # bytes of requests: bodies and header lines
        self.received = 0  # bytes of answers: bodies and header lines

    def peer(self, url: str, token: str | None = None) -> "Peer":
        """Return the service at `url`. `token` is the operator's, for routes that need one."""
        return Peer(self, url.rstrip("/"), {"Authorization": f"Bearer {token}"} if token else {})

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, params: Params | None
    ) -> bytes:
        """Return the body of a 2xx answer. Raises the problem's ProtocolError, or Unavailable when patience is over."""
        end = time.monotonic() + self.patience.total
        attempt = 0
        while True:
            attempt += 1
            answer, why = await self._try(method, url, headers, content, params)
            if answer is not None and not _passing(answer.status_code):
                return _body_or_raise(answer)
            pause = max(self.patience.pause(attempt), _retry_after(answer))
            if time.monotonic() + pause > end:
                raise Unavailable(f"{method} {url}: {why} ({attempt} attempts)")
            await asyncio.sleep(pause)

    async def _try(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, params: Params | None
    ) -> tuple[httpx.Response | None, str]:
        request = httpx.Request(method, url, headers=headers, content=content, params=params)
        try:
            answer = await self._transport.handle_async_request(request)
            body = await answer.aread()
        except httpx.TransportError as error:
            return None, f"{type(error).__name__} {error}".strip()
        self.sent += _header_bytes(request.headers) + len(content or b"")
        self.received += _header_bytes(answer.headers) + len(body)
        return answer, f"HTTP {answer.status_code}" if answer.is_success else _detail(answer)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(frozen=True, slots=True)
class Peer:
    """One service: messages in, messages out. `path` starts with a slash."""

    http: Http
    url: str
    headers: Mapping[str, str]

    async def get(self, path: str, answer: type[A], params: Params | None = None) -> A:
        return self._read(answer, await self.http.request("GET", self.url + path, self.headers, None, params))

    async def post(self, path: str, body: BaseModel, answer: type[A]) -> A:
        return self._read(answer, await self._send("POST", path, body))

    async def put(self, path: str, body: BaseModel, answer: type[A]) -> A:
        return self._read(answer, await self._send("PUT", path, body))

    async def delete(self, path: str, answer: type[A]) -> A:
        return self._read(answer, await self.http.request("DELETE", self.url + path, self.headers, None, None))

    async def _send(self, method: str, path: str, body: BaseModel) -> bytes:
        headers = {**self.headers, "Content-Type": "application/json"}
        content = body.model_dump_json().encode()
        return await self.http.request(method, self.url + path, headers, content, None)

    def _read(self, answer: type[A], raw: bytes) -> A:
        try:
            return answer.model_validate_json(raw)
        except ValidationError as error:
            unreadable = f"{self.url} answered something that is no {answer.__name__}"
            raise BadMessage(f"{unreadable}: {first(error)}") from error


_Place = tuple[str, str, int]
"""Scheme, host and port of a service."""


class Pool(httpx.AsyncBaseTransport):
    """Connections to services, at most `most` at once: a request beyond waits for one. Reads whole answers.

    seconds  without a byte either way after which an answer is given up.
    Raises   httpx.TransportError. The request may have arrived all the same.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._room = asyncio.Semaphore(most)
        self._idle: list[tuple[_Place, _Connection]] = []  # the one that was used last is the last
        self._open: set[_Connection] = set()
        self._tls: ssl.SSLContext | None = None  # made for the first https address: that takes 30 ms

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer with its whole body."""
        url = request.url
        place = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        async with self._room:
            connection = self._used(place) or await self._connected(place)
            try:
                answer = await connection.exchange(request, self._seconds)
            except BaseException:
                connection.abort()
                raise
            if connection.usable:
                self._idle.append((place, connection))
            return answer

    async def aclose(self) -> None:
        """Close all connections. Requests that wait for an answer raise httpx.ReadError."""
        for one in list(self._open):
            one.abort()
        self._idle = []
        await asyncio.sleep(0)  # the loop closes sockets in its next turn

    def _used(self, place: _Place) -> "_Connection | None":
        """Return a connection that an earlier request left open. Close those that were idle for too long."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        for _, one in self._idle:
            if one.heard < oldest:
                one.abort()
        self._idle = [(at, one) for at, one in self._idle if one.usable]
        index = next((i for i in reversed(range(len(self._idle))) if self._idle[i][0] == place), None)
        return None if index is None else self._idle.pop(index)[1]

    async def _connected(self, place: _Place) -> "_Connection":
        """Return a new connection. Where `most` are open, an idle one to another service is closed for it."""
        scheme, host, port = place
        if scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"{scheme!r}: a service's address begins with http:// or https://")
        if scheme == "https" and self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        if len(self._open) >= self._most and self._idle:
            self._idle.pop(0)[1].abort()
        tls = self._tls if scheme == "https" else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(lambda: _Connection(self._open), host, port, ssl=tls)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection in {CONNECT_SECONDS:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection


_NO_MORE = (h11.NEED_DATA, h11.PAUSED)


class _Connection(asyncio.Protocol):
    """One connection. It carries one request at a time.

    open_   all connections of its pool; this one is among them until it is closed.
    usable  whether another request may be sent over it.
    heard   the loop's time of the last byte, either way.
    """

    def __init__(self, open_: set["_Connection"]) -> None:
        self._loop, self._open = asyncio.get_running_loop(), open_
        self._http = h11.Connection(h11.CLIENT)
        self._answer: asyncio.Future[httpx.Response] | None = None
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self.usable, self.heard = True, self._loop.time()

    async def exchange(self, request: httpx.Request, seconds: float) -> httpx.Response:
        """Send a request. Return its answer. After an error the caller must abort the connection."""
        whole = self._request_bytes(request)
        self._answer, self.usable, self.heard = self._loop.create_future(), False, self._loop.time()
        self._wire.write(whole)
        self._timer = self._loop.call_later(seconds, self._look, seconds)
        try:
            return await self._answer
        finally:
            self._timer.cancel()
            self._answer = None

    def abort(self) -> None:
        """Close at once."""
        self.usable = False
        self._wire.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        if self._answer is None:
            self.abort()  # bytes that no request asked for
        else:
            self._read(data)

    def eof_received(self) -> None:
        """Read the end of an answer without a length. The loop closes the connection."""
        self.usable = False
        if self._answer is not None and self._head is not None:
            self._read(b"")

    def resume_writing(self) -> None:
        self.heard = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._open.discard(self)
        self._fail(httpx.ReadError(str(exc or "the service closed the connection before its answer was whole")))

    def _request_bytes(self, request: httpx.Request) -> bytes:
        target, headers, content = request.url.raw_path, request.headers.raw, request.content
        try:
            head = h11.Request(method=request.method, target=target, headers=headers)
            events = [head, *([h11.Data(data=content)] if content else []), h11.EndOfMessage()]
            return b"".join(self._http.send(event) or b"" for event in events)
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error

    def _read(self, data: bytes) -> None:
        """Take what arrived, and answer once it is whole."""
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in _NO_MORE:
                if isinstance(event, h11.Response):
                    self._head = event
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._finish()
                    return
                elif isinstance(event, h11.ConnectionClosed):
                    return  # before the answer was whole, or even began
        except h11.RemoteProtocolError as error:
            self._fail(httpx.RemoteProtocolError(str(error)))

    def _finish(self) -> None:
        head, body = self._head, bytes(self._body)
        assert head is not None
        self._head, self._body = None, bytearray()
        if self._http.their_state is h11.DONE and self._http.our_state is h11.DONE and not self._http.trailing_data[0]:
            self._http.start_next_cycle()
            self.usable = not self._wire.is_closing()
        else:
            self._wire.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(httpx.Response(head.status_code, headers=list(head.headers), content=body))

    def _look(self, seconds: float) -> None:
        """Give the answer up if nothing was heard for so long."""
        left = self.heard + seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look, seconds)
        else:
            self._fail(httpx.ReadTimeout(f"no answer in {seconds:g} s"))

    def _fail(self, error: httpx.TransportError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _passing(status: int) -> bool:
    """Return whether a retry may succeed."""
    return status == 429 or status >= 500


def _body_or_raise(answer: httpx.Response) -> bytes:
    if answer.is_success:
        return answer.content
    raise from_document(answer.content, answer.status_code)


def _detail(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code}: {from_document(answer.content, answer.status_code).detail}"


def _retry_after(answer: httpx.Response | None) -> float:
    """Return the seconds that the peer asked us to wait; 0 for a date and every other value."""
    text = answer.headers.get("retry-after", "") if answer is not None else ""
    return float(text) if text.isdigit() else 0.0


def _header_bytes(headers: httpx.Headers) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers.raw)
