"""Writes the configuration of the HAProxy that stands in front of a service, from the service's settings.

The proxy does what a service cannot do well for itself: TLS, the pace of heads and bodies, fairness between callers. A
service checks types, sizes and hosts in any case (`bodies.py`): on loopback it runs without a proxy.
"""

import ipaddress
import math
from pathlib import Path
from typing import Any

from distrust.common.errors import BadParameter
from distrust.common.extras import jinja2
from distrust.common.protocol.web.bodies import MOST_BODIES, SMALL_BODY
from distrust.common.protocol.web.problems import FAULT, RETRY_SECONDS, document
from distrust.common.protocol.web.settings import ServiceSettings, is_loopback
from distrust.common.protocol.web.waiting import LONGEST_WAIT

_TEMPLATE = Path(__file__).with_name("haproxy.cfg.jinja")

IN_WORK = 256
"""Requests in work at once beside those that wait for news. Others queue in the proxy."""

SILENT_SECONDS = 15
"""Seconds beyond the longest wait for which a caller or the service may be silent within a request."""

CONNECTION_PERIOD = 10
"""Seconds over which new connections are counted: a server or a fleet that starts opens hundreds at once."""

CROWD = 4
"""Small requests of one address in work at once from which they are a crowd: a fleet of one client a round has two."""

LANES = 16
"""Lanes of the gate: crowds pass it one request at a time in each. An address is always in the same lane."""

GATE_SECONDS = 5  # for which a request in the gate may be silent: no honest one waits there

WAITING_PATHS = r"^/v1/(cohorts/[^/]+/[^/]+|.*/(batch|round|tickets|stage|statements|records))$"
"""Pattern of the paths that wait for news where a request says so."""

STREAMS = r"^/v1/runs/[^/]+/events$"
"""Pattern of the paths whose answers do not end while a run goes on."""

ADDRESSES = 4
"""Addresses that it takes to have all connections, each with as many as one may have."""

STOP_SECONDS = 20  # for requests in flight when a service or its proxy stops

LAST_PORT = 65_535

ABOVE = 1000  # the proxy's port less the service's, unless the settings say otherwise

_PROBLEMS = {
    400: ("bad-request", "this is no request that a service would answer"),
    408: ("too-slow", "the request did not arrive whole in its time"),
    413: ("too-large", "the body is larger than {max_body} bytes"),
    429: ("too-many-requests", "too many requests, errors or bytes from this address, or with this token: try again"),
    500: ("internal", "an unexpected error of the proxy"),
    502: ("unavailable", "the {service} gave no whole answer: try again"),
    503: ("unavailable", "the {service} is not there, or has too many requests at once: try again"),
    504: ("unavailable", "the {service} did not answer in time: try again"),
}
"""The proxy's own answers: code and detail. What has no whole head, or none of HTTP, gets HAProxy's own words."""


def haproxy_config(settings: ServiceSettings) -> str:
    """Return haproxy.cfg for one service. Raises BadParameter for settings that no proxy can have.

    A proxy beyond loopback needs a service with an operator's token. The token is not read: no proxy holds one.
    """
    listen = settings.proxy_listen or f"127.0.0.1:{settings.port + ABOVE}"
    target = settings.proxy_target or _address_of(settings)
    for field, address in (("proxy_listen", listen), ("proxy_target", target)):
        if not 1 <= int(address.rpartition(":")[2]) <= LAST_PORT:
            raise BadParameter(
                field, address, f"must have a port from 1 to {LAST_PORT}; unset, it follows DISTRUST_PORT"
            )
    if not is_loopback(_host(listen)):
        if settings.operator_token_file is None:
            raise BadParameter("proxy_listen", listen, "must be loopback unless DISTRUST_OPERATOR_TOKEN_FILE is set")
        if not (settings.proxy_certificate or settings.proxy_plain):
            why = "must be loopback unless DISTRUST_PROXY_CERTIFICATE is set, or DISTRUST_PROXY_PLAIN=1 for no TLS"
            raise BadParameter("proxy_listen", listen, why)
    places = settings.max_waits + IN_WORK
    most = min(places - 1, settings.max_connections // ADDRESSES)
    if settings.caller_connections > most:
        parts = f"max_connections / {ADDRESSES}, and below max_waits + {IN_WORK}"
        why = f"must be at most {most}, {parts}: others have to have places"
        raise BadParameter("caller_connections", settings.caller_connections, why)
    values: dict[str, Any] = {
        **settings.model_dump(),
        "service": settings.service,
        "listen": listen,
        "target": target,
        "by_name": not (is_loopback(_host(target)) or _is_address(_host(target))),
        "places": places,
        "body_rate": math.ceil(settings.body_rate),
        "new_connections": math.ceil(CONNECTION_PERIOD * settings.new_connections),
        "small": SMALL_BODY,
        "crowd": CROWD,
        "lanes": LANES,
        "gate_seconds": GATE_SECONDS,
        "waiting_paths": WAITING_PATHS,
        "streams": STREAMS,
        "bodies_at_once": MOST_BODIES,
        "fault": FAULT,
        "caller_waits": math.ceil(settings.caller_requests / 3),
        "caller_crowd": math.ceil(settings.caller_requests / 2),
        "caller_gate": math.ceil(settings.caller_requests / 6),
        "connection_period": CONNECTION_PERIOD,
        "longest_wait": math.ceil(LONGEST_WAIT),
        "silent_seconds": math.ceil(LONGEST_WAIT + SILENT_SECONDS),
        "stop_seconds": STOP_SECONDS,
        "retry_seconds": RETRY_SECONDS,
        "problems": [_problem(settings, status) for status in _PROBLEMS],
        "ms": lambda seconds: math.ceil(1000 * seconds),
    }
    # The values are checked settings, and the result is no page.
    lines = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    text: str = lines.from_string(_TEMPLATE.read_text("utf-8")).render(values)
    return text + "\n"


def _problem(settings: ServiceSettings, status: int) -> dict[str, Any]:
    """Return one of the proxy's own answers: its status, headers and body, as a service answers."""
    code, words = _PROBLEMS[status]
    detail = words.format(service=settings.service, max_body=settings.max_body)
    answer = document(f"urn:distrust:problem:{code}", code, status, detail)
    headers = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
    return {"status": status, "body": bytes(answer.body).decode(), "headers": headers, "kind": answer.media_type}


def _address_of(settings: ServiceSettings) -> str:
    """Return the address at which a proxy on the same machine reaches the service."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared only
    return f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"


def _host(address: str) -> str:
    """Return the host of `host:port`, without brackets."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
