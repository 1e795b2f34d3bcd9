"""Builds the common parts of each service's app: operator's token, problems, body limit, health, metrics, log."""

import asyncio
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Annotated, Any, Protocol

import structlog
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from distrust.common.errors import Unauthorized, Unavailable
from distrust.common.protocol.messages.admission import bearer
from distrust.common.protocol.web.answers import AnswerCutError, Answers
from distrust.common.protocol.web.bodies import PARSERS, Bodies, MessageRoute, Visit, describe
from distrust.common.protocol.web.observability import Metrics
from distrust.common.protocol.web.problems import install
from distrust.common.protocol.web.settings import ServiceSettings
from distrust.common.protocol.web.waiting import ChangeNotifier

READERS = 2  # requests of readers that are worked on at once; the pool has 40 threads
WAITING_READERS = 62  # of them that wait for a turn

READY_SECONDS = 0.5
"""Seconds for which an answer of /readyz is reused, so that many callers cost one write."""

_log = structlog.get_logger("distrust.web")


class TokenRequired(HTTPBearer):
    """A dependency of routes that need a token. OpenAPI lists it as a security scheme of those routes."""

    def __init__(self, owner: str, description: str) -> None:
        super().__init__(scheme_name=owner, description=description, auto_error=False)
        self._owner = owner

    async def __call__(self, request: Request) -> None:  # type: ignore[override]  # routes need no credentials
        """Raise Unauthorized unless the request carries the token. Without a token file only loopback is served.

        The file is read again when it has changed. Raises Unavailable while it cannot be read.
        """
        current: Callable[[], str] | None = getattr(request.app.state, f"{self._owner}_token")
        shown = bearer(request.headers.get("authorization", "")).encode()
        if current is not None and not hmac.compare_digest(shown, current().encode()):
            raise Unauthorized(f"this call needs the {self._owner}'s token: Authorization: Bearer …")


InspectorOnly = Depends(TokenRequired("inspector", "Token that opens an intermediary's transcripts."))
"""Dependency of routes that show which client sent which message."""

require_operator = TokenRequired("operator", "Token that starts and stops runs, and opens and collects cohorts.")
OperatorOnly = Depends(require_operator)
"""Dependency of routes for the operator: `dependencies=[OperatorOnly]`, with `Unauthorized` in `problems(…)`."""

Participation = Depends(HTTPBearer(scheme_name="participant", description="Token for tickets.", auto_error=False))
"""Names a participation token in the documents of the API. The server's `Admission` looks at it."""

Each = Annotated[int | None, Query(ge=1, le=1000, description="only the first so many of each stage and direction")]
"""The parameter `each` of a transcript; absent: every message."""


class ReadersRoute(APIRoute):
    """A route for readers of a run's pages and long lists, which cost far more to answer than to ask for.

    READERS of them are worked on at once. A few may wait, and others are refused as Unavailable, so that readers leave
    threads and time to clients.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that waits for its turn. Sending the answer takes none."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            readers: Readers = request.app.state.readers
            async with readers.turn():
                return await inner(request)

        return handler


class ReadersMessageRoute(ReadersRoute, MessageRoute):
    """A route of the API for readers."""


class Readers:
    """Turns of readers, in the order of their arrival."""

    def __init__(self, most: int, waiting: int) -> None:
        self._turns, self._places = asyncio.Semaphore(most), most + waiting

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold a turn. Raises Unavailable when too many wait."""
        if not self._places:
            raise Unavailable("too many readers at once: try again in a few seconds")
        self._places -= 1
        try:
            async with self._turns:
                yield
        finally:
            self._places += 1


class Writable(Protocol):
    """A database that can be asked for a write."""

    def check_writable(self, min_free: int) -> None:
        """Write and commit. Raises Unavailable."""


class Readiness:
    """Checks whether the service can write, at most once in `READY_SECONDS`."""

    def __init__(self, min_free: int) -> None:
        self._min_free, self._lock = min_free, threading.Lock()
        self._known_until, self._fault = 0.0, ""

    def check(self, database: Writable) -> None:
        """Raise Unavailable unless the database takes a write, and keeps `min_free` bytes of disk."""
        with self._lock:
            if time.monotonic() >= self._known_until:
                try:
                    database.check_writable(self._min_free)
                    self._fault = ""
                except Unavailable as error:
                    self._fault = error.detail
                self._known_until = time.monotonic() + READY_SECONDS
            if self._fault:
                raise Unavailable(self._fault)


def make_app(
    title: str, lifespan: Lifespan[FastAPI] | None, routers: Iterable[APIRouter], settings: ServiceSettings
) -> FastAPI:
    """Return an app with `routers`, health, metrics, problem documents and limits.

    `app.state` has `settings`, `operator_token`, `inspector_token`, `metrics` and `notifier`. The service adds
    `service`, and `database`, which /readyz checks.
    """
    app = FastAPI(title=title, version="1", lifespan=lifespan, openapi_url=None)  # FastAPI's pages need a CDN
    app.state.settings = settings
    app.state.operator_token = settings.current_operator_token()
    app.state.inspector_token = settings.current_inspector_token()
    app.state.metrics = Metrics()
    app.state.notifier = ChangeNotifier(settings.max_waits)
    app.state.parsers = asyncio.Semaphore(PARSERS)
    app.state.readers = Readers(READERS, WAITING_READERS)
    app.state.readiness = Readiness(settings.min_free)
    for router in [*routers, _health]:
        app.include_router(router)
    install(app)
    app.add_middleware(RequestGuard, metrics=app.state.metrics, settings=settings)
    _document_once(app)
    return app


def _document_once(app: FastAPI) -> None:
    """Serve the document of the API at /openapi.json. It is written once: it is hundreds of kilobytes long."""
    document = cache(lambda: describe(app))
    written = cache(lambda: json.dumps(document(), separators=(",", ":")).encode())
    app.openapi = document  # type: ignore[method-assign]  # the way FastAPI documents

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(written(), media_type="application/json")


_health = APIRouter(tags=["health"], default_response_class=PlainTextResponse)


@_health.get("/")
def index(request: Request) -> str:
    """Return the service's name, and the paths that describe it and its health."""
    return f"{request.app.title}\nAPI      /openapi.json\nhealth   /healthz /readyz\nmetrics  /metrics\n"


@_health.get("/healthz")
async def healthz() -> str:
    """Return "alive": the process answers."""
    return "alive\n"


@_health.get("/readyz")
def readyz(request: Request) -> str:
    """Return "ready" if the database takes a write too."""
    database: Writable | None = getattr(request.app.state, "database", None)
    if database is not None:
        request.app.state.readiness.check(database)
    return "ready\n"


@_health.get("/metrics")
def metrics(request: Request) -> Response:
    """Return the metrics as Prometheus text."""
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


class RequestGuard:
    """Checks size, type and time of every request's body, and counts and logs its answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics, settings: ServiceSettings) -> None:
        self._app, self._metrics, self._settings = app, metrics, settings
        self._bodies, self._answers = Bodies(settings.max_bodies), Answers(settings.max_answers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = Visit(scope, receive, partial(self._answers.send, send=send), self._settings, self._bodies)
        refusal = visit.refusal()
        try:
            await (refusal or self._app)(scope, visit.receive, visit.send)
        except AnswerCutError:  # the connection is closed, as the answer is not whole
            _log.warning("answer_cut", route=visit.route)
        finally:
            visit.close()
            self._record(visit)

    def _record(self, visit: Visit) -> None:
        seconds = visit.age
        self._metrics.record(visit.method, visit.route, visit.status, seconds, visit.received)
        write: Callable[..., Any] = _log.error if visit.status >= 500 else _log.info
        facts = {"method": visit.method, "route": visit.route, "status": visit.status, "bytes": visit.received}
        write("request", **facts, ms=round(1000 * seconds, 1))
