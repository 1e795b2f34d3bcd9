"""Wires the shuffler: settings, database, service, routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from common.clock import Clock, SystemClock
from common.database import Database
from common.intermediary.tables import METADATA, VERSION
from common.web import intermediary
from common.web.app import make_app
from shuffler.routes import router
from shuffler.service import Shuffler
from shuffler.settings import ShufflerSettings


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    close(app)


def build(settings: ShufflerSettings, clock: Clock | None = None) -> FastAPI:
    """The shuffler's app. Raises Unavailable or BadParameter when its database cannot be used."""
    database = Database(settings.database_url, METADATA, VERSION)
    app = make_app("distrust shuffler", _lifespan, [intermediary.router, router], settings)
    app.state.database = database
    app.state.service = Shuffler(database, clock or SystemClock(), app.state.doorbell.ring)
    return app


def close(app: FastAPI) -> None:
    """Finish the batch that is being mixed, and let go of the database."""
    app.state.service.close()
    app.state.database.close()
