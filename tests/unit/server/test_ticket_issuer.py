"""Tests that tickets come in cohort order, once, for cohorts that the intermediary knows, and in limited number."""

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from distrust.common.errors import Conflict, Unavailable, WrongStage
from distrust.server.runs.ticket_issuer import MOST_GRANTED
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, ServerHarness, config, serve


def test_a_request_gets_its_slots_once_and_always_the_same_ones(harness: ServerHarness) -> None:
    async def round_() -> None:
        harness.service.create(config())
        name = "ab" * 16
        first = await harness.ask("demo", 40, name)
        assert [(grant.cohort, grant.first, grant.count) for grant in first.grants] == [
            ("demo.1.0.1", 0, 32),
            ("demo.1.1.1", 0, 8),
        ]
        assert first == await harness.ask("demo", 40, name)
        second = await harness.ask("demo", 2)
        assert [(grant.cohort, grant.first, grant.count) for grant in second.grants] == [("demo.1.1.1", 8, 2)]
        with pytest.raises(Conflict):
            await harness.ask("demo", 41, name)
        with pytest.raises(WrongStage):
            await harness.ask("demo", 1, number=2)
        await harness.coordinator.stop()

    asyncio.run(round_())


def test_one_request_has_so_many_tickets_signed_and_the_next_one_gets_the_rest(harness: ServerHarness) -> None:
    async def round_() -> None:
        harness.service.create(config(horizon=100_000, policy={"first_batch": 13}))  # cohorts of 8,192
        assert harness.reader.round_view("demo").round is not None
        size = harness.service.active_run("demo").pending()[0].clients
        assert size > MOST_GRANTED
        name = "cd" * 16
        first = await harness.ask("demo", 100_000, name)
        assert [(grant.first, grant.count) for grant in first.grants] == [(0, MOST_GRANTED)]
        assert len(first.grants[0].signatures) == 64 * MOST_GRANTED
        assert first == await harness.ask("demo", 100_000, name)
        second = await harness.ask("demo", size - MOST_GRANTED)
        assert [(grant.first, grant.count) for grant in second.grants] == [(MOST_GRANTED, size - MOST_GRANTED)]
        await harness.coordinator.stop()

    asyncio.run(round_())


def test_a_slot_is_handed_out_once_by_a_server_that_was_killed_in_between_too(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    async def round_() -> None:
        first = ServerHarness(tmp_path, intermediaries)
        first.service.create(config())
        before = await first.ask("demo", 40, "ab" * 16)
        await first.stop()
        again = ServerHarness(tmp_path, intermediaries)
        assert await again.ask("demo", 40, "ab" * 16) == before
        after = await again.ask("demo", 40, "cd" * 16)
        await again.stop()
        slots = [
            (one.cohort, slot)
            for one in before.grants + after.grants
            for slot in range(one.first, one.first + one.count)
        ]
        assert len(slots) == len(set(slots)) == 80

    asyncio.run(round_())


def test_no_ticket_is_handed_out_before_the_intermediary_knows_the_cohort(harness: ServerHarness) -> None:
    async def round_() -> None:
        harness.service.create(config())
        harness.intermediaries.down = True
        with pytest.raises(Unavailable):
            await harness.ask("demo")
        assert harness.reader.view("demo").clients == 0
        harness.intermediaries.down = False
        assert sum(grant.count for grant in (await harness.ask("demo")).grants) == 64
        await harness.coordinator.stop()

    asyncio.run(round_())


@pytest.mark.parametrize(("window", "cohorts"), [(1, 1), (32, 1), (33, 2), (64, 2), (8192, 3)])
def test_cohorts_are_begun_only_while_few_clients_are_in_flight(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, window: int, cohorts: int
) -> None:
    async def round_() -> None:
        harness = ServerHarness(tmp_path, intermediaries, window=window)
        harness.service.create(config())
        granted = await harness.ask("demo", 500)
        assert [grant.count for grant in granted.grants] == [32] * cohorts
        assert len(set(intermediaries.opened)) == cohorts
        assert not (await harness.ask("demo")).grants
        await harness.stop()

    asyncio.run(round_())


def test_a_window_of_one_cohort_still_finishes(tmp_path: Path, intermediaries: InMemoryIntermediaries) -> None:
    harness = ServerHarness(tmp_path, intermediaries, window=1)
    harness.service.create(config(horizon=400))
    assert serve(harness, "demo", InMemoryClients(intermediaries, REWARDS)).state == "finished"
    harness.database.close()


def test_a_fresh_cohort_is_opened_once_and_recorded_with_its_first_tickets(
    harness: ServerHarness, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call to the intermediary and one commit for each cohort that a request needs."""
    commits: list[int] = []
    transaction = harness.database.transaction

    def counted() -> AbstractContextManager[Connection]:
        commits.append(1)
        return transaction()

    async def round_() -> None:
        harness.service.create(config())
        monkeypatch.setattr(harness.database, "transaction", counted)
        grants = (await harness.ask("demo", 40)).grants
        assert [grant.count for grant in grants] == [32, 8]
        await asyncio.sleep(0.05)  # both collectors ask for their batch meanwhile
        await harness.coordinator.stop()

    asyncio.run(round_())
    assert intermediaries.opened == ["demo.1.0.1", "demo.1.1.1"]
    assert len(commits) == 2
