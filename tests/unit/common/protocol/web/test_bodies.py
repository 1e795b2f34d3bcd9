"""Tests that bodies are bounded before they are parsed: in bytes, in number, in values and in time."""

import asyncio
import json
import time
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Message

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.common.protocol.messages.upload import ActionRequest, InboxRequest, Leaving, Receipts, Upload
from distrust.common.protocol.web.bodies import MOST_BODIES, SMALL_BODY, Bodies, JsonBody, Visit, count_values
from distrust.common.protocol.web.settings import ServiceSettings
from distrust.common.wire import Message as Message_
from distrust.common.wire import read_message

CHUNK = SMALL_BODY + 1


class Sender:
    """A caller that sends chunks when it is told to."""

    def __init__(self, bodies: Bodies, **limits: Any) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        settings = ServiceSettings(**{"max_bodies": 3 * CHUNK, "max_body": 3 * CHUNK, **limits})
        scope = {"type": "http", "method": "POST", "headers": []}
        self.visit = Visit(scope, self._messages.get, self._no_answer, settings, bodies)

    async def _no_answer(self, message: Message) -> None:
        raise AssertionError(message)

    async def send(self, size: int = CHUNK, *, more: bool = True) -> Message:
        """Let a chunk arrive."""
        self._messages.put_nowait({"type": "http.request", "body": bytes(size), "more_body": more})
        return await self.visit.receive()


def test_a_body_waits_for_room_while_others_are_worked_on() -> None:
    async def whole() -> None:
        bodies = Bodies(3 * CHUNK)
        first, second = Sender(bodies), Sender(bodies)
        await first.send(2 * CHUNK, more=False)
        await second.send()
        waiting = asyncio.create_task(second.send(more=False))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        first.visit.close()
        assert len((await waiting)["body"]) == CHUNK

    asyncio.run(whole())


def test_where_all_bodies_still_arrive_the_slowest_one_gives_way() -> None:
    async def whole() -> None:
        bodies = Bodies(3 * CHUNK)
        slow, quick = Sender(bodies), Sender(bodies)
        await slow.send()
        stalled = asyncio.create_task(slow.visit.receive())
        await asyncio.sleep(0.05)
        quick.visit.started = time.perf_counter()
        await quick.send(2 * CHUNK)
        await quick.send(more=False)
        with pytest.raises(HTTPException) as caught:
            await stalled
        assert caught.value.status_code == 503

    asyncio.run(whole())


def test_one_body_too_many_takes_the_place_of_the_slowest() -> None:
    async def whole() -> None:
        bodies = Bodies(10 * MOST_BODIES * CHUNK)
        senders = [Sender(bodies) for _ in range(MOST_BODIES)]
        for one in senders:
            await one.send()
        senders[3].visit.started -= 60
        await Sender(bodies).send()
        assert [sender.visit.evicted for sender in senders] == [number == 3 for number in range(MOST_BODIES)]

    asyncio.run(whole())


@pytest.mark.parametrize("sign", ["\N{GRINNING FACE}", "\\ud83d\\ude00"])
def test_a_large_body_whose_texts_would_take_four_bytes_a_character_is_refused_unparsed(sign: str) -> None:
    body = f'{{"version":3,"cohort":"c1","digest":"","stage":"report","items":[],"more":"{"A" * 70_000}{sign}"}}'
    with pytest.raises(BadMessage, match="must be plain ASCII"):
        JsonBody(Upload)._parse(bytearray(body.encode()), 100, 20)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_request_that_takes_no_body_is_refused_with_one(method: str) -> None:
    scope = {"type": "http", "method": method, "headers": [(b"host", b"localhost"), (b"content-length", b"5")]}
    caller = Sender(Bodies(3 * CHUNK)).visit
    visit = Visit(scope, caller._receive, caller._send, ServiceSettings(), Bodies(3 * CHUNK))
    refusal = visit.refusal()
    assert refusal is not None
    assert refusal.status_code == 413


def test_a_small_body_always_has_room() -> None:
    async def whole() -> None:
        bodies = Bodies(3 * CHUNK)
        await Sender(bodies).send(3 * CHUNK, more=False)
        assert len((await asyncio.wait_for(Sender(bodies).send(SMALL_BODY, more=False), 60))["body"]) == SMALL_BODY

    asyncio.run(whole())


def test_a_body_that_drips_is_refused_when_its_time_is_over() -> None:
    async def whole() -> float:
        caller, began = Sender(Bodies(3 * CHUNK), body_seconds=0.2), time.monotonic()
        with pytest.raises(HTTPException) as caught:  # noqa: PT012  how many chunks it takes is open
            while True:
                await caller.send(1)
                await asyncio.sleep(0.02)
        assert caught.value.status_code == 408
        return time.monotonic() - began

    assert asyncio.run(whole()) < 60


@pytest.mark.parametrize("clients", [0, 1, 7])
def test_values_are_counted_without_parsing_and_never_too_few(clients: int) -> None:
    items = [{"slot": slot, "ticket": "AA", "body": ""} for slot in range(clients)]
    raw = json.dumps({"version": 3, "cohort": "c1", "digest": "", "stage": "report", "items": items}).encode()
    Upload.model_validate_json(raw)
    assert 4 * clients + 6 <= count_values(raw) <= 4 * clients + 8


def test_room_for_all_bodies_holds_one_body_at_least() -> None:
    with pytest.raises(BadParameter, match="max_bodies = 2048: must be at least max_body = 4096"):
        ServiceSettings(max_body=4096, max_bodies=2048).check()


@pytest.mark.parametrize("model", [Upload, Leaving, ActionRequest, InboxRequest, Receipts, TicketRequest])
@pytest.mark.parametrize("member", [{}, {"x": 1}, "://:", -1], ids=repr)
def test_of_a_list_of_faults_a_client_may_send_the_first_one_is_built(model: type[Message_], member: object) -> None:
    """Each fault costs as much as many honest values, and its text as much again."""
    lists = {name: [member] * 5000 for name in model.model_fields}
    with pytest.raises(ValidationError) as refused:
        read_message(model, json.dumps(lists).encode())
    assert refused.value.error_count() <= 2 * len(lists)
