"""Bulk bodies, parsed once and strictly: straight from JSON bytes to a message.

FastAPI would parse JSON to Python values first and validate those; in strict mode that is both slower and wrong (a
tuple or an enum of JSON is then refused). So a route takes `Annotated[Upload, JsonBody.of(Upload)]`, and a router made
with `route_class=MessageRoute` keeps the body's schema in the OpenAPI document.
"""

from typing import Any, Generic, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from common.web.problems import Problem, bad_fields

M = TypeVar("M", bound=BaseModel)

_BIG = 64 * 1024  # bytes from which parsing leaves the event loop
_REF = "#/components/schemas/{model}"


class JsonBody(Generic[M]):
    """A FastAPI dependency that reads a request's whole body as one message. Raises BadMessage, a line a field."""

    def __init__(self, model: type[M]) -> None:
        self.model = model

    @classmethod
    def of(cls, model: type[M]) -> Any:
        """For a parameter's annotation: `Annotated[Upload, JsonBody.of(Upload)]`."""
        return Depends(cls(model))

    async def __call__(self, request: Request) -> M:
        raw = await request.body()
        try:
            if len(raw) < _BIG:
                return self.model.model_validate_json(raw)
            return await run_in_threadpool(self.model.model_validate_json, raw)
        except ValidationError as error:
            raise bad_fields(error, self.model) from error


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
