"""Wires the aggregator: settings, database, service, routes."""

from fastapi import FastAPI

from distrust.aggregator.routes import router
from distrust.aggregator.service import Aggregator
from distrust.aggregator.settings import AggregatorSettings
from distrust.common.machine import Clock
from distrust.common.web.intermediary import close, wire


def build(settings: AggregatorSettings, clock: Clock | None = None) -> FastAPI:
    """The aggregator's app. Raises Unavailable or BadParameter when its database cannot be used."""
    return wire(Aggregator, router, settings, clock)


__all__ = ["build", "close"]
