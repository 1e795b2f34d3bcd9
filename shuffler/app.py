"""Wires the shuffler: settings, database, service, routes."""

from fastapi import FastAPI

from distrust.common.machine import Clock
from distrust.common.web.intermediary import close, wire
from distrust.shuffler.routes import router
from distrust.shuffler.service import Shuffler
from distrust.shuffler.settings import ShufflerSettings


def build(settings: ShufflerSettings, clock: Clock | None = None) -> FastAPI:
    """The shuffler's app. Raises Unavailable or BadParameter when its database cannot be used."""
    return wire(Shuffler, router, settings, clock)


__all__ = ["build", "close"]
