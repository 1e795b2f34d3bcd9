"""What every service's app has in common: problems, a body limit, health, metrics, a log without secrets."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog
from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from common.web.body import describe
from common.web.metrics import Metrics
from common.web.problems import document, install
from common.web.settings import ServiceSettings
from common.web.waiting import Doorbell

_log = structlog.get_logger("distrust.web")


class Pingable(Protocol):
    """A database, as far as readiness cares."""

    def ping(self) -> None: ...


def make_app(
    title: str, lifespan: Lifespan[FastAPI] | None, routers: Iterable[APIRouter], settings: ServiceSettings
) -> FastAPI:
    """An app with our common rooms around `routers`.

    `app.state` has `settings`, `operator_token`, `inspector_token`, `metrics`, `doorbell`, and what the service adds:
    `service`, and `database`, which /readyz asks.
    """
    app = FastAPI(title=title, version="1", lifespan=lifespan, docs_url=None, redoc_url=None)  # those need a CDN
    app.state.settings = settings
    app.state.operator_token = settings.operator_token()
    app.state.inspector_token = settings.inspector_token()
    app.state.metrics = Metrics()
    app.state.doorbell = Doorbell()
    for router in [*routers, _health]:
        app.include_router(router)
    install(app)
    app.add_middleware(_Door, metrics=app.state.metrics, max_body=settings.max_body)
    _document_once(app)
    return app


def _document_once(app: FastAPI) -> None:
    cached: list[dict[str, Any]] = []

    def openapi() -> dict[str, Any]:
        if not cached:
            cached.append(describe(app))
        return cached[0]

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents


_health = APIRouter(tags=["health"], default_response_class=PlainTextResponse)


@_health.get("/")
def index(request: Request) -> str:
    """What this is, and where it describes itself."""
    return f"{request.app.title}\nAPI      /openapi.json\nhealth   /healthz /readyz\nmetrics  /metrics\n"


@_health.get("/healthz")
async def healthz() -> str:
    """The process answers."""
    return "alive\n"


@_health.get("/readyz")
def readyz(request: Request) -> str:
    """The database answers too."""
    database: Pingable | None = getattr(request.app.state, "database", None)
    if database is not None:
        database.ping()
    return "ready\n"


@_health.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus text."""
    found: Metrics = request.app.state.metrics
    return found.answer()


class _Door:
    """Everything passes here once: size and type of bodies are checked, the answer is counted and logged."""

    def __init__(self, app: ASGIApp, metrics: Metrics, max_body: int) -> None:
        self._app, self._metrics, self._max_body = app, metrics, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, receive, send, self._max_body)
        refusal = visit.refusal()
        try:
            await (refusal or self._app)(scope, visit.receive, visit.send)
        finally:
            self._record(visit)

    def _record(self, visit: "_Visit") -> None:
        seconds = time.perf_counter() - visit.started
        self._metrics.record(visit.method, visit.route, visit.status, seconds, visit.received)
        say: Callable[..., Any] = _log.error if visit.status >= 500 else _log.info
        facts = {"method": visit.method, "route": visit.route, "status": visit.status, "bytes": visit.received}
        say("request", **facts, ms=round(1000 * seconds, 1))


class _Visit:
    """One request on its way through the door."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        self._scope, self._receive, self._send, self._max_body = scope, receive, send, max_body
        self._headers = dict(scope["headers"])
        self.method: str = scope["method"]
        self.started = time.perf_counter()
        self.received = 0
        self.status = 500  # unless an answer says otherwise

    @property
    def route(self) -> str:
        """The route's template, never the path itself: metrics must not grow with callers' imagination."""
        return getattr(self._scope.get("route"), "path", "(none)")

    def refusal(self) -> Response | None:
        """An answer from the headers alone, before a byte of the body is read."""
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body:
            return document("urn:distrust:problem:too-large", "too-large", 413, self._too_large())
        has_body = length != b"0" or b"transfer-encoding" in self._headers
        kind = self._headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if self.method in ("POST", "PUT") and has_body and kind != b"application/json":
            code = "unsupported-media-type"
            return document(f"urn:distrust:problem:{code}", code, 415, "the body must be application/json")
        return None

    async def receive(self) -> Message:
        message = await self._receive()
        self.received += len(message.get("body", b""))
        if self.received > self._max_body:  # a chunked body has no length to refuse beforehand
            raise HTTPException(413, self._too_large())
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    def _too_large(self) -> str:
        return f"the body is larger than {self._max_body} bytes"
