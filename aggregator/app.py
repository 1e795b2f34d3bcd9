"""Wires the aggregator: settings, database, service, routes."""

from fastapi import FastAPI

from aggregator.routes import router
from aggregator.service import Aggregator
from aggregator.settings import AggregatorSettings
from common.clock import Clock
from common.web.intermediary_app import close, wire


def build(settings: AggregatorSettings, clock: Clock | None = None) -> FastAPI:
    """The aggregator's app. Raises Unavailable or BadParameter when its database cannot be used."""
    return wire(Aggregator, router, settings, clock)


__all__ = ["build", "close"]
