"""Tests that tickets of a cohort that is not open yet hold while an intermediary, the database or the server fails."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from distrust.common.errors import Aborted, Gone, Unavailable
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.server.learner.rounds import LostCohort
from distrust.server.runs.ticket_issuer import TicketIssuer
from distrust.server.runs.waiting_places import WaitingPlace
from distrust.server.storage.rows import GrantRow
from distrust.server.storage.store import Store, Writing
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import (
    REWARDS,
    ServerHarness,
    config,
    fill_first_round,
    play_first_round,
    slots,
    until,
)

SECOND = "demo.2.0.1"
STAGE = config().intermediary.stage_seconds


@pytest.mark.parametrize("fault", [ValueError("a fault"), Unavailable("not now")])
def test_tickets_that_are_out_hold_while_the_intermediary_is_away(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """It is asked to open their cohort until it does. Then the cohort is collected as every other one."""
    tried: list[str] = []
    opens = intermediaries.open

    async def open_later(cohort: Cohort) -> None:
        tried.append(cohort.cohort)
        if cohort.cohort == SECOND and tried.count(SECOND) < 3:
            raise fault
        await opens(cohort)

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        monkeypatch.setattr(intermediaries, "open", open_later)
        waiting = asyncio.create_task(harness.wait("demo", 64))
        await until(lambda: harness.waiting("demo") == 1)
        finish()
        answer = await waiting
        assert answer.view is not None
        assert answer.view.round is not None
        await until(lambda: SECOND in intermediaries.opened)
        assert tried.count(SECOND) == 3
        InMemoryClients(intermediaries, REWARDS).answer(answer.view.round, answer)
        await until(lambda: harness.service.store.outcome(SECOND) is not None)
        await harness.stop()

    asyncio.run(play())


def test_a_server_that_is_killed_behind_the_tickets_opens_their_cohort(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = intermediaries.open

    async def never(cohort: Cohort) -> None:
        if cohort.cohort == SECOND:
            await asyncio.Event().wait()
        await opens(cohort)

    async def play() -> None:
        first = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(first)
        monkeypatch.setattr(intermediaries, "open", never)
        waiting = asyncio.create_task(first.wait("demo", 7, "ab" * 16))
        await until(lambda: first.waiting("demo") == 1)
        finish()
        answer = await waiting
        await first.stop()
        assert SECOND not in intermediaries.opened
        monkeypatch.setattr(intermediaries, "open", opens)
        again = ServerHarness(tmp_path, intermediaries)
        await again.coordinator.start()
        await until(lambda: SECOND in intermediaries.opened)
        assert (await again.wait("demo", 7, "ab" * 16)).grants == answer.grants
        await again.stop()

    asyncio.run(play())


def test_a_server_that_stops_waits_for_a_settlement_that_is_under_way(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would write to a database that is closed, or that another server holds."""

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        settle, begun, ended = harness.service.settle, threading.Event(), threading.Event()

        def slowly(cohort: Cohort, answer: BatchAnswer, places: list[WaitingPlace]) -> tuple[bool, Cohort | None]:
            begun.set()
            time.sleep(0.1)
            try:
                return settle(cohort, answer, places)
            finally:
                ended.set()

        monkeypatch.setattr(harness.service, "settle", slowly)
        finish()
        await until(begun.is_set)
        await harness.coordinator.stop()
        assert ended.is_set()
        await harness.stop()

    asyncio.run(play())


@pytest.mark.parametrize("ended", [False, True])
def test_after_a_cohort_without_a_batch_tickets_wait_until_the_next_one_is_open(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    """An intermediary that lost a cohort may lose the next one, too: then its tickets would be lost with it."""
    opens = intermediaries.open

    async def refuse(cohort: Cohort) -> None:
        if cohort.cohort not in intermediaries.held:
            raise Unavailable("the intermediary is away")
        await opens(cohort)

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        waiting = asyncio.create_task(harness.wait("demo", 7))
        await until(lambda: harness.waiting("demo") == 1)
        monkeypatch.setattr(intermediaries, "open", refuse)
        if ended:
            intermediaries.time += 2 * STAGE
        else:
            finish()
        if ended:
            with pytest.raises(Unavailable, match="is away"):
                await waiting
            assert harness.reader.view("demo").cohorts_open == 0
        else:
            assert slots(await waiting) == [(SECOND, 0, 7)]
        await harness.stop()

    asyncio.run(play())


@pytest.mark.parametrize("fails", [True, False])
def test_an_outcome_stands_and_its_waiting_clients_get_tickets_though_the_next_cohort_cannot_be_recorded_at_once(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    decided = TicketIssuer.decided

    def fail_once(*_given: object, **_named: object) -> None:
        monkeypatch.setattr(TicketIssuer, "decided", decided)
        raise Unavailable("the database is away")

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        waiting = asyncio.create_task(harness.wait("demo", 7))
        await until(lambda: harness.waiting("demo") == 1)
        if fails:
            monkeypatch.setattr(TicketIssuer, "decided", fail_once)
        finish()
        assert slots(await waiting) == [(SECOND, 0, 7)]
        await until(lambda: SECOND in intermediaries.opened)
        assert len(harness.service.store.outcomes("demo")) == 3
        await harness.stop()

    asyncio.run(play())


def test_an_outcome_and_the_tickets_of_those_that_wait_for_it_are_one_commit(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        waiting = [asyncio.create_task(harness.wait("demo", want)) for want in (2, 3)]
        await until(lambda: harness.waiting("demo") == 2)
        transaction = harness.database.transaction

        def counted() -> AbstractContextManager[Connection]:
            commits.append(1)
            return transaction()

        monkeypatch.setattr(harness.database, "transaction", counted)
        finish()
        assert [slots(await task) for task in waiting] == [[(SECOND, 0, 2)], [(SECOND, 2, 3)]]
        assert len(commits) == 1
        assert harness.service.store.cohorts("demo", 2)[SECOND].granted == 5
        await harness.stop()

    asyncio.run(play())


def test_an_outcome_is_committed_though_tickets_cannot_be_as_long_as_it_is_not(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are one transaction, so a fault of the one must not roll the other back again and again."""
    grant = Writing.grant

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        waiting = asyncio.create_task(harness.wait("demo", 7))
        await until(lambda: harness.waiting("demo") == 1)

        def refuse(writing: Writing, run: str, request: TicketRequest, row: GrantRow) -> None:
            if len(harness.service.store.outcomes("demo")) < 3:
                raise ValueError("a fault")
            grant(writing, run, request, row)

        monkeypatch.setattr(Writing, "grant", refuse)
        finish()
        assert slots(await waiting) == [(SECOND, 0, 7)]
        assert len(harness.service.store.outcomes("demo")) == 3
        await harness.stop()

    asyncio.run(play())


def test_a_run_goes_on_whose_outcome_lost_its_confirmation_and_whose_batch_is_scrubbed_since(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cohort was recorded with the outcome, and its tickets are out: it must be opened, too."""
    writing, collect = Store.writing, intermediaries.collect
    asked: list[str] = []

    @contextmanager
    def lost(store: Store) -> Iterator[Writing]:
        with writing(store) as result:
            yield result
        monkeypatch.setattr(Store, "writing", writing)
        raise Unavailable("the connection was lost behind the commit")

    async def collect_once(cohort: Cohort, *, opening: bool = False) -> BatchAnswer:
        answer = await collect(cohort, opening=opening)
        if answer.batch is not None:
            asked.append(cohort.cohort)
        if asked.count(cohort.cohort) > 1:
            raise Gone(f"cohort {cohort.cohort}: its batch was settled by the server, and scrubbed here")
        return answer

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        finish = await fill_first_round(harness)
        waiting = asyncio.create_task(harness.wait("demo", 7))
        await until(lambda: harness.waiting("demo") == 1)
        monkeypatch.setattr(intermediaries, "collect", collect_once)
        monkeypatch.setattr(Store, "writing", lost)
        finish()
        assert slots(await waiting) == [(SECOND, 0, 7)]
        await until(lambda: SECOND in intermediaries.opened)
        assert harness.reader.view("demo").state == "running"
        await harness.stop()

    asyncio.run(play())


def test_no_ticket_is_issued_of_a_cohort_that_ended_at_its_intermediary_before_its_first_ticket(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cohort was opened for a request whose commit failed, and the next request came late."""
    writing = Store.writing

    def refuse_once(store: Store) -> None:
        del store
        monkeypatch.setattr(Store, "writing", writing)
        raise Unavailable("the database is away")

    async def play() -> None:
        harness = ServerHarness(tmp_path, intermediaries)
        await play_first_round(harness)
        monkeypatch.setattr(Store, "writing", refuse_once)
        with pytest.raises(Unavailable):
            await harness.ask("demo", 7)
        assert SECOND in intermediaries.opened
        await asyncio.sleep(0.02)
        intermediaries.time += 2 * STAGE
        answer = await harness.ask("demo", 7, request="ab" * 16)
        assert slots(answer) == [("demo.2.1.1", 0, 7)]
        assert (await harness.ask("demo", 7, request="ab" * 16)).grants == answer.grants
        row = harness.service.store.cohorts("demo", 2)[SECOND]
        assert (row.granted, row.state) == (0, "aborted")
        outcome = harness.service.store.outcome(SECOND)
        assert isinstance(outcome, LostCohort)
        assert "aborted" in outcome.reason
        assert harness.reader.view("demo").state == "running"
        await harness.stop()
        again = ServerHarness(tmp_path, intermediaries)
        assert next(cohort.cohort for cohort in again.service.active_run("demo").pending()) == "demo.2.1.1"
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
