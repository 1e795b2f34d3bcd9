"""Wires the server: settings, keys, database, service, conductor, routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from distrust.common.extensions import allow
from distrust.common.web.app import make_app
from distrust.server.intermediary import HttpIntermediaries
from distrust.server.keys import load_or_make
from distrust.server.routes import operations, rounds, runs
from distrust.server.runs.coordinator import Intermediaries, RunCoordinator
from distrust.server.service import Service
from distrust.server.settings import ServerSettings
from distrust.server.store import open_database


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The conductor runs on the loop that serves; over HTTP unless `build` was given other intermediaries."""
    settings: ServerSettings = app.state.settings
    http = None
    intermediaries = app.state.intermediaries
    if intermediaries is None:
        http = HttpIntermediaries(settings.shuffler_url, settings.aggregator_url, settings.operator_token())
        intermediaries = http
    app.state.conductor = RunCoordinator(app.state.service, intermediaries)
    await app.state.conductor.start()
    try:
        yield
    finally:
        await app.state.conductor.stop()
        if http is not None:
            await http.aclose()
        app.state.database.close()


def build(settings: ServerSettings, intermediaries: Intermediaries | None = None) -> FastAPI:
    """The server's app. Raises Unavailable or BadParameter when its database or key file cannot be used."""
    app = make_app("distrust server", _lifespan, [runs, rounds, operations], settings)
    app.state.intermediaries = intermediaries
    allow(*map(str.strip, settings.extensions.split(",")))
    app.state.database = open_database(settings.database_url)
    app.state.database.hold()
    keys = load_or_make(settings.key_file)
    app.state.service = Service(app.state.database, keys, app.state.notifier.ring, settings.window)
    return app
