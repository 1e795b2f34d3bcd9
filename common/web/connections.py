"""Bounds a service's connections: the pace of new ones, the number of open ones, the time that a request may take.

asyncio accepts whatever has queued up at once, up to the listener's backlog, and each request of it is begun before
those that are under way go on. So a few thousand new connections would stop all others for seconds; `Entrance`
accepts them at a pace instead.
uvicorn bounds idle keep-alive connections only. A connection that sends half a request's head, or goes on sending a
body after its answer, would stay open without end there; `GuardedProtocol` closes it.
"""

import asyncio
import errno
import math
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import h11
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

BURST = 64
"""Connections that may come at once, before the pace holds."""

LINGER_SECONDS = 5.0
"""Seconds in which a caller may send the rest of a refused body, and so reach its answer."""

SPARE = 128
"""Connections above the limit, as long as all those within it are busy."""

KNOWN = 4
"""Requests after which a connection is kept in preference to those that have made fewer."""

CHUNK = 128 * 1024
"""Bytes that are read from a connection at once. All connections share one buffer."""

READ_SECONDS = 60.0
"""Seconds in which a caller must go on reading an answer that fills the buffers on the way."""

SMALL_REQUEST = 16 * 1024
"""Bytes of a request that may be answered unread without an end to its connection."""

READ = "distrust.read"
"""Key of a request's scope: its body has a place among those that are read (`distrust.common.web.bodies`)."""

BODY_BURST = 4 * 2**20
"""Bytes of larger requests that may come at once, before the pace holds."""

_RETRY_SECONDS = 1.0
"""Pause after an `accept` for which the machine had no descriptor or memory left."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TURN = 32  # abandoned connections that are left out before other tasks have a turn
_HALF_CLOSED = getattr(select, "POLLRDHUP", 0)  # only Linux can tell; elsewhere they are accepted, and noticed later

_log = structlog.get_logger("distrust.web")


class BodyPace:
    """Bytes of many bodies together arrive at `rate` a second at most, after BODY_BURST.

    most  seconds that a sender waits at most; later dues are forgotten.
    """

    def __init__(self, rate: float, most: float = math.inf) -> None:
        self._rate, self._most = rate, most
        self._due = 0.0  # the time at which all that has arrived would have arrived at the rate

    def take(self, size: int, now: float) -> float:
        """Count bytes that have arrived. Return the seconds before more of the same body may be read."""
        due = max(self._due, now - BODY_BURST / self._rate) + size / self._rate
        self._due = min(due, now + self._most)
        return max(0.0, self._due - now)


class PacedFlow(FlowControl):
    """Reading stops while uvicorn's buffer is full, and while the pace holds the connection up."""

    _full = _held = False

    def pause_reading(self) -> None:
        self._full = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._full = False
        self._settle()

    def hold(self) -> None:
        """Stop reading until `release`."""
        self._held = True
        super().pause_reading()

    def release(self) -> None:
        """End what `hold` began."""
        self._held = False
        self._settle()

    def _settle(self) -> None:
        if not (self._full or self._held or self._transport.is_closing()):
            super().resume_reading()


class Pace:
    """At most `rate` connections a second, after a burst of `burst`.

    Only time without callers earns a new burst. A service that is late does not catch up: it accepts fewer than `rate`.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst, self._left = rate, burst, float(burst)

    def take(self, idle: float) -> float:
        """Count a connection that came after `idle` seconds without any. Return the seconds to wait before the next."""
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
        """Return the next connection; None when its caller has gone, or the process has no file left for it."""
        try:
            connection, _ = await loop.sock_accept(self._listener)
        except OSError as error:
            if error.errno in _EXHAUSTED:
                _log.error("accept_failure", why=error.strerror)
                await asyncio.sleep(_RETRY_SECONDS)
                return None
            if self._listener.fileno() < 0:
                raise
            return None  # the caller was gone before it could be accepted
        return connection


def is_closed_by_caller(connection: socket.socket) -> bool:
    """Return whether the caller has closed its side: no answer would reach it."""
    if not _HALF_CLOSED:
        return False
    poll = select.poll()
    poll.register(connection, _HALF_CLOSED)
    return bool(poll.poll(0))


@dataclass(slots=True)
class Connections:
    """The connections of one service.

    most            open at once. One more closes the connection that has waited longest for a request; one that has
                    made KNOWN requests is closed only where there is no other. Where all others have a request in
                    work, SPARE new connections may send theirs.
    header_seconds  for a request's head to arrive, from its first byte, or from the connection's beginning.
    pace            of what is read of refused bodies, all of them together, until their answers have arrived.
    """

    most: int
    header_seconds: float
    pace: BodyPace
    strangers: dict["GuardedProtocol", None] = field(default_factory=dict)  # without a whole head yet, longest first
    regulars: dict["GuardedProtocol", None] = field(default_factory=dict)  # the same, after KNOWN requests
    count: int = 0

    def enter(self, connection: "GuardedProtocol") -> None:
        """Count a new connection, and make room for it."""
        self.count += 1
        self.wait(connection)
        longest = next(iter(self.strangers if len(self.strangers) > 1 else self.regulars or self.strangers))
        if self.count > self.most and (longest is not connection or self.count > self.most + SPARE):
            longest.give_up()

    def leave(self, connection: "GuardedProtocol") -> None:
        """Forget a connection that was closed."""
        self.count -= 1
        self.end_wait(connection)

    def wait(self, connection: "GuardedProtocol") -> None:
        """Count a connection as one that waits for a head, from now on unless it has waited before."""
        (self.regulars if connection.served >= KNOWN else self.strangers).setdefault(connection)

    def end_wait(self, connection: "GuardedProtocol") -> None:
        """Note that a head is whole, or that the connection is closed."""
        self.strangers.pop(connection, None)
        self.regulars.pop(connection, None)


class GuardedProtocol(H11Protocol, asyncio.BufferedProtocol):
    """HTTP/1.1 with time-outs for heads, and for bytes that follow an answer. `guarded` makes one for a service."""

    limits: ClassVar[Connections]  # `connections` is a name of uvicorn's
    chunk: ClassVar[bytearray]  # of all connections: what is read is taken out before another one is read

    flow: PacedFlow
    served = 0  # requests that were answered
    arrived = 0  # bytes since the last answer
    last = False  # no request after this one: its body was large, and was not read to its end
    _timer: asyncio.TimerHandle | None = None  # for what the caller has to send
    _reader: asyncio.TimerHandle | None = None  # for what it has to read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.flow = PacedFlow(self.transport)
        self._arm(self.limits.header_seconds)
        self.limits.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._stop_reader()
        self.limits.leave(self)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the buffer to read into. The transport's `sizehint` is not binding."""
        del sizehint
        return self.chunk

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read out of the buffer."""
        self.data_received(bytes(memoryview(self.chunk)[:nbytes]))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._keep_pace(len(data))
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self.give_up()  # it sent more before it was answered: no client of ours does, and its bytes stay in memory
        else:
            self._watch()

    def on_response_complete(self) -> None:
        # Large bodies that nothing reads take time too. New connections come at a pace, requests on old ones do not.
        unread = READ not in self.scope or self.conn.their_state is h11.SEND_BODY
        self.last = self.arrived > SMALL_REQUEST and unread
        self.arrived = 0
        super().on_response_complete()
        self.served += 1
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_reader()
        self._reader = self.loop.call_later(READ_SECONDS, self.give_up)

    def resume_writing(self) -> None:
        self._stop_reader()
        super().resume_writing()

    def give_up(self) -> None:
        """Close at once, without an answer: no whole request is lost by it."""
        self.limits.end_wait(self)
        self.transport.abort()

    def _keep_pace(self, size: int) -> None:
        """Count the bytes that have arrived. Read no more of a refused body before they are due."""
        self.arrived += size
        if not self.last:
            return
        seconds = self.limits.pace.take(size, self.loop.time())
        if seconds > 0:
            self.flow.hold()
            self.loop.call_later(seconds, self.flow.release)

    def _watch(self) -> None:
        """Arm or disarm the timer: the caller owes the rest of a head, the rest of a refused body, or nothing."""
        if self.transport.is_closing():
            return
        answered = self.cycle is not None and self.cycle.response_complete
        if self.last and self.conn.their_state is not h11.SEND_BODY:
            self.transport.close()
        elif self.conn.their_state is h11.IDLE:
            self.limits.wait(self)
            if self.timeout_keep_alive_task is None:  # a head has begun; uvicorn's own timer ends idle connections
                self._arm(self.limits.header_seconds)
        elif self.conn.their_state is h11.SEND_BODY and answered:
            self._arm(LINGER_SECONDS)
        else:
            self.limits.end_wait(self)
            self._disarm()

    def _arm(self, seconds: float) -> None:
        """Start the timer of `seconds`, unless it runs already."""
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self.give_up)

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def guarded_protocol(connections: Connections) -> type[GuardedProtocol]:
    """Return the protocol of one service's connections, for uvicorn to make one of each."""
    members: dict[str, Any] = {"limits": connections, "chunk": bytearray(CHUNK)}
    return type("ServiceProtocol", (GuardedProtocol,), members)
