"""HTTP/1.1 without TLS between the parties of one machine or network: few layers between a call and its socket.

A run with one client a round makes six calls a round. httpx's own transport takes most of a millisecond of CPU for
each; it serves `https` addresses here.
"""

import asyncio

import h11
import httpx


class PlainTransport(httpx.AsyncBaseTransport):
    """A pool of connections that stay open between calls. Of one event loop.

    most  calls at once; further ones wait. idle: seconds that an unused connection stays open.
    """

    def __init__(self, most: int, idle: float) -> None:
        self._room, self._idle_seconds = asyncio.Semaphore(most), idle
        self._idle: dict[tuple[str, int], list[tuple[float, _Connection]]] = {}
        self._limits = httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=idle)
        self._secure: httpx.AsyncHTTPTransport | None = None  # reads the certificates of the system

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the whole answer. Raises httpx.TransportError."""
        if request.url.scheme != "http":
            if self._secure is None:
                self._secure = httpx.AsyncHTTPTransport(limits=self._limits, trust_env=False)
            return await self._secure.handle_async_request(request)
        timeout = request.extensions.get("timeout", {})
        content = await request.aread()
        place = request.url.host, request.url.port or 80
        async with self._room:
            connection = self._pooled(place) or await _connect(place, timeout.get("connect"))
            try:
                answer = await connection.exchange(request, content, timeout.get("read"))
            except BaseException:
                connection.close()  # what follows on it would answer this request, not the next
                raise
            if connection.reusable():
                self._idle.setdefault(place, []).append((_now(), connection))
            else:
                connection.close()
            return answer

    def _pooled(self, place: tuple[str, int]) -> "_Connection | None":
        """Return the connection that was used last. Close those that were idle for too long."""
        known = self._idle.get(place, [])
        while known and (known[0][0] < _now() - self._idle_seconds or known[0][1].closed):
            known.pop(0)[1].close()
        while known:
            _, connection = known.pop()
            if not connection.closed:
                return connection
        return None

    async def aclose(self) -> None:
        """Close the idle connections."""
        for known in self._idle.values():
            for _, connection in known:
                connection.close()
        self._idle.clear()
        if self._secure is not None:
            await self._secure.aclose()


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _connect(place: tuple[str, int], seconds: float | None) -> "_Connection":
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            _, connection = await loop.create_connection(_Connection, *place)
    except TimeoutError as error:
        raise httpx.ConnectTimeout(f"no connection in {seconds:g} s") from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
    return connection


class _Connection(asyncio.Protocol):
    """One connection: one request at a time, and its answer."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[httpx.Response] | None = None
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._progress = (0.0, 0)  # time of the last byte in, and bytes that were still to be sent
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    async def exchange(self, request: httpx.Request, content: bytes, seconds: float | None) -> httpx.Response:
        """Send a request and wait for its answer. Raises ReadTimeout when nothing moves for so many seconds."""
        assert self._transport is not None
        self._head, self._body = None, bytearray()
        self._answer = self._loop.create_future()
        try:
            head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
            sent = [self._http.send(head)]
            sent += [self._http.send(h11.Data(data=content))] if content else []
            sent.append(self._http.send(h11.EndOfMessage()))
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        self._transport.write(b"".join(part for part in sent if part))
        self._progress = self._loop.time(), self._transport.get_write_buffer_size()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._check_progress, seconds)
        try:
            return await self._answer
        finally:
            self._answer = None
            if self._timer is not None:
                self._timer.cancel()

    def reusable(self) -> bool:
        """Return whether another request can follow, and prepare for it."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if self.closed or not done or self._http.trailing_data[0]:  # more than the answer: nothing asked for it
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read on. Bytes that no request asked for end the connection."""
        if self._answer is None:
            self.close()
            return
        self._progress = self._loop.time(), self._progress[1]
        try:
            self._http.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as error:
            self._fail(httpx.RemoteProtocolError(str(error)))

    def eof_received(self) -> None:
        self.closed = True
        if self._answer is not None:
            self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(httpx.ReadError(str(exc or "the connection was closed")))

    def _read(self) -> None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._finish()
                return
            elif not isinstance(event, h11.InformationalResponse):
                return  # more is to come

    def _finish(self) -> None:
        if self._head is not None and self._answer is not None and not self._answer.done():
            headers = list(self._head.headers)
            self._answer.set_result(httpx.Response(self._head.status_code, headers=headers, content=bytes(self._body)))

    def _fail(self, error: httpx.TransportError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _check_progress(self, seconds: float) -> None:
        """Fail unless a byte came in, or went out, in the last `seconds`; else look again."""
        assert self._transport is not None
        heard, left = self._progress
        now, size = self._loop.time(), self._transport.get_write_buffer_size()
        if size < left:
            heard = now
        self._progress = heard, size
        if now - heard >= seconds:
            self._fail(httpx.ReadTimeout(f"nothing moved for {seconds:g} s"))
        elif self._answer is not None:
            self._timer = self._loop.call_later(heard + seconds - now, self._check_progress, seconds)
