"""Wires the shuffler: settings, database, service, routes."""

from fastapi import FastAPI

from common.clock import Clock
from common.web.intermediary_app import close, wire
from shuffler.routes import router
from shuffler.service import Shuffler
from shuffler.settings import ShufflerSettings


def build(settings: ShufflerSettings, clock: Clock | None = None) -> FastAPI:
    """The shuffler's app. Raises Unavailable or BadParameter when its database cannot be used."""
    return wire(Shuffler, router, settings, clock)


__all__ = ["build", "close"]
