"""Runs a service from its environment variables: settings, port, app, one worker, a graceful end."""

import contextlib
import ctypes
import errno
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from typing_extensions import override
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from distrust.common.errors import ProtocolError
from distrust.common.inputs import as_typed
from distrust.common.protocol.web.observability import configure
from distrust.common.protocol.web.problems import bad_fields
from distrust.common.protocol.web.proxy import STOP_SECONDS
from distrust.common.protocol.web.settings import ServiceSettings

S = TypeVar("S", bound=ServiceSettings)

BACKLOG = 512  # connections that wait at the listener to be accepted
LAST_RESORT = 2  # times DISTRUST_MAX_CONNECTIONS: connections from which a request is answered with a bare 503
PRIVATE = 0o077  # umask: only the owner may read a service's files
SPARE_FILES = 512  # files besides callers' connections: databases, logs, connections to other services
MOST_HEAD = 64 * 1024  # bytes of a head whose end has not come, or of trailers
MOST_FIELDS = 100  # headers of a request: a small one takes twenty times its bytes
LARGE_BLOCK = 256 * 1024  # bytes from which a free block of memory is returned to the system at once
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h

SWITCH_SECONDS = 0.0005
"""Seconds after which a thread that computes yields to the one that serves. Python's 5 ms would delay every read."""

_log = structlog.get_logger("distrust.web")


def run_service(settings_type: type[S], build: Callable[[S], FastAPI]) -> int:
    """Run a service. Return 0 after a graceful end, 2 with one line on stderr when it cannot start."""
    os.umask(PRIVATE)
    sys.setswitchinterval(SWITCH_SECONDS)
    give_memory_back()

    def run(settings: S) -> int:
        settings.check()
        configure(settings.log_level)
        with contextlib.closing(bind(settings)) as listener:
            app = _built(build, settings)
            gc.freeze()  # what was imported and built stays: looking through it again takes 0.1 s
            return serve_app(app, settings, listener)

    return with_settings(settings_type, run)


def with_settings(settings_type: type[S], work: Callable[[S], int]) -> int:
    """Return what `work` returns for the settings of this process; 2 with a line a fault on stderr if it refuses."""
    service = settings_type.service
    try:
        return work(settings_type())
    except ValidationError as error:
        return _fail(service, bad_fields(error, settings_type))
    except ProtocolError as error:
        return _fail(service, error)


def give_memory_back() -> None:
    """Return blocks of LARGE_BLOCK bytes and more to the system as soon as they are free.

    The C library of Linux otherwise raises that size to the largest block freed before, up to 32 MiB, and keeps smaller
    blocks. Other systems have no such call.
    """
    try:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE_BLOCK)
    except (AttributeError, OSError, TypeError):
        _log.debug("allocator_default")


def _built(build: Callable[[S], FastAPI], settings: S) -> FastAPI:
    """Return the app. Raises ProtocolError for any failure: the files on disk may be anything."""
    try:
        return build(settings)
    except ProtocolError:
        raise
    except Exception as error:
        _log.debug("start_failed", exc_info=True)
        why = (str(error).splitlines() or [""])[0]
        more = "DISTRUST_LOG_LEVEL=debug says more"
        raise ProtocolError(f"cannot start: {type(error).__name__}: {why} ({more})") from error


def options(app: FastAPI, settings: ServiceSettings) -> uvicorn.Config:
    """Return uvicorn's options: no headers of proxies, no WebSockets, and a last resort against connections.

    Fairness between callers, and the pace of heads and bodies, are a proxy's work (`proxy.py`).
    """
    own_tls = settings.tls()
    return uvicorn.Config(
        app,
        loop="auto",  # uvloop, which takes less CPU than asyncio's own loop, where it is installed
        http=_Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_context_factory=None if own_tls is None else lambda _config, _default: own_tls,
        backlog=BACKLOG,
        limit_concurrency=allow_connections(LAST_RESORT * settings.max_connections),
        timeout_keep_alive=settings.idle_seconds,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def allow_connections(wanted: int) -> int:
    """Return how many connections may be open at once: `wanted`, or fewer if the limit of open files needs it.

    Raises this process's own limit of open files as far as it takes, and the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES
    files = need if hard == resource.RLIM_INFINITY else min(need, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if files < need:
        allowed = max(files - SPARE_FILES, files // 2)
        _log.warning("connection_limit", wanted=wanted, allowed=allowed, files=files)
        return allowed
    return wanted


def serve_app(app: FastAPI, settings: ServiceSettings, listener: socket.socket | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then stop accepting, wake long polls, finish open requests, and return 0."""
    with contextlib.closing(listener or bind(settings)) as bound:
        server = _Server(options(app, settings))
        host, port = bound.getsockname()[:2]
        _log.info("listening", service=settings.service, host=host, port=port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit)  # uvicorn raises the signal again when it is done; then this is a clean end
        try:
            server.run(sockets=[bound])
        except SystemExit as end:
            if end.code != STARTUP_FAILURE:
                raise
            raise ProtocolError("cannot start: the log's last lines say why") from end
    return 0 if server.started else 1


def bind(settings: ServiceSettings) -> socket.socket:
    """Return the listening socket. Raises ProtocolError when the address is not free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio then sets TCP_NODELAY
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ProtocolError(_why_not(settings, error)) from error
    return listener


class _Connection(HttpToolsProtocol):
    """HTTP/1.1 of one connection, read by a parser in C, which has no limits of its own.

    The service closes a connection whose head, trailers or chunk extensions are too large, and one that sends a request
    before it has the answer to the last one. It keeps no trailer: a proxy does not look at them.
    """

    _unread = 0  # bytes since the end of a head, a piece of a body or the end of a message
    _fields = 0  # of the head that is being read; negative: none is

    @override
    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"More than {MOST_HEAD} bytes of a head.")

    @override
    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            raise ValueError("a request before the answer to the last one")  # the parser stops; see send_400_response
        super().on_message_begin()
        self._fields = 0

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._fields < 0:  # a trailer
            return
        self._fields += 1
        if self._fields > MOST_FIELDS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._unread, self._fields = 0, -1
        hosts = sum(name == b"host" for name, _ in self.headers)
        if self.parser.get_http_version() != "1.1" or hosts != 1:
            raise ValueError("not HTTP/1.1 with one Host")
        if not self.url.startswith(b"/") or b"#" in self.url:  # so that a proxy's rules read the same target
            raise ValueError("the target is no path")
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # the caller would take it for the answer to its request
        else:
            super().send_400_response(msg)


class _Server(uvicorn.Server):
    """A uvicorn that wakes its long polls when it stops."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.notifier.close()  # type: ignore[union-attr]  # it is an app of ours, and no name of one
        await super().shutdown(sockets)


def _exit(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def _why_not(settings: ServiceSettings, error: OSError) -> str:
    where = f"port {settings.port} on {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is busy: another program listens there; stop it or set DISTRUST_PORT"
    return f"{where} cannot be used: {error.strerror or os.strerror(error.errno or 0)}"


def _fail(service: str, error: ProtocolError) -> int:
    """Write what is wrong, a line each. A line that begins with a setting names its environment variable."""
    for line in error.detail.splitlines():
        told = as_typed(line, line.partition(" = ")[0], (), os.environ)
        sys.stderr.write(f"distrust {service}: {told}\n")
    return 2
