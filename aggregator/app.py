"""Wires the aggregator: settings, database, service, routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from aggregator.routes import router
from aggregator.service import Aggregator
from aggregator.settings import AggregatorSettings
from common.clock import Clock, SystemClock
from common.database import Database
from common.intermediary.tables import METADATA, VERSION
from common.web import intermediary
from common.web.app import make_app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    close(app)


def build(settings: AggregatorSettings, clock: Clock | None = None) -> FastAPI:
    """The aggregator's app. Raises Unavailable or BadParameter when its database cannot be used."""
    database = Database(settings.database_url, METADATA, VERSION)
    app = make_app("distrust aggregator", _lifespan, [intermediary.router, router], settings)
    app.state.database = database
    app.state.service = Aggregator(database, clock or SystemClock(), app.state.doorbell.ring)
    return app


def close(app: FastAPI) -> None:
    """Finish the batch that is being summed, and let go of the database."""
    app.state.service.close()
    app.state.database.close()
