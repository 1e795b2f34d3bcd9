"""The frame of the dashboard: templates, static files, security headers, and errors as pages.

Pages are rendered from the messages that the API serves to everyone. Views of other parties are assembled in the
browser, with the reader's own tokens: the server never fetches them.
"""

import hashlib
import mimetypes
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from importlib import resources
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from distrust.common.dp.accounting.guarantee import IF_OTHERS_COLLUDE
from distrust.common.dp.calculator.communication import StatedBits, stated_bits
from distrust.common.errors import ProtocolError, WrongCohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import RoundReport
from distrust.common.protocol.web.app import ReadersRoute
from distrust.common.protocol.web.problems import bad_fields
from distrust.server.dashboard import charts

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def security_headers(connect: Sequence[str] = ()) -> dict[str, str]:
    """Return the headers of every page: scripts, styles and images from this server only, and in no other's frame.

    connect  origins of other services that the page's own script may fetch from, with the reader's tokens.
    """
    policy = [
        "default-src 'self'",
        " ".join(["connect-src 'self'", *connect]),
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    ]
    return {**_HEADERS, "Content-Security-Policy": "; ".join(policy)}


NAVIGATION = [("/", "Runs"), ("/compare", "Compare"), ("/start", "Start a run"), ("/privacy", "Privacy")]
"""Paths and names of the pages that every page links to."""


def _number(value: float) -> str:
    """Return a number with separators of thousands, decimals only where it has some."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _estimate(value: float | None) -> str:
    """Return an estimate with four decimals, a dash for none."""
    return "–" if value is None else f"{value:.4f}"


def _stated_bits(report: RoundReport, config: RunConfig) -> StatedBits:
    """Return the bits that a paper states for a client's message of a round, or why it states none."""
    statistic = config.policy.statistic(config.arms, report.decision)
    return stated_bits(report.mechanism, config.mechanism, statistic, config.horizon)


templates = Environment(
    loader=PackageLoader("distrust.server.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(estimate=_estimate, number=_number, stated_bits=_stated_bits)
templates.globals.update(charts=charts, NAVIGATION=NAVIGATION, if_others_collude=IF_OTHERS_COLLUDE)


def page(
    name: str, status: int = 200, connect: Sequence[str] = (), part: str | None = None, **context: Any
) -> Response:
    """Return a template of `templates/` as a page. Every value in it is escaped.

    connect  as in `security_headers`.
    part     not None asks for the block `fragment` alone, which a page fetches again.
    """
    template = templates.get_template(name)
    if part is None:
        html = template.render(context)
    else:
        html = "".join(template.blocks["fragment"](template.new_context(context)))
    return HTMLResponse(html, status, {**security_headers(connect), "Vary": "X-Fragment"})


def error_page(error: ProtocolError) -> Response:
    """Return a refusal as a page, with the status of the error."""
    return page("error.html", error.status, title=HTTPStatus(error.status).phrase, error=error)


class PageRoute(APIRoute):
    """A route that answers with pages, its refusals too. The API's routes answer with problem documents."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that turns refusals into pages."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except ProtocolError as error:
                return error_page(error)
            except RequestValidationError as error:
                return error_page(bad_fields(error))

        return handler


HttpRefusal = Callable[[Request, Exception], Coroutine[Any, Any, Response]]


def answer_with_pages(app: FastAPI) -> None:
    """Answer an unknown address with a page where the caller is a browser. Calls of the API get problem documents."""
    otherwise = cast("HttpRefusal", app.exception_handlers[HTTPException])

    async def refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        browses = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/")
        if error.status_code == HTTPStatus.NOT_FOUND and browses:
            return error_page(WrongCohort("this server has no page at this address"))
        return await otherwise(request, error)

    app.add_exception_handler(HTTPException, refusal)


class ReadersPageRoute(PageRoute, ReadersRoute):
    """A route of pages that are made of a run's state, few at a time."""


_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def _read_static() -> dict[str, tuple[bytes, str, str]]:
    """Return (body, type, ETag) of each static file by its name. They are read once, so that no path is followed."""
    files = {}
    for file in resources.files("distrust.server.dashboard").joinpath("static").iterdir():
        body = file.read_bytes()
        suffix = "." + file.name.rpartition(".")[2]
        kind = _TYPES.get(suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        files[file.name] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return files


_STATIC = _read_static()

static_routes = APIRouter(include_in_schema=False, route_class=PageRoute)


@static_routes.get("/static/{name}")
async def static_file(name: str, request: Request) -> Response:
    """Return a file of `static/`. Raises WrongCohort for another name."""
    if name not in _STATIC:
        raise WrongCohort(f"there is no file {name} here")
    body, kind, tag = _STATIC[name]
    headers = {**security_headers(), "Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=kind)
