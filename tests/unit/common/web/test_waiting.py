"""A long poll ends when something changes, when its time is over, or when the service stops; never a second later."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from common.web import waiting
from common.web.waiting import Doorbell


@pytest.fixture
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that only a ring can be what wakes."""
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 60.0)


def wait_while(bell: Doorbell, act: Callable[[], None], seconds: float = 20.0) -> tuple[bool, float]:
    """Whether `act`, done in another thread while a request waits, was seen; and after how long."""
    seen = threading.Event()

    def act_and_show() -> None:
        time.sleep(0.1)
        seen.set()
        act()

    started = time.monotonic()
    threading.Thread(target=act_and_show).start()
    found = asyncio.run(bell.until("c1", seen.is_set, bool, seconds))
    return found, time.monotonic() - started


def test_a_ring_wakes_who_waits_for_it(no_looking_again: None) -> None:
    bell = Doorbell()
    found, seconds = wait_while(bell, lambda: bell.ring("c1"))
    assert found
    assert seconds < 10


def test_a_ring_for_another_topic_wakes_nobody(no_looking_again: None) -> None:
    bell = Doorbell()
    looks: list[None] = []

    async def poll() -> None:
        waiter = asyncio.create_task(bell.until("c1", lambda: looks.append(None), lambda _: False, 0.4))
        await asyncio.sleep(0.1)
        bell.ring("c2")
        await waiter

    asyncio.run(poll())
    assert len(looks) == 2  # at the start and at the end


def test_another_workers_change_is_seen_without_a_ring() -> None:
    found, seconds = wait_while(Doorbell(), lambda: None)
    assert found
    assert seconds < 10


def test_when_the_time_is_over_the_last_look_is_the_answer() -> None:
    assert asyncio.run(Doorbell().until("c1", lambda: 7, lambda _: False, 0.05)) == 7


def test_a_service_that_stops_lets_nobody_wait(no_looking_again: None) -> None:
    bell = Doorbell()
    started = time.monotonic()
    threading.Timer(0.1, bell.close).start()
    assert asyncio.run(bell.until("c1", lambda: False, bool, 60)) is False
    assert asyncio.run(bell.until("c1", lambda: False, bool, 60)) is False
    assert time.monotonic() - started < 10


def test_nobody_is_remembered_after_the_answer() -> None:
    bell = Doorbell()
    asyncio.run(bell.until("c1", lambda: True, bool, 1))
    assert bell._waiting == {}
