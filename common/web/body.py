"""Bulk bodies, parsed once and strictly: straight from JSON bytes to a message.

FastAPI would parse JSON to Python values first and validate those; in strict mode that is both slower and wrong (a
tuple or an enum of JSON is then refused). So a route takes `Annotated[Upload, JsonBody.of(Upload)]`, and a router made
with `route_class=MessageRoute` keeps the body's schema in the OpenAPI document.
"""

import asyncio
from typing import Any, Generic, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from distrust.common.errors import BadMessage
from distrust.common.web.problems import Problem, bad_fields

M = TypeVar("M", bound=BaseModel)

_BIG = 64 * 1024  # bytes from which parsing leaves the event loop
PARSERS = 1  # big bodies parsed at once: each takes up to four times its size meanwhile
_FIELDS = 4  # JSON values of one item in a bulk body: the item, slot, ticket, body
_HEAD = 64  # JSON values around the items
OPERATORS_VALUES = 2**20
"""JSON values in a body that only the operator may send: configurations and cohorts hold long lists."""
_REF = "#/components/schemas/{model}"


class JsonBody(Generic[M]):
    """A FastAPI dependency that reads a request's whole body as one message.

    most    JSON values in the body; None: enough for the items that the service's settings allow in one upload.
    Raises  BadMessage, a line a field; HTTPException 413 for more values, counted before anything is parsed.
    """

    def __init__(self, model: type[M], most: int | None = None) -> None:
        self.model, self._most = model, most

    @classmethod
    def of(cls, model: type[M], most: int | None = None) -> Any:
        """For a parameter's annotation: `Annotated[Upload, JsonBody.of(Upload)]`."""
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
            async with _parsers(request):
                return await run_in_threadpool(self._parse, raw, most, items)
        except ValidationError as error:
            raise bad_fields(error, self.model) from error

    def _parse(self, raw: bytearray, most: int, items: int) -> M:
        if count_values(raw) > most:
            allowed = f"{items} items" if self._most is None else f"{most} values"
            raise HTTPException(413, f"the body has more values than {allowed} take: send it in parts")
        if self._most is None and len(raw) >= _BIG and not is_plain(raw):
            raise BadMessage(f"a body of {_BIG} bytes or more must be plain ASCII, without \\u escapes")
        return self.model.model_validate_json(raw)


def is_plain(raw: bytearray) -> bool:
    """Whether texts take a byte a character: one sign beyond that can make a text four times as large."""
    return raw.isascii() and b"\\u" not in raw


def count_values(raw: bytes | bytearray) -> int:
    """Return an upper bound of the JSON values in a body, without parsing it: each stands behind one of these signs."""
    return 1 + sum(raw.count(sign) for sign in (b",", b"[", b"{"))


def _parsers(request: Request) -> asyncio.Semaphore:
    parsers: asyncio.Semaphore = request.app.state.parsers
    return parsers


class MessageRoute(APIRoute):
    """A route that documents the body its `JsonBody` reads."""

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        for inner in self.dependant.dependencies:
            if isinstance(inner.call, JsonBody):
                schema = inner.call.model.model_json_schema(ref_template=_REF)
                body = {"required": True, "content": {"application/json": {"schema": schema}}}
                self.openapi_extra = {**(self.openapi_extra or {}), "requestBody": body}


def describe(app: FastAPI) -> dict[str, Any]:
    """The app's OpenAPI document: the bodies' inner models and the problem document beside the other components."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components["Problem"] = Problem.model_json_schema()
    operations = (operation for methods in document["paths"].values() for operation in methods.values())
    for operation in operations:
        for content in operation.get("requestBody", {}).get("content", {}).values():
            components.update(content["schema"].pop("$defs", {}))
    return document
