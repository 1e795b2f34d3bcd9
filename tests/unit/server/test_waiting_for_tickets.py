"""Tests that requests which wait for tickets get those of the next cohort with the outcome that they wait for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from distrust.common.errors import BadMessage
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.round import TicketAnswer
from distrust.server.runs.settlement import Serving
from distrust.server.runs.ticket_issuer import TicketIssuer
from distrust.server.runs.waiting_places import WaitingPlace
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import (
    REWARDS,
    ServerHarness,
    config,
    fill_first_round,
    play_first_round,
    serve,
    slots,
    unnamed,
    until,
)

SECOND = "demo.2.0.1"


def served_later(harness: ServerHarness, place: WaitingPlace) -> Cohort | None:
    """Serve a place as a later settlement of the run does. Return the cohort that is begun."""
    active = harness.service.active_run("demo")
    serving = Serving(harness.service.issuer, active, [place])
    with active.lock, serving.planned(active.rows()), harness.service.store.writing() as writing:
        serving.write(writing)
    return serving.answer()


def test_waiting_requests_get_the_next_cohorts_slots_in_turn_before_it_is_open(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, opens = asyncio.Event(), intermediaries.open

    async def open_late(cohort: Cohort) -> None:
        if cohort.cohort == SECOND:
            await gate.wait()
        await opens(cohort)

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        monkeypatch.setattr(intermediaries, "open", open_late)
        waiting = [asyncio.create_task(harness.wait("demo", want)) for want in (2, 3, 4)]
        await until(lambda: harness.waiting("demo") == 3)
        assert not any(task.done() for task in waiting)
        finish()
        first, second = [await task for task in waiting[:2]]
        assert SECOND not in intermediaries.opened
        assert [slots(first), slots(second)] == [[(SECOND, 0, 2)], [(SECOND, 2, 3)]]
        for answer in (first, second):
            assert answer.view is not None
            assert answer.view.round is not None
            assert SECOND in {assignment.cohort.cohort for assignment in answer.view.round.assignments}
        gate.set()
        await until(lambda: SECOND in intermediaries.opened)
        third = await waiting[2]
        assert third.grants[0].cohort == SECOND
        assert third.grants[0].first == 5
        assert intermediaries.opened.count(SECOND) == 1
        await harness.stop()

    asyncio.run(play())


def test_a_cohort_is_neither_recorded_nor_opened_while_no_client_waits(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        await play_first_round(harness)
        await asyncio.sleep(0.05)
        assert SECOND not in intermediaries.opened
        assert harness.reader.view("demo").cohorts_open == 0
        assert slots(await harness.wait("demo", 7)) == [(SECOND, 0, 7)]
        assert intermediaries.opened.count(SECOND) == 1  # before its tickets were out
        await harness.stop()

    asyncio.run(play())


@pytest.mark.parametrize(("limit", "value", "requests"), [("MOST_SERVED", 5, 2), ("SERVING_SECONDS", 0.0, 1)])
def test_a_settlement_serves_for_a_bounded_time_and_the_others_make_their_call_again(  # noqa: PLR0917  two fixtures
    tmp_path: Path,
    intermediaries: InMemoryIntermediaries,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: float,
    requests: int,
) -> None:
    """The cohort is opened behind it, and the first clients' messages come soon."""
    monkeypatch.setattr("distrust.server.runs.settlement.SERVING_SECONDS", 60.0)
    monkeypatch.setattr(f"distrust.server.runs.settlement.{limit}", value)
    served: list[int] = []

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        waiting = [asyncio.create_task(harness.wait("demo", 3)) for _ in range(6)]
        await until(lambda: harness.waiting("demo") == 6)
        settle = harness.service.settle

        def counted(cohort: Cohort, answer: BatchAnswer, places: list[WaitingPlace]) -> tuple[bool, Cohort | None]:
            begun = settle(cohort, answer, places)
            served.extend(place.answer is not None for place in places)
            return begun

        monkeypatch.setattr(harness.service, "settle", counted)
        finish()
        answers = [await task for task in waiting]
        assert sum(served) == requests
        firsts = [first for answer in answers for _, first, _ in slots(answer)]
        assert sorted(firsts) == list(range(0, 18, 3))
        await harness.stop()

    asyncio.run(play())


def test_a_request_that_is_sent_twice_at_once_gets_one_set_of_slots(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    """Its caller lost the connection, and the first call still waits."""

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        first = asyncio.create_task(harness.wait("demo", 7, "ab" * 16))
        await until(lambda: harness.waiting("demo") == 1)
        again = asyncio.create_task(harness.wait("demo", 7, "ab" * 16))
        await until(lambda: harness.waiting("demo") == 2)
        finish()
        assert slots(await again) == slots(await first) == [(SECOND, 0, 7)]
        assert harness.service.store.cohorts("demo", 2)[SECOND].granted == 7
        await harness.stop()

    asyncio.run(play())


def test_a_request_whose_wait_ends_while_a_settlement_grants_its_slots_gets_these_and_no_others(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        request = TicketRequest(request="ab" * 16, round=0, want=7, keys=bytes(32 * 7))
        assert (await harness.coordinator.tickets("demo", request)).grants == []
        signed = TicketIssuer.signed
        with harness.coordinator.places.waiting("demo", request) as place:
            ended: list[TicketAnswer | None] = []

            def sign_late(issuer: TicketIssuer, got: Any) -> TicketAnswer:
                if not ended:
                    ended.append(place.leave())  # behind the commit
                return signed(issuer, got)

            monkeypatch.setattr(TicketIssuer, "signed", sign_late)
            finish()
            await until(lambda: bool(ended))
            own = await harness.coordinator.tickets("demo", request)
            assert (ended, slots(own)) == ([None], [(SECOND, 0, 7)])
            assert place.served
        assert served_later(harness, WaitingPlace(request)) is None
        assert slots(await harness.coordinator.tickets("demo", request)) == slots(own)
        assert harness.service.store.cohorts("demo", 2)[SECOND].granted == 7
        await harness.stop()

    asyncio.run(play())


def test_a_request_that_was_served_before_gets_the_same_slots_from_a_later_settlement(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    """Its first call was answered, and its second one came to wait before it knew."""

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        with harness.coordinator.places.waiting(
            "demo", request := TicketRequest(request="ab" * 16, round=0, want=32, keys=bytes(32 * 32))
        ) as place:
            finish()
            await until(lambda: place.served)
        first = place.answer
        assert first is not None
        assert first.view is not None
        later = WaitingPlace(request)
        served_later(harness, later)
        assert later.answer is None or slots(later.answer) == slots(first)
        granted = harness.service.store.grants("demo", request.request)
        assert sum(row.count for row in granted) == 32
        await harness.stop()

    asyncio.run(play())


def test_a_waiting_request_that_is_refused_delays_no_other_one(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    """It has no keys, and the aggregator's clients need some. It gets its error from its own call."""
    bare = TicketRequest(request="cd" * 16, round=0, want=5)

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        with harness.coordinator.places.waiting("demo", bare) as place:
            waiting = asyncio.create_task(harness.wait("demo", 7))
            await until(lambda: harness.waiting("demo") == 2)
            finish()
            assert slots(await waiting) == [(SECOND, 0, 7)]
            assert place.answer is None
            with pytest.raises(BadMessage, match="keys: 0 bytes, expected 160"):
                await harness.coordinator.tickets("demo", bare)
        await harness.stop()

    asyncio.run(play())


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_run_that_is_over_answers_those_that_wait_with_its_end(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, *, cancelled: bool
) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        waiting = asyncio.create_task(harness.wait("demo", 7))
        await until(lambda: harness.waiting("demo") == 1)
        if cancelled:
            finish()
        harness.service.cancel("demo", "enough")
        harness.coordinator.forget("demo")
        answer = await waiting
        assert answer.view is not None
        assert (answer.view.state, answer.view.round) == ("cancelled", None) or answer.grants
        await asyncio.sleep(0.05)
        assert harness.reader.view("demo").state == "cancelled"
        await harness.stop()

    asyncio.run(play())


def test_a_run_has_the_same_end_whether_its_clients_wait_or_not(tmp_path: Path) -> None:
    ends = []
    for waiting in (False, True):
        place = tmp_path / str(waiting)
        place.mkdir()
        intermediaries = InMemoryIntermediaries()
        harness = ServerHarness(place, intermediaries)
        harness.service.create(config())
        clients = InMemoryClients(intermediaries, REWARDS, {"1.1": 2})

        async def play(harness: ServerHarness = harness, clients: InMemoryClients = clients) -> RunView:
            view = await asyncio.wait_for(harness.play_waiting("demo", clients), 240)
            await harness.coordinator.stop()
            return view

        ends.append(asyncio.run(play()) if waiting else serve(harness, "demo", clients))
        assert len(set(intermediaries.opened)) == len(intermediaries.held)
        harness.database.close()
    assert ends[0].state == "finished"
    assert unnamed(ends[0]) == unnamed(ends[1])
