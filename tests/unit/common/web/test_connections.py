"""Tests that connections and large bodies are paced, and that unknown or idle connections are closed first."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from distrust.common.web.connections import (
    BODY_BURST,
    BURST,
    KNOWN,
    BodyPace,
    Connections,
    Entrance,
    GuardedProtocol,
    Pace,
    PacedFlow,
    is_closed_by_caller,
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=4 * BURST) as made:
        yield made


def test_after_a_burst_connections_come_at_a_pace() -> None:
    pace = Pace(100, 3)
    assert [pace.take(0.0) for _ in range(5)] == [0, 0, 0, 0.01, 0.01]


def test_only_time_without_callers_earns_another_burst() -> None:
    pace = Pace(100, 3)
    assert [pace.take(0.0) for _ in range(3)] == [0, 0, 0]
    assert [pace.take(idle) for idle in (0.0125, 0.0)] == [0, 0.01]
    assert [pace.take(idle) for idle in (60.0, 0.0, 0.0, 0.0)] == [0, 0, 0, 0.01]


def test_a_connection_that_its_caller_closed_is_told_whatever_it_sent(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n")
        accepted, _ = listener.accept()
        with accepted:
            assert not is_closed_by_caller(accepted)
            caller.close()
            assert is_closed_by_caller(accepted)


def test_closed_connections_are_left_out_and_others_let_in(listener: socket.socket) -> None:
    made: list[asyncio.Protocol] = []
    came, gone = asyncio.Event(), asyncio.Event()
    left_out: list[None] = []

    class Called(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            gone.set()

    def protocol() -> asyncio.Protocol:
        made.append(Called())
        came.set()
        return made[-1]

    async def whole() -> None:
        for _ in range(2 * BURST):
            socket.create_connection(listener.getsockname()).close()
        with socket.create_connection(listener.getsockname()) as caller:
            entrance = Entrance(listener, protocol, 100.0, lambda: left_out.append(None))
            admitting = asyncio.create_task(entrance.admit())
            await asyncio.wait_for(came.wait(), 60)
            admitting.cancel()
            await asyncio.gather(admitting, return_exceptions=True)
            caller.close()
            await asyncio.wait_for(gone.wait(), 60)  # the transport has closed its side

    asyncio.run(whole())
    assert (len(made), len(left_out)) == (1, 2 * BURST)


class Caller(GuardedProtocol):
    """A connection that waits for a head, as far as its limits care."""

    def __init__(self, served: int) -> None:
        self.served, self.closed = served, False

    def give_up(self) -> None:
        self.closed = True


def test_a_regular_is_kept_before_strangers_though_it_has_waited_longer() -> None:
    limits = Connections(3, 10.0, BodyPace(1e6))
    regular, first, second, third = (Caller(served) for served in (KNOWN, 0, 0, 0))
    for caller in (regular, first, second, third):
        limits.enter(caller)
    assert [caller.closed for caller in (regular, first, second, third)] == [False, True, False, False]


def test_large_bodies_together_arrive_at_the_rate_after_a_burst() -> None:
    pace = BodyPace(rate=1000.0)
    assert pace.take(BODY_BURST, 100_000.0) == 0.0
    assert pace.take(500, 100_000.0) == pytest.approx(0.5)
    assert pace.take(500, 100_000.25) == pytest.approx(0.75)
    assert pace.take(BODY_BURST, 200_000.0) == 0.0  # idle time earns one burst, not two


def test_reading_goes_on_only_when_neither_a_full_buffer_nor_the_pace_holds_it() -> None:
    transport = Paused()
    flow = PacedFlow(transport)
    flow.hold()
    flow.pause_reading()
    flow.release()
    assert transport.paused
    flow.hold()
    flow.resume_reading()
    assert transport.paused
    flow.release()
    assert not transport.paused


class Paused(asyncio.Transport):
    """A transport that says whether it reads."""

    paused = False

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
