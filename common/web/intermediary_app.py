"""Wires an S: settings, database, service, routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from common.clock import Clock, SystemClock
from common.database import Database
from common.intermediary.service import Intermediary
from common.intermediary.tables import METADATA, VERSION
from common.web import intermediary
from common.web.app import make_app
from common.web.settings import IntermediarySettings


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    close(app)


def wire(
    kind: type[Intermediary], own: APIRouter, settings: IntermediarySettings, clock: Clock | None = None
) -> FastAPI:
    """The app of a `kind` of S with its `own` routes. Raises Unavailable, BadParameter: a database of no use."""
    database = Database(settings.database_url, METADATA, VERSION)
    app = make_app(f"distrust {kind.party}", _lifespan, [intermediary.router, own], settings)
    app.state.database = database
    app.state.service = kind(database, clock or SystemClock(), app.state.doorbell.ring)
    return app


def close(app: FastAPI) -> None:
    """Finish the batch that is being mixed, and let go of the database."""
    app.state.service.close()
    app.state.database.close()
