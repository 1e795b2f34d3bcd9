"""Answers refusals as problem documents (RFC 9457). `common/protocol/web/client.py` reads them back as our errors."""

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from distrust.common.errors import BadMessage, BadTicket, ProtocolError
from distrust.common.explain import explain_all
from distrust.common.protocol.messages.upload import ActionAnswer, UploadAnswer

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1  # that a refused caller is asked to wait
NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}
"""Header of every answer: a browser takes it for what its content type says, not for a script or a page."""

FAULT = "X-Distrust-Fault"
"""Header of an answer 200 that refused an item which no honest client sends. The proxy counts it, and removes it."""

CALLER_GONE = 499  # what proxies log for a caller that hung up before the answer
_MOST_LINES = 20  # in an answer to a bulk body of bad items
_MOST_TOLD = 500  # faults of a body; each is built before the first one can be told
_FAULTS = frozenset({BadMessage("").urn, BadTicket("").urn})
_Handler = Callable[[Request, Exception], Awaitable[Response]]
_SECRET_FIELDS = {"ticket", "tickets", "signatures", "body", "token"}


A = TypeVar("A", UploadAnswer, ActionAnswer)


def mark_fault(answer: A, response: Response) -> A:
    """Return the answer. Its response gets the header FAULT if a listed item was malformed, or had a wrong ticket."""
    if any(item.type in _FAULTS for item in answer.refused):
        response.headers[FAULT] = "1"
    return answer


def problems(*errors: type[ProtocolError]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route that may raise these errors."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    statuses = sorted({error.status for error in errors})
    return {
        status: {
            "description": ", ".join(error.code for error in errors if error.status == status),
            "content": {MEDIA_TYPE: schema},
        }
        for status in statuses
    }


def render(error: ProtocolError) -> Response:
    """Return one of our errors as its problem document."""
    return document(error.urn, error.code, error.status, error.detail, **error.extra)


def document(urn: str, code: str, status: int, detail: str, **extra: Any) -> Response:
    """Return a problem document; with status 429 or 503 it has a Retry-After header.

    An unexpected error's answer passes no other place that could set headers.
    """
    members = {**extra, "type": urn, "title": code.replace("-", " "), "status": status, "detail": detail}
    retry = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}
    return Response(json.dumps(members), status, {**NO_SNIFFING, **retry}, MEDIA_TYPE)


def bad_fields(error: ValidationError | RequestValidationError, model: type[BaseModel] | None = None) -> BadMessage:
    """Return one line a bad field: path, shortened value, what is allowed. Bodies and secrets are not echoed."""
    if isinstance(error, ValidationError) and error.error_count() > _MOST_TOLD:
        return BadMessage(f"{error.error_count()} faults: they are told one by one up to {_MOST_TOLD}")
    skip = 1 if isinstance(error, RequestValidationError) else 0  # FastAPI says first where the value came from
    faults = error.errors() if isinstance(error, RequestValidationError) else error.errors(include_url=False)
    lines = explain_all([_without_secrets(entry, entry["loc"][skip:]) for entry in faults[:_MOST_LINES]], model)
    if len(faults) > _MOST_LINES:
        lines.append(f"… and {len(faults) - _MOST_LINES} more")
    return BadMessage("\n".join(lines))


def install(app: FastAPI) -> None:
    """Answer every refusal of this app with a problem document."""
    app.add_exception_handler(ProtocolError, _releasing(_own))
    app.add_exception_handler(RequestValidationError, _releasing(_own))
    app.add_exception_handler(HTTPException, _releasing(_http))
    app.add_exception_handler(ClientDisconnect, _releasing(_gone))
    app.add_exception_handler(Exception, _unexpected)


class _Hidden:
    """Stands for a secret or bulky value; shows only its type."""

    def __init__(self, value: object) -> None:
        self._kind = type(value).__name__

    def __repr__(self) -> str:
        return f"({self._kind})"


def _without_secrets(entry: Mapping[str, Any], place: tuple[str | int, ...]) -> dict[str, Any]:
    secret = not _SECRET_FIELDS.isdisjoint(place)
    bulky = isinstance(entry["input"], bytes | list)
    return {**entry, "input": _Hidden(entry["input"])} if secret or bulky else dict(entry)


def _releasing(handler: _Handler) -> _Handler:
    """Return `handler`, after which the error and its causes hold no frames, and so no part of the request's body.

    A future of the thread pool's holds an error that came from a thread, and the error's frames hold the future. The
    body would stay in memory until the garbage collector runs.
    """

    @functools.wraps(handler)
    async def handle(request: Request, error: Exception) -> Response:
        answer = await handler(request, error)
        held: BaseException | None = error
        while held is not None:
            held.__traceback__ = None
            held = held.__cause__ or held.__context__
        return answer

    return handle


async def _own(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProtocolError | RequestValidationError)
    return render(error if isinstance(error, ProtocolError) else bad_fields(error))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "http-error")
    answer = document(f"urn:distrust:problem:{code}", code, error.status_code, str(error.detail), path=request.url.path)
    answer.headers.update(error.headers or {})
    return answer


async def _gone(_request: Request, _error: Exception) -> Response:
    """Return a status that is only logged and counted: the caller hung up."""
    return Response(status_code=CALLER_GONE)


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """Return a problem without the cause: the log has the trace of our bug."""
    return document("urn:distrust:problem:internal", "internal", 500, "an unexpected error; the service's log has it")


_HTTP_CODES = {
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    413: "too-large",
    415: "unsupported-media-type",
    503: "unavailable",
}
