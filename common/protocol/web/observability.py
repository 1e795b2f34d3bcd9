"""Logs and metrics of a service.

Logs are one JSON object a line on stderr, and never hold bodies, tickets or tokens. Metrics are requests, seconds and
bytes by route for Prometheus; each app has its own registry, so that tests share nothing.
"""

import functools
import logging
import sys

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram


def configure(level: str) -> None:
    """Send structlog's and the standard library's records (uvicorn's, asyncio's) to stderr as JSON."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    renderers: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.JSONRenderer(),
    ]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=renderers, foreign_pre_chain=shared))
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def known_method(method: str) -> str:
    """Return the method, or `other` for one that no route has: callers must not invent labels."""
    return method if method in METHODS else "other"


class Metrics:
    """A service's counters; `registry` takes its own gauges too."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route"]
        self._requests = Counter("distrust_requests", "requests", [*labels, "status"], registry=self.registry)
        self._seconds = Histogram("distrust_request_seconds", "time to answer", labels, registry=self.registry)
        self._bytes = Counter("distrust_received_bytes", "bytes of request bodies", labels, registry=self.registry)
        self._of = functools.cache(self._labelled)

    def record(self, method: str, route: str, status: int, seconds: float, received: int) -> None:
        """Count one request. `method` and `route` come from closed sets: a new label is never removed."""
        requests, duration, size = self._of(method, route, status)
        requests.inc()
        duration.observe(seconds)
        size.inc(received)

    def _labelled(self, method: str, route: str, status: int) -> tuple[Counter, Histogram, Counter]:
        """Return the counts of one kind of request. They are looked up once: a look takes as long as a count."""
        labels = method, route
        return self._requests.labels(*labels, status), self._seconds.labels(*labels), self._bytes.labels(*labels)
