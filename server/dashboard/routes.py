"""The pages' routes: each asks the service for public messages, and renders them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response

from distrust.server.dashboard import PageRoute, page
from distrust.server.dashboard.views import Runs, runs_context

pages = APIRouter(include_in_schema=False, route_class=PageRoute)


async def _runs(request: Request) -> Runs:
    service: Runs = request.app.state.service
    return service


RunsDep = Annotated[Runs, Depends(_runs)]
Fragment = Annotated[str | None, Header(alias="X-Fragment", description="only the part that changes")]


@pages.get("/")
def list_runs(
    request: Request, service: RunsDep, before: Annotated[int | None, Query(ge=1)] = None, part: Fragment = None
) -> Response:
    """Return the list of runs."""
    context = runs_context(service, before)
    origin = str(request.base_url).rstrip("/")
    address = request.url.path + (f"?before={before}" if before else "")
    return page("runs.html", part=part, title="Runs", here="/", address=address, origin=origin, **context)
