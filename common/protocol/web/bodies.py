"""Admits request bodies: the room, time and type that a service allows them, and how routes parse them."""

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from distrust.common.errors import BadMessage, Unauthorized
from distrust.common.extras import late
from distrust.common.protocol.web.observability import known_method
from distrust.common.protocol.web.problems import NO_SNIFFING, bad_fields, document, render
from distrust.common.protocol.web.settings import ServiceSettings, is_loopback
from distrust.common.wire import read_message

if TYPE_CHECKING:
    from distrust.common.protocol.web import client
else:
    client = late("distrust.common.protocol.web.client")

SMALL_BODY = 16 * 1024
"""Bytes of a body that always has room."""

MOST_BODIES = 32
"""Larger bodies at once: each takes up to a quarter of a megabyte beside what is counted, on its way in."""

_CLOSE = "distrust.close"  # key of a request's scope: `Visit.close`
_BIG = SMALL_BODY  # bytes from which parsing leaves the event loop
_PLAIN = 64 * 1024  # bytes from which a body must be plain
PARSERS = 1  # big bodies parsed at once: each takes up to four times its size meanwhile
_FIELDS = 4  # JSON values of one item in a bulk body: the item, slot, ticket, body
_HEAD = 64  # JSON values around the items

OPERATORS_VALUES = 2**20
"""JSON values in a body that only the operator may send: configurations and cohorts hold long lists."""

_REF = "#/components/schemas/{model}"


class Visit:
    """One request on its way in and out.

    bodies  all the bodies that the service has in memory.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServiceSettings, bodies: "Bodies") -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._max_body, self._bodies = settings.max_body, bodies
        self._headers = dict(scope["headers"])
        self._body_seconds = settings.body_seconds
        self._open, self._names = settings.operator_token_file is None, settings.own_names
        self._timeout: asyncio.Timeout | None = None
        self.evicted = False
        self.arriving = True  # until the body is whole
        self.method = known_method(scope["method"])
        self.started = time.perf_counter()
        self.received = 0
        self.status = 500  # unless an answer says otherwise
        scope[_CLOSE] = self.close

    @property
    def route(self) -> str:
        """Return the route's template, never the path itself: metrics must not grow with what callers invent."""
        return getattr(self._scope.get("route"), "path", "(none)")

    @property
    def age(self) -> float:
        """Return the seconds since the request's head was there."""
        return time.perf_counter() - self.started

    def refusal(self) -> Response | None:
        """Return an answer from the headers alone, before a byte of the body is read; None: go on."""
        host = self._headers.get(b"host", b"").decode("latin-1")
        if self._open and not is_own_name(host, self._names):
            where = "has no operator's token, and answers to loopback and DISTRUST_HOST_NAMES only"
            return render(Unauthorized(f"this service {where}, not to {host[:80]!r}"))
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body:
            return document("urn:distrust:problem:too-large", "too-large", 413, self._too_large())
        has_body = length != b"0" or b"transfer-encoding" in self._headers
        if has_body and self.method not in ("POST", "PUT"):
            return document("urn:distrust:problem:too-large", "too-large", 413, f"{self.method} takes no body here")
        kind = self._headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if has_body and kind != b"application/json":
            code = "unsupported-media-type"
            return document(f"urn:distrust:problem:{code}", code, 415, "the body must be application/json")
        return None

    async def receive(self) -> Message:
        """Return the next message. Raises HTTPException for a body that is too large, too slow, or one too many."""
        if not self.arriving:
            return await self._receive()
        left = self._body_seconds - self.age
        try:
            async with asyncio.timeout(left) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            left = 0.0
        finally:
            self._timeout = None
        if self.evicted or left <= 0:
            self.arriving = False
            raise _one_too_many() if self.evicted else HTTPException(408, f"no whole body in {self._body_seconds:g} s")
        if message["type"] == "http.request":
            await self._count(len(message.get("body", b"")))
            self.arriving = message.get("more_body", False)
        return message

    async def _count(self, size: int) -> None:
        self.received += size
        if self.received > self._max_body:  # a chunked body has no length to refuse beforehand
            raise HTTPException(413, self._too_large())
        if self.received > SMALL_BODY and not await self._bodies.add(self, size):
            raise _one_too_many()

    def evict(self) -> None:
        """Stop reading the body, as others need its room."""
        self.evicted = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in NO_SNIFFING.items():
                MutableHeaders(scope=message).setdefault(name, value)
        await self._send(message)

    def close(self) -> None:
        """Release the body's memory when the request is over, or waits."""
        self._bodies.remove(self)

    def _too_large(self) -> str:
        return f"the body is larger than {self._max_body} bytes"


def is_own_name(host: str, names: Collection[str] = ()) -> bool:
    """Return whether a Host header names loopback: localhost, a name below it, a loopback address, or one of `names`.

    Without a token loopback is all that protects a service. A web page can have its own name resolved to loopback, and
    call the service from a reader's browser as if it were its own; the header still has that name. A name without dots
    is no better: the name server of the reader's network chooses where it leads.
    """
    name, separator, port = host.strip().lower().rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()):
        name = host.strip().lower()
    if name.startswith("[") and name.endswith("]"):
        return is_loopback(name[1:-1])
    name = name.removesuffix(".")
    return name in names or name.endswith(".localhost") or is_loopback(name)


def _one_too_many() -> HTTPException:
    return HTTPException(503, "too many bodies at once, and this one is slow: try again")


class Bodies:
    """The request bodies that a service has in memory, up to `most` bytes and MOST_BODIES. Small ones are not counted.

    Where room is wanting, bodies that arrive wait for those that are worked on. Where none is worked on, the slowest of
    those that arrive is given up, so that the others arrive.
    """

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._held: dict[Visit, int] = {}
        self._space_freed = asyncio.Event()

    async def add(self, visit: Visit, size: int) -> bool:
        """Count bytes that arrived, once there is room. Return False when the body must be given up."""
        if visit not in self._held:
            await self._let_in(visit)
        while self._total + size > self._most and not visit.evicted:
            arriving = [held for held in self._held if held.arriving]
            if len(arriving) < len(self._held):
                self._space_freed.clear()
                await self._space_freed.wait()
                continue
            self._give_up(arriving)
        if visit.evicted:
            return False
        self._held[visit] += size
        self._total += size
        return True

    async def _let_in(self, visit: Visit) -> None:
        """Find a place among the bodies."""
        while len(self._held) >= MOST_BODIES:
            arriving = [held for held in self._held if held.arriving]
            if arriving:
                self._give_up(arriving)
                break
            self._space_freed.clear()
            await self._space_freed.wait()
        self._held[visit] = 0

    def _give_up(self, arriving: list[Visit]) -> None:
        slowest = min(arriving, key=lambda visit: visit.received / visit.age)
        self.remove(slowest)
        slowest.evict()

    def remove(self, visit: Visit) -> None:
        """Forget the body: its request is over, or it was given up."""
        self._total -= self._held.pop(visit, 0)
        self._space_freed.set()


def release_body(request: Request) -> None:
    """Give the body's place to others: the request has read it, and waits. A route calls this before it waits."""
    request.scope[_CLOSE]()


M = TypeVar("M", bound=BaseModel)


class JsonBody(Generic[M]):
    """A FastAPI dependency that reads a request's whole body as one message.

    most    JSON values in the body; None: enough for the items that the service's settings allow in one upload.
    Raises  BadMessage, a line a field, or where a check of its values fails; HTTPException 413 for more values, counted
            before anything is parsed.
    """

    def __init__(self, model: type[M], most: int | None = None) -> None:
        self.model, self._most = model, most

    @classmethod
    def of(cls, model: type[M], most: int | None = None) -> Any:
        """Return the dependency of a parameter's annotation: `Annotated[Upload, JsonBody.of(Upload)]`."""
        return Depends(cls(model, most))

    async def __call__(self, request: Request) -> M:
        raw = bytearray()  # grows in place; `request.body()` would hold all chunks beside their sum, and to the end
        async for chunk in request.stream():
            raw += chunk
        items = request.app.state.settings.max_items
        most = _FIELDS * items + _HEAD if self._most is None else self._most
        try:
            if len(raw) < _BIG:
                return self._parse(raw, most, items)
            async with request.app.state.parsers:
                return await run_in_threadpool(self._parse, raw, most, items)
        except ValidationError as error:
            raise bad_fields(error, self.model) from error

    def _parse(self, raw: bytearray, most: int, items: int) -> M:
        if count_values(raw) > most:
            allowed = f"{items} items" if self._most is None else f"{most} values"
            raise HTTPException(413, f"the body has more values than {allowed} take: send it in parts")
        plain = self._most is not None or len(raw) < _PLAIN or (raw.isascii() and b"\\u" not in raw)
        if not plain:  # one sign beyond ASCII can make a text four times as large
            raise BadMessage(f"a body of {_PLAIN} bytes or more must be plain ASCII, without \\u escapes")
        return read_message(self.model, raw)


def count_values(raw: bytes | bytearray) -> int:
    """Return an upper bound of the JSON values in a body, without parsing it: each stands behind one of these signs."""
    return 1 + sum(raw.count(sign) for sign in (b",", b"[", b"{"))


class MessageRoute(APIRoute):
    """A route that documents the body its `JsonBody` reads, and writes the message that its endpoint returns."""

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, _writing(endpoint), **options)
        for inner in self.dependant.dependencies:
            if isinstance(inner.call, JsonBody):
                schema = inner.call.model.model_json_schema(ref_template=_REF)
                body = {"required": True, "content": {"application/json": {"schema": schema}}}
                self.openapi_extra = {**(self.openapi_extra or {}), "requestBody": body}


def _writing(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Return an endpoint whose message is written where it is made.

    FastAPI would check the message again, and for a plain function in another thread. An endpoint that changes
    FastAPI's own response is returned as it is.
    """
    if any(parameter.annotation is Response for parameter in inspect.signature(endpoint).parameters.values()):
        return endpoint
    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def write_soon(**values: Any) -> Any:
            return _written(await endpoint(**values))

        return write_soon

    @functools.wraps(endpoint)
    def write(**values: Any) -> Any:
        return _written(endpoint(**values))

    return write


def _written(answer: Any) -> Any:
    """Return a message as a response; anything else as it is."""
    if not isinstance(answer, BaseModel):
        return answer
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json")


SHARED_PARAMETERS = {
    "run": "the run's name",
    "cohort": "the cohort's name",
    "number": "number of the round, from 1",
    "limit": "most entries of the answer; its `next` is the position of those that follow",
}
"""Meanings of the parameters that many routes share."""


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the app's OpenAPI document. The bodies' inner models and the problem document are components of it.

    A parameter that its route does not describe has its meaning from `SHARED_PARAMETERS`.
    """
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components["Problem"] = client.Problem.model_json_schema()
    operations = (operation for methods in document["paths"].values() for operation in methods.values())
    for operation in operations:
        for parameter in operation.get("parameters", ()):
            parameter.setdefault("description", SHARED_PARAMETERS.get(parameter["name"], ""))
        for content in operation.get("requestBody", {}).get("content", {}).values():
            components.update(content["schema"].pop("$defs", {}))
    return document
