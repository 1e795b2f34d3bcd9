"""Tests that a long poll ends at once when something changes, its time is over, or the service stops."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from distrust.common.errors import Unavailable
from distrust.common.protocol.web import waiting
from distrust.common.protocol.web.waiting import ChangeNotifier, Waiting


def wait_while(bell: ChangeNotifier, act: Callable[[], None], seconds: float = 20.0) -> tuple[bool, float]:
    """Wait for a change that another thread makes, which then calls `act`.

    Return True if the request saw the change, and the seconds that it waited.
    """
    seen = threading.Event()

    def act_and_show() -> None:
        time.sleep(0.1)
        seen.set()
        act()

    started = time.monotonic()
    threading.Thread(target=act_and_show).start()
    result = asyncio.run(bell.until("c1", seen.is_set, bool, seconds))
    return result, time.monotonic() - started


def test_a_ring_wakes_who_waits_for_it() -> None:
    bell = ChangeNotifier()
    result, seconds = wait_while(bell, lambda: bell.notify("c1"))
    assert result
    assert seconds < 10


def test_a_ring_for_another_topic_wakes_no_poll() -> None:
    bell = ChangeNotifier()
    looks: list[None] = []

    async def poll() -> None:
        waiter = asyncio.create_task(bell.until("c1", lambda: looks.append(None), lambda _: False, 0.4))
        await asyncio.sleep(0.1)
        bell.notify("c2")
        await waiter

    asyncio.run(poll())
    assert len(looks) == 1  # at the start


def test_500_waits_on_500_topics_look_once_each_and_share_one_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looked four times a second, and small requests took hundreds of times as long."""
    monkeypatch.setattr(waiting, "SWEEP_SECONDS", 0.01)
    bell, looks, sweeps = ChangeNotifier(), list[int](), list[int]()
    due = "c7"

    def sweep() -> None:
        sweeps.append(1)
        if len(sweeps) == 20:
            bell.notify(due)

    bell.sweep = sweep

    async def many() -> int:
        def poll(topic: str) -> Awaitable[int]:
            look = lambda: looks.append(1) or len(sweeps)  # noqa: E731
            return bell.until(topic, look, lambda seen: seen >= 20, 20, question="stage")

        waits = {f"c{number}": asyncio.ensure_future(poll(f"c{number}")) for number in range(500)}
        seen = await waits[due]
        bell.close()
        await asyncio.gather(*waits.values())
        return seen

    assert asyncio.run(many()) >= 20
    assert len(looks) == 501  # one more of the cohort that was due
    swept = len(sweeps)
    time.sleep(0.05)
    assert len(sweeps) == swept  # no request waits


def test_a_sweep_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SWEEP_SECONDS", 0.01)
    bell, sweeps = ChangeNotifier(), list[int]()

    def sweep() -> None:
        sweeps.append(1)
        if len(sweeps) < 3:
            raise [Unavailable("the database is away"), ValueError("a bug")][len(sweeps) - 1]
        bell.notify("c1")

    bell.sweep = sweep
    assert asyncio.run(bell.until("c1", lambda: len(sweeps) > 2, bool, 20))


def test_when_the_time_is_over_the_last_look_is_the_answer() -> None:
    assert asyncio.run(ChangeNotifier().until("c1", lambda: 7, lambda _: False, 0.05)) == 7


def test_a_service_that_stops_ends_every_poll() -> None:
    bell = ChangeNotifier()
    started = time.monotonic()
    threading.Timer(0.1, bell.close).start()
    assert asyncio.run(bell.until("c1", lambda: False, bool, 60)) is False
    assert asyncio.run(bell.until("c1", lambda: False, bool, 60)) is False
    assert time.monotonic() - started < 10


def test_no_poll_is_remembered_after_the_answer() -> None:
    bell = ChangeNotifier()
    asyncio.run(bell.until("c1", lambda: True, bool, 1))
    assert bell._watches == bell._waits == {}


def test_a_crowd_that_asks_one_question_shares_its_looks() -> None:
    bell, looks = ChangeNotifier(), list[int]()

    def look() -> int:
        looks.append(len(looks))
        return len(looks)

    async def many_waiting() -> list[int]:
        waits = [bell.until("c1", look, lambda seen: seen > 3, 20, question="stage") for _ in range(500)]
        gathered = asyncio.gather(*waits)
        for _ in range(5):
            await asyncio.sleep(0.05)
            bell.notify("c1")
        return await gathered

    assert set(asyncio.run(many_waiting())) == {4}
    assert len(looks) <= 6
    assert bell._watches == bell._waits == {}


def test_two_questions_about_one_topic_get_their_own_answers() -> None:
    bell = ChangeNotifier()

    async def both() -> list[str]:
        polls = [bell.until("c1", lambda name=name: name, bool, 20, question=name) for name in ("batch", "stage")]  # type: ignore[misc]
        return await asyncio.gather(*polls)

    assert asyncio.run(both()) == ["batch", "stage"]


def test_no_request_gets_a_value_from_before_it_came() -> None:
    """The first look is slow, and what it saw has changed by the time that the second request begins to wait."""
    bell, state, looking = ChangeNotifier(), ["old"], threading.Event()

    def look() -> str:
        seen = state[0]
        if not looking.is_set():
            looking.set()
            time.sleep(0.2)
        return seen

    async def two() -> list[str]:
        first = asyncio.create_task(bell.until("c1", look, bool, 20, question="stage"))
        await asyncio.to_thread(looking.wait, 10)
        state[0] = "new"
        second = asyncio.create_task(bell.until("c1", look, bool, 20, question="stage"))
        return await asyncio.gather(first, second)

    assert asyncio.run(two()) == ["old", "new"]


def test_one_wait_too_many_answers_the_longest_as_it_stands() -> None:
    bell = ChangeNotifier(most=3)

    async def four() -> list[bool]:
        waits = [asyncio.create_task(bell.until("c1", lambda: False, bool, 20, question="stage")) for _ in range(3)]
        await asyncio.sleep(0.1)
        waits.append(asyncio.create_task(bell.until("c1", lambda: False, bool, 20, question="stage")))
        await asyncio.sleep(0.1)
        done = [wait.done() for wait in waits]
        bell.close()
        assert await asyncio.gather(*waits) == [False] * 4
        return done

    assert asyncio.run(four()) == [True, False, False, False]


def test_a_wait_ends_with_its_caller_and_leaves_nothing() -> None:
    bell = ChangeNotifier()
    messages: list[Message] = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        await asyncio.sleep(0.05)
        return messages.pop(0)

    with pytest.raises(ClientDisconnect):
        asyncio.run(Waiting(bell, receive).until("c1", lambda: False, bool, 60, question="stage"))
    assert bell._watches == bell._waits == {}


def test_what_goes_wrong_in_a_look_reaches_every_request_that_asked() -> None:
    bell = ChangeNotifier()

    async def three() -> list[object]:
        waits = [bell.until("c1", lambda: 1 // 0, bool, 20, question="stage") for _ in range(3)]
        return list(await asyncio.gather(*waits, return_exceptions=True))

    assert [type(error) for error in asyncio.run(three())] == [ZeroDivisionError] * 3


def test_a_value_that_is_known_is_answered_without_a_look() -> None:
    bell, known, looks = ChangeNotifier(), list[int](), list[int]()

    def look() -> int:
        looks.append(1)
        return 0

    async def poll() -> int:
        newest = lambda: known[-1] if known else None  # noqa: E731
        waiter = asyncio.create_task(bell.until("c1", look, bool, 20, question="batch", known=newest))
        await asyncio.sleep(0.1)
        known.append(7)
        bell.notify("c1")
        return await waiter

    assert asyncio.run(poll()) == 7
    assert len(looks) == 1  # before it was known
    assert asyncio.run(bell.until("c1", look, bool, 0, known=lambda: 8)) == 8


def test_a_look_that_fails_on_the_loop_fails_the_request() -> None:
    def fail() -> int:
        raise ValueError("no such cohort")

    with pytest.raises(ValueError, match="no such cohort"):
        asyncio.run(ChangeNotifier().until("c1", lambda: 1, bool, 5, known=fail))
