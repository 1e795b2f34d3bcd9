"""The pages' routes: each asks the service for public messages, and renders them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response

from distrust.server.dashboard import PageRoute, page
from distrust.server.dashboard.views import Runs, compare_context, run_context, runs_context

pages = APIRouter(include_in_schema=False, route_class=PageRoute)


async def _runs(request: Request) -> Runs:
    service: Runs = request.app.state.service
    return service


RunsDep = Annotated[Runs, Depends(_runs)]
Fragment = Annotated[str | None, Header(alias="X-Fragment", description="only the part that changes")]
Name = Annotated[str | None, Query(max_length=80)]


def origin_of(request: Request) -> str:
    """Return this server's address as the caller named it, for commands that a reader may copy."""
    return str(request.base_url).rstrip("/")


@pages.get("/")
def runs_page(
    request: Request, service: RunsDep, before: Annotated[int | None, Query(ge=1)] = None, part: Fragment = None
) -> Response:
    """Return the list of runs."""
    context = runs_context(service, before)
    address = "/" if before is None else f"/?before={before}"
    return page("runs.html", part=part, title="Runs", here="/", address=address, origin=origin_of(request), **context)


@pages.get("/runs/{run}")
def run_page(run: str, request: Request, service: RunsDep, part: Fragment = None) -> Response:
    """Return a run's page."""
    return page("run.html", part=part, title=run, origin=origin_of(request), **run_context(service, run))


@pages.get("/compare")
def compare_page(service: RunsDep, a: Name = None, b: Name = None) -> Response:
    """Return two runs side by side; without names, a form that asks for them."""
    names = [name for name in (a, b) if name]
    context = compare_context(service, names if len(names) == 2 else [])
    return page("compare.html", title="Compare", here="/compare", chosen={"a": a, "b": b}, **context)
