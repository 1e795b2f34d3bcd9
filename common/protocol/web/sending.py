"""Sends one request at a time by a pool of connections: the only module that knows aiohttp.

`Http` beside it repeats what it sends and bounds what it reads. It needs a `Sender`; tests have one that calls an
app of the same process.
"""

import asyncio
import io
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote, urlencode, urlsplit

import aiohttp
from aiohttp.http import HttpProcessingError
from yarl import URL

from distrust.common.errors import BadParameter, Unavailable
from distrust.common.inputs import NO_ADDRESS, check_address, without_passwords
from distrust.common.protocol.web.tls import SPEAKS_TLS, caller_context, speaks_tls, tls_fault
from distrust.common.wire import cut_reason

Params = Mapping[str, str | int | float]

IDLE_SECONDS = 12.0
"""Seconds that an unused connection stays open. Services and their proxies close one after 15 seconds."""

CONNECT_SECONDS = 10.0
"""Seconds to open a connection, its host's name looked up."""

_LARGE = 2**20  # bytes of a body that is sent in pieces, between which other tasks have a turn
_LEGAL = "%:/?[]@!$&'()*+,;=~"  # signs of addresses, beside those that `quote` leaves alone


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `url` is in ASCII, and holds no user; `body` is None for a request without one."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


class NoAnswer(Exception):
    """No answer came, or none that is whole and HTTP. Its text may hold an address with a password.

    final  whether the same call would fail again.
    """

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class Arrival(Protocol):
    """An answer whose head has arrived.

    headers  as they came, with names in upper or lower case.
    sent     bytes of the request's header lines.
    """

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    @property
    def sent(self) -> int: ...

    async def read(self) -> bytes:
        """Return bytes of the body as they came; none at its end. Raises NoAnswer when it is cut off."""

    async def aclose(self) -> None:
        """End the call. Its connection is used again if the body was read to its end, and closed otherwise."""


class Sender(Protocol):
    """Sends requests: by a pool of connections, or to an app of the same process in tests."""

    async def send(self, call: Request) -> Arrival:
        """Return the answer as soon as its head has arrived. Raises NoAnswer."""

    async def aclose(self) -> None: ...


class Pool:
    """Sends by aiohttp: no redirects, no cookies, no proxies of the environment, bodies as they came.

    An address with https:// is called by TLS, with the files that the environment names (`CALLER_FILES`).

    seconds  for which a service may be silent.
    """

    def __init__(self, seconds: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=seconds)
        self._session: aiohttp.ClientSession | None = None  # it is made at the first call: it needs a running loop
        self._heard: set[URL] = set()  # origins that have answered

    async def send(self, call: Request) -> Arrival:
        session = self._session = self._session or self._open()
        # aiohttp warns of bytes that are longer: it would write them without a turn for other tasks.
        body = io.BytesIO(call.body) if call.body and len(call.body) > _LARGE else call.body
        url = URL(call.url, encoded=True)  # is sent as it stands
        tls = caller_context() if url.scheme == "https" else True
        try:
            answer = await session.request(
                call.method, url, headers=call.headers, data=body, allow_redirects=False, ssl=tls
            )
        except _FAILURES as error:
            fault = tls_fault(error) or await self._mistaken(error, url)
            raise NoAnswer(fault or _reason(error), final=fault is not None) from error
        self._heard.add(url.origin())
        return _Arrived(answer)

    async def _mistaken(self, error: Exception, url: URL) -> str | None:
        """Return what is wrong with an http:// address at which TLS is spoken; None for any other address.

        Such a service closes the connection without a word, as one does that is stopped.
        """
        closed = isinstance(error, _CLOSED) and not isinstance(error, aiohttp.ClientConnectorError)
        if url.scheme != "http" or not closed or url.origin() in self._heard or not url.host or not url.port:
            return None
        return SPEAKS_TLS if await asyncio.to_thread(speaks_tls, url.host, url.port) else None

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),  # Http has the limit
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "User-Agent"),  # a service reads neither
            trust_env=False,
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Arrived:
    """An answer of aiohttp."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.status, self.headers = answer.status, answer.raw_headers
        self.sent = header_bytes(answer.request_info.headers.items())

    async def read(self) -> bytes:
        try:
            return await self._answer.content.readany()
        except _FAILURES as error:
            raise NoAnswer(_reason(error)) from error

    async def aclose(self) -> None:
        self._answer.close()  # leaves a connection alone that went back to the pool at the body's end


_FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)
"""Errors of aiohttp, of its parser, of sockets, and for headers or hosts that cannot be encoded."""

_CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
"""Errors of a connection that the service has closed."""


def _reason(error: Exception) -> str:
    """Return an error as one line. It may quote what a service sent."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, aiohttp.ClientResponseError):  # the parser's: aiohttp makes no error of a status here
        name, text = "no HTTP:", error.message
    if isinstance(error, aiohttp.ClientConnectorError):
        text = text.replace(f" ssl:{error.ssl}", "")  # an object's address
    words = (word for word in text.split() if word != "^")  # the parser points at what it quotes
    return cut_reason(" ".join((name, *words)))


def build_request(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, params: Params | None
) -> Request:
    """Return a request: the address in ASCII, its user as basic authentication, which goes before a token.

    Raises Unavailable for an address that is none.
    """
    try:
        parts = urlsplit(check_address("url", url))
        user, _, host = parts.netloc.rpartition("@")
        host = host if host.isascii() else host.encode("idna").decode()
    except (BadParameter, ValueError) as error:  # a name that no IDNA has
        raise Unavailable(f"{method} {without_passwords(url)}: {NO_ADDRESS}") from error
    name, _, password = user.partition(":")
    sent = {**headers, "Accept-Encoding": "identity"}
    if name or password:
        secret = b64encode(f"{unquote(name)}:{unquote(password)}".encode())
        sent["Authorization"] = f"Basic {secret.decode()}"
    query = urlencode(params) if params else quote(parts.query, _LEGAL)
    where = f"{parts.scheme}://{host}{quote(parts.path or '/', _LEGAL)}"
    return Request(method, f"{where}?{query}" if query else where, sent, body)


def header_bytes(headers: Iterable[tuple[bytes | str, bytes | str]]) -> int:
    """Return the bytes of header lines, their colons, spaces and line ends counted."""
    return sum(len(name) + len(value) + 4 for name, value in headers)
