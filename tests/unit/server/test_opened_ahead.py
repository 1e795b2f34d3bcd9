"""Tests that the first cohort of a round is opened before a waiting client asks for tickets."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from distrust.common.errors import Aborted, Unavailable
from distrust.common.messages.cohort import Cohort
from distrust.server.learner.rounds import LostCohort
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, ServerHarness, config, serve

FIRST, SECOND = "demo.1.0.1", "demo.2.0.1"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  the harness has no event for it
            await asyncio.sleep(0.001)


async def play_first_round(harness: ServerHarness) -> None:
    """Play the first round, and wait until its outcomes are committed."""
    harness.service.create(config())
    clients = InMemoryClients(harness.intermediaries, REWARDS)
    round_ = harness.service.round_view("demo").round
    assert round_ is not None
    clients.answer(round_, await harness.ask("demo", 96))
    await until(lambda: len(harness.service.active_run("demo").learner.rounds) == 2)


@pytest.mark.parametrize("awaited", [True, False])
def test_a_cohort_is_opened_ahead_only_while_clients_wait_and_is_recorded_with_its_first_tickets(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, *, awaited: bool
) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries, awaited=lambda _run: awaited)
        await play_first_round(harness)
        if awaited:
            await until(lambda: SECOND in intermediaries.opened)
        await asyncio.sleep(0.05)
        assert intermediaries.opened.count(SECOND) == awaited
        assert harness.service.view("demo").cohorts_open == 0
        grants = (await harness.ask("demo", 7)).grants
        assert [(one.cohort, one.first, one.count) for one in grants] == [(SECOND, 0, 7)]
        assert intermediaries.opened.count(SECOND) == 1
        assert harness.service.view("demo").cohorts_open == 1
        await harness.stop()

    asyncio.run(play())


def test_a_cohort_that_could_not_be_opened_ahead_is_opened_by_the_request_for_its_tickets(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    opens = intermediaries.open

    async def refuse_ahead(cohort: Cohort) -> None:
        tried.append(cohort.cohort)
        if tried.count(SECOND) in (1, 2) and cohort.cohort == SECOND:
            raise (ValueError if tried.count(SECOND) == 1 else Unavailable)("not now")
        await opens(cohort)

    async def play() -> None:
        monkeypatch.setattr(intermediaries, "open", refuse_ahead)
        harness = ServerHarness(tmp_path, intermediaries, awaited=lambda _run: True)
        await play_first_round(harness)
        await until(lambda: SECOND in tried)
        with pytest.raises(Unavailable, match="not now"):
            await harness.ask("demo", 7)
        assert harness.service.view("demo").cohorts_open == 0
        assert (await harness.ask("demo", 7)).grants[0].cohort == SECOND
        assert tried.count(SECOND) == 3
        await harness.stop()

    asyncio.run(play())


def test_a_cohort_that_was_recorded_before_it_was_opened_ahead_stands_in_no_other_cohorts_way(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        await play_first_round(harness)
        (grant,) = (await harness.ask("demo", harness.service.active_run("demo").pending()[0].clients)).grants
        assert grant.cohort == SECOND
        harness.coordinator._open_ahead("demo", intermediaries.held[SECOND].cohort)  # the outcome's task was late
        assert [one.cohort for one in (await harness.ask("demo", 7)).grants] == ["demo.2.1.1"]
        await harness.stop()

    asyncio.run(play())


def test_a_server_that_is_killed_before_the_tickets_opens_the_cohort_again(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    async def play() -> None:
        first = ServerHarness(tmp_path, intermediaries, awaited=lambda _run: True)
        await play_first_round(first)
        await until(lambda: SECOND in intermediaries.opened)
        await first.stop()
        again = ServerHarness(tmp_path, intermediaries)
        await again.coordinator.start()
        assert (await again.ask("demo", 7)).grants[0].cohort == SECOND
        await again.stop()

    asyncio.run(play())
    assert intermediaries.opened.count(SECOND) == 2


STAGE = config().intermediary.stage_seconds


@pytest.mark.parametrize(("age", "opened"), [(0.2, 1), (0.3, 2), (1.9, 2)])
def test_a_cohort_that_was_opened_ahead_long_ago_is_opened_again_before_its_first_ticket(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, age: float, opened: int
) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries, awaited=lambda _run: True)
        await play_first_round(harness)
        await until(lambda: SECOND in intermediaries.opened)
        intermediaries.time += age * STAGE
        (grant,) = (await harness.ask("demo", 7)).grants
        assert grant.cohort == SECOND
        assert intermediaries.opened.count(SECOND) == opened
        intermediaries.time += 1.7 * STAGE  # its clients are slow: it still takes their messages
        assert (await intermediaries.collect(intermediaries.held[SECOND].cohort)).state == "waiting"
        await harness.stop()

    asyncio.run(play())


@pytest.mark.parametrize("restarted", [False, True])
def test_no_ticket_is_issued_of_a_cohort_that_ended_at_its_intermediary_before_its_first_ticket(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, *, restarted: bool
) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries, awaited=lambda _run: True)
        await play_first_round(harness)
        await until(lambda: SECOND in intermediaries.opened)
        intermediaries.time += 2 * STAGE
        if restarted:
            await harness.stop()
            harness = ServerHarness(tmp_path, intermediaries, awaited=lambda _run: True)
            await harness.coordinator.start()
        grants = (await harness.ask("demo", 7, request="ab" * 16)).grants
        assert [(one.cohort, one.first, one.count) for one in grants] == [("demo.2.1.1", 0, 7)]
        assert (await harness.ask("demo", 7, request="ab" * 16)).grants == grants
        row = harness.service.store.cohorts("demo", 2)[SECOND]
        assert (row.granted, row.state) == (0, "aborted")
        outcome = harness.service.store.outcome(SECOND)
        assert isinstance(outcome, LostCohort)
        assert "aborted" in outcome.reason
        assert harness.service.view("demo").state == "running"
        await harness.stop()
        again = ServerHarness(tmp_path, intermediaries)
        assert next(one.cohort for one in again.service.active_run("demo").pending()) == "demo.2.1.1"
        await again.stop()

    asyncio.run(play())


def test_an_intermediary_that_opens_no_cohort_costs_the_run_one_cohort_a_request(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(cohort: Cohort) -> None:
        raise Aborted(f"cohort {cohort.cohort} was aborted")

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        harness.service.create(config())
        monkeypatch.setattr(intermediaries, "open", refuse)
        with pytest.raises(Aborted, match=r"demo\.1\.1\.1 was aborted"):
            await harness.ask("demo", 7)
        rows = harness.service.store.cohorts("demo", 1)
        assert [(row.cohort, row.granted, row.state) for row in rows.values()] == [("demo.1.0.1", 0, "aborted")]
        await harness.stop()

    asyncio.run(play())


def test_a_cancelled_run_has_no_cohort_opened_ahead(tmp_path: Path, intermediaries: InMemoryIntermediaries) -> None:
    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries, awaited=lambda _run: True)
        harness.service.create(config())
        clients = InMemoryClients(intermediaries, REWARDS)
        round_ = harness.service.round_view("demo").round
        assert round_ is not None
        clients.answer(round_, await harness.ask("demo", 96))
        harness.service.cancel("demo", "enough")
        harness.coordinator.forget("demo")
        await asyncio.sleep(0.1)
        assert SECOND not in intermediaries.opened
        await harness.stop()

    asyncio.run(play())


def test_a_run_has_the_same_end_with_cohorts_opened_ahead(tmp_path: Path) -> None:
    ends = []
    for awaited in (False, True):
        place = tmp_path / str(awaited)
        place.mkdir()
        intermediaries = InMemoryIntermediaries()
        harness = ServerHarness(place, intermediaries, awaited=lambda _run, awaited=awaited: awaited)  # type: ignore[misc]
        harness.service.create(config())
        ends.append(serve(harness, "demo", InMemoryClients(intermediaries, REWARDS, {"1.1": 2})))
        assert len(set(intermediaries.opened)) == len(intermediaries.held)
        harness.database.close()
    assert ends[0].state == "finished"
    assert ends[0] == ends[1]
