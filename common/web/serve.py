"""From the environment to a listening service: settings, port, database, one worker, a graceful end."""

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from common.errors import ProtocolError
from common.web.logs import configure
from common.web.problems import bad_fields
from common.web.settings import ServiceSettings

S = TypeVar("S", bound=ServiceSettings)

GRACE_SECONDS = 20  # for what is in flight when the service is told to stop
BACKLOG = 512


def main(settings_type: type[S], build: Callable[[S], FastAPI]) -> int:
    """A service's `__main__`: 0 after a graceful end, 2 with one clear line when it cannot start."""
    try:
        settings = settings_type()
        settings.check()
        configure(settings.log_level)
        listener = bind(settings)
        with contextlib.closing(listener):
            return serve(build(settings), settings, listener)
    except ValidationError as error:
        return _say(settings_type.service, bad_fields(error, settings_type))
    except ProtocolError as error:
        return _say(settings_type.service, error)


def serve(app: FastAPI, settings: ServiceSettings, listener: socket.socket | None = None) -> int:
    """Serve until SIGTERM or SIGINT: stop accepting, wake the long polls, finish what is in flight, return 0."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_SECONDS
    )
    with contextlib.closing(listener or bind(settings)) as bound:
        host, port = bound.getsockname()[:2]
        structlog.get_logger("distrust.web").info("listening", service=settings.service, host=host, port=port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit)  # uvicorn raises the signal again when it is done; then this is a clean end
        server = _Server(config)
        server.run(sockets=[bound])
    return 0 if server.started else 1


def bind(settings: ServiceSettings) -> socket.socket:
    """The listening socket, taken before anything else is touched. ProtocolError when the address is not free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio then sets TCP_NODELAY
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ProtocolError(_why_not(settings, error)) from error
    return listener


class _Server(uvicorn.Server):
    """A uvicorn whose long polls end when it is told to stop, rather than hold it until they are over."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.doorbell.close()
        await super().shutdown(sockets)


def _exit(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def _why_not(settings: ServiceSettings, error: OSError) -> str:
    where = f"port {settings.port} on {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is busy: another program listens there; stop it or set DISTRUST_PORT"
    return f"{where} cannot be used: {error.strerror or os.strerror(error.errno or 0)}"


def _say(service: str, error: ProtocolError) -> int:
    for line in error.detail.splitlines():
        sys.stderr.write(f"distrust {service}: {line}\n")
    return 2
