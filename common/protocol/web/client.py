"""Calls to the services: one pool of connections a process, retries until answered, problems raised as our errors.

Every call of ours may be repeated (creation is idempotent, messages are counted once), so every call is retried.
The module imports no FastAPI, which takes 0.2 seconds of CPU and which a command or a fleet has no use for.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from distrust.common.errors import BadMessage, ProtocolError, Unavailable
from distrust.common.explain import first
from distrust.common.inputs import without_passwords
from distrust.common.protocol.web.sending import (
    Arrival,
    NoAnswer,
    Params,
    Pool,
    Request,
    Sender,
    build_request,
    header_bytes,
)
from distrust.common.wire import cut_reason, read_message

A = TypeVar("A", bound=BaseModel)

MOST_BYTES = 256 * 2**20
"""Bytes of the longest answer that is read: a roster of a million clients has 85 MB."""

LEAST_RATE = 2**20
"""Bytes a second. What a call sends and receives prolongs its deadline by as long as it takes at this rate."""

_chance = secrets.SystemRandom()


@dataclass(frozen=True, slots=True)
class Patience:
    """Rule for retries: pauses double from `first` to `longest` seconds, with jitter, until `total` are over.

    The last byte of an answer must come before `total` is over, too: a service that sends a byte now and then does not
    hold its caller. Not counted are seconds for which a long poll asks, those of `LEAST_RATE`, and those in which all
    connections were in use.

    answer  seconds that one answer may take in any case, when less of `total` is left: a busy service is not away.
    """

    first: float = 1.0
    longest: float = 30.0
    total: float = 300.0
    answer: float = 30.0

    def pause(self, attempt: int) -> float:
        """Return the seconds before the retry after `attempt` failures (1, 2, …), between half and the whole step."""
        step = min(self.longest, self.first * 2 ** min(attempt - 1, 30))
        return _chance.uniform(step / 2, step)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class Http:
    """One pool of connections for a whole process; `peer` names a service behind it. Counts bytes both ways.

    most  bytes of the longest answer that is read. A compressed answer is refused: it may unpack to any size.
    """

    def __init__(
        self,
        patience: Patience = Patience(),
        *,
        seconds: float = 90.0,
        connections: int = 16,
        most: int = MOST_BYTES,
        sender: Sender | None = None,
    ) -> None:
        self._sender = sender or Pool(seconds)
        self.patience, self._most = patience, most
        self._free = asyncio.Semaphore(connections)  # a call that waits for a connection has no deadline yet
        self.sent = 0  # bytes of requests: bodies and header lines
        self.received = 0  # bytes of answers: bodies and header lines

    def peer(self, url: str, token: str | None = None) -> "Peer":
        """Return the service at `url`. `token` is the operator's, for routes that need one."""
        return Peer(self, url.rstrip("/"), {"Authorization": f"Bearer {token}"} if token else {})

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, params: Params | None
    ) -> bytes:
        """Return the body of a 2xx answer.

        Raises the problem's ProtocolError, Unavailable when patience is over or TLS fails, BadMessage for an answer
        that is too long or compressed. `wait` of `params` is what a long poll asks for, in seconds.
        """
        call, shown = build_request(method, url, headers, content, params), f"{method} {without_passwords(url)}"
        end = time.monotonic() + self.patience.total
        extra = float((params or {}).get("wait", 0)) + len(content or b"") / LEAST_RATE
        attempt = 0
        while True:
            attempt += 1
            queued = time.monotonic()
            async with self._free:
                end += time.monotonic() - queued
                seconds = max(end - time.monotonic(), self.patience.answer) + extra
                answer, why = await self._try(call, shown, seconds)
            if answer is not None and answer.status != 429 and answer.status < 500:  # a retry changes nothing
                return _body_or_raise(answer, shown)
            pause = max(self.patience.pause(attempt), _retry_after(answer))
            if time.monotonic() + pause > end:
                raise Unavailable(f"{shown}: {why} ({attempt} attempts)")
            await asyncio.sleep(pause)

    async def _try(self, call: Request, shown: str, seconds: float) -> "tuple[_Answer | None, str]":
        """Return an answer that was whole within `seconds` and the time of its bytes, or None; and what it was.

        Raises Unavailable where the same call would fail again.
        """
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                aclosing(await self._sender.send(call)) as arrival,
            ):
                body = await self._body(arrival, shown, deadline)
        except TimeoutError:
            return None, f"no whole answer in {seconds:.3g} seconds"
        except NoAnswer as error:
            why = without_passwords(str(error))
            if error.final:
                raise Unavailable(f"{shown}: {why}") from error
            return None, why
        self.sent += arrival.sent + len(call.body or b"")
        self.received += header_bytes(arrival.headers) + len(body)
        told = "" if 200 <= arrival.status < 300 else f": {from_document(body, arrival.status).detail}"
        return _Answer(arrival.status, arrival.headers, body), f"HTTP {arrival.status}{told}"

    async def _body(self, arrival: Arrival, shown: str, deadline: asyncio.Timeout) -> bytes:
        """Return an answer's body; its bytes prolong the deadline. Raises BadMessage."""
        if (_field(arrival.headers, b"content-encoding") or "identity") != "identity":
            raise BadMessage(f"{shown}: the answer is compressed, and it was asked for without")
        parts, size, end = [], 0, deadline.when() or 0.0
        while part := await arrival.read():
            parts.append(part)
            size += len(part)
            if size > self._most:
                raise BadMessage(f"{shown}: the answer has more than {self._most:,} bytes")
            if size > LEAST_RATE // 16:  # a short answer keeps its deadline
                deadline.reschedule(end + size / LEAST_RATE)
        return b"".join(parts)

    async def aclose(self) -> None:
        await self._sender.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(frozen=True, slots=True)
class Peer:
    """One service: messages in, messages out. `path` starts with a slash.

    Headers hold a token, and the address may hold a password: neither is shown.
    """

    http: Http
    url: str
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        """Return the address, without its password."""
        return f"{type(self).__name__}({without_passwords(self.url)!r})"

    async def get(self, path: str, answer: type[A], params: Params | None = None) -> A:
        return self._read(answer, await self.http.request("GET", self.url + path, self.headers, None, params))

    async def post(self, path: str, body: BaseModel, answer: type[A], params: Params | None = None) -> A:
        return self._read(answer, await self._send("POST", path, body, params))

    async def put(self, path: str, body: BaseModel, answer: type[A], params: Params | None = None) -> A:
        return self._read(answer, await self._send("PUT", path, body, params))

    async def delete(self, path: str, answer: type[A]) -> A:
        return self._read(answer, await self.http.request("DELETE", self.url + path, self.headers, None, None))

    async def _send(self, method: str, path: str, body: BaseModel, params: Params | None = None) -> bytes:
        headers = {**self.headers, "Content-Type": "application/json"}
        content = body.model_dump_json().encode()
        return await self.http.request(method, self.url + path, headers, content, params)

    def _read(self, answer: type[A], raw: bytes) -> A:
        try:
            return read_message(answer, raw)
        except (BadMessage, ValidationError) as error:
            unreadable = f"{without_passwords(self.url)} answered something that is no {answer.__name__.lstrip('_')}"
            why = error.detail if isinstance(error, BadMessage) else first(error, answer)
            raise BadMessage(f"{unreadable}: {why}") from error


class Problem(BaseModel):
    """A refusal and its reason (RFC 9457). `type` is stable; further members depend on it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


def from_document(raw: bytes, status: int) -> ProtocolError:
    """Return the error of a problem document; for any other body a plain ProtocolError."""
    try:
        problem = read_message(Problem, raw)
    except (BadMessage, ValidationError):
        return ProtocolError(f"HTTP {status}, and no problem document")
    code = problem.type.rpartition(":")[2]
    kind = next((kind for kind in _kinds(ProtocolError) if kind.code == code), ProtocolError)  # none of its subclasses
    error = kind.__new__(kind)  # subclasses compose their detail from arguments; here it is composed already
    ProtocolError.__init__(error, cut_reason(problem.detail))
    extra = {
        name: value
        for name, value in (problem.model_extra or {}).items()
        if isinstance(value, str | int | float) and not hasattr(error, name)  # such as the code, which callers print
    }
    error.extra = extra
    vars(error).update(extra)
    return error


def _kinds(root: type[ProtocolError]) -> Iterator[type[ProtocolError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _body_or_raise(answer: _Answer, call: str) -> bytes:
    if 200 <= answer.status < 300:
        return answer.body
    error = from_document(answer.body, answer.status)
    if type(error) is ProtocolError:  # no refusal of a service of ours: its sentence names no party
        hint = "; is this another service's address?" if answer.status in {404, 405} else ""
        status = "" if error.detail.startswith("HTTP ") else f"HTTP {answer.status}: "
        raise ProtocolError(f"{call}: {status}{error.detail}{hint}")
    raise error


def _retry_after(answer: _Answer | None) -> float:
    """Return the seconds that the peer asked us to wait; 0 for a date and every other value."""
    text = _field(answer.headers, b"retry-after") if answer is not None else ""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _field(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Return the values of a header, which may stand on several lines; an empty text without it."""
    return ", ".join(value.decode("latin-1") for key, value in headers if key.lower() == name)
