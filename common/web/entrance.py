"""The way in: a service accepts connections at a pace, and leaves out those that their callers closed before.

asyncio accepts whatever has queued up at once, up to the listener's backlog, and each request of it is begun before
those that are under way go on. So a few thousand new connections stop everybody else for seconds.
"""

import asyncio
import errno
import select
import socket
from collections.abc import Callable

import structlog

BURST = 64
"""Connections that may come at once, before the pace holds."""

_RETRY_SECONDS = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TURN = 32  # abandoned connections that are left out before others have a turn
_HALF_CLOSED = getattr(select, "POLLRDHUP", 0)  # only Linux can tell; elsewhere they are let in, and found out later

_log = structlog.get_logger("distrust.web")


class Pace:
    """At most `rate` connections a second, after a burst of `burst`.

    Only time in which nobody came earns a new burst. A service that is late has no spare time, so it catches up with
    nothing, and lets in fewer than `rate`.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst, self._left = rate, burst, float(burst)

    def take(self, idle: float) -> float:
        """Take one that came after `idle` seconds without any; return the seconds before the next may be taken."""
        self._left = min(self._burst, self._left + idle * self._rate)
        if self._left < 1:
            return 1 / self._rate
        self._left -= 1
        return 0.0


class Entrance:
    """Accepts the connections of one listener, as long as `admit` runs.

    protocol   makes the protocol of one connection.
    rate       connections accepted in a second, after the first BURST.
    abandoned  called for each connection that its caller had closed before it was accepted.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        rate: float,
        abandoned: Callable[[], None],
    ) -> None:
        self._listener, self._protocol = listener, protocol
        self._pace, self._abandoned = Pace(rate, BURST), abandoned
        listener.setblocking(False)

    async def admit(self) -> None:
        """Accept one connection after another, until cancelled."""
        loop, left_out = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            connection = await self._accept(loop)
            if connection is None:
                continue
            if is_closed_by_caller(connection):
                connection.close()
                self._abandoned()
                left_out += 1
                if left_out % _TURN == 0:
                    await asyncio.sleep(0)
                continue
            idle = loop.time() - began
            try:
                await loop.connect_accepted_socket(self._protocol, connection)
            except OSError:  # it went away meanwhile
                connection.close()
            await asyncio.sleep(self._pace.take(idle))

    async def _accept(self, loop: asyncio.AbstractEventLoop) -> socket.socket | None:
        """The next connection; None when there was none after all, or nothing to hold it with."""
        try:
            connection, _ = await loop.sock_accept(self._listener)
        except OSError as error:
            if error.errno in _EXHAUSTED:
                _log.error("no_connection", why=error.strerror)
                await asyncio.sleep(_RETRY_SECONDS)
                return None
            if self._listener.fileno() < 0:
                raise
            return None  # the caller was gone before it could be accepted
        return connection


def is_closed_by_caller(connection: socket.socket) -> bool:
    """Whether the caller has closed its side, whatever it sent before: the answer would reach no one."""
    if not _HALF_CLOSED:
        return False
    asked = select.poll()
    asked.register(connection, _HALF_CLOSED)
    return bool(asked.poll(0))
