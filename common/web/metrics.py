"""What Prometheus reads: requests, seconds and bytes by route. One registry an app, so that tests share nothing."""

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response


class Metrics:
    """A service's counters; `registry` takes its own gauges too."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route"]
        self._requests = Counter("distrust_requests", "requests", [*labels, "status"], registry=self.registry)
        self._seconds = Histogram("distrust_request_seconds", "time to answer", labels, registry=self.registry)
        self._bytes = Counter("distrust_received_bytes", "bytes of request bodies", labels, registry=self.registry)

    def record(self, method: str, route: str, status: int, seconds: float, received: int) -> None:
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)
        self._bytes.labels(method, route).inc(received)

    def answer(self) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
