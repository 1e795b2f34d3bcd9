"""Connections are let in at a pace; those that their callers closed, and those of strangers, go first."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from distrust.common.web.connections import (
    BURST,
    KNOWN,
    Connections,
    Entrance,
    GuardedProtocol,
    Pace,
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
    came = asyncio.Event()
    left_out: list[None] = []

    def protocol() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        came.set()
        return made[-1]

    async def whole() -> None:
        for _ in range(2 * BURST):
            socket.create_connection(listener.getsockname()).close()
        with socket.create_connection(listener.getsockname()) as caller:
            entrance = Entrance(listener, protocol, 100.0, lambda: left_out.append(None))
            admitting = asyncio.create_task(entrance.admit())
            await asyncio.wait_for(came.wait(), 10)
            admitting.cancel()
            await asyncio.gather(admitting, return_exceptions=True)
            caller.close()
            await asyncio.sleep(0.05)  # the transport closes its side

    asyncio.run(whole())
    assert (len(made), len(left_out)) == (1, 2 * BURST)


class Caller(GuardedProtocol):
    """A connection that waits for a head, as far as its limits care."""

    def __init__(self, served: int) -> None:
        self.served, self.closed = served, False

    def give_up(self) -> None:
        self.closed = True


def test_a_regular_is_kept_before_strangers_though_it_has_waited_longer() -> None:
    limits = Connections(3, 10.0)
    regular, first, second, third = (Caller(served) for served in (KNOWN, 0, 0, 0))
    for caller in (regular, first, second, third):
        limits.enter(caller)
    assert [caller.closed for caller in (regular, first, second, third)] == [False, True, False, False]
