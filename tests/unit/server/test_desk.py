"""Tickets: in cohort order, once, only from cohorts that S knows, and not too many at a time."""

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from distrust.common.errors import Conflict, Unavailable, WrongStage
from distrust.server.ticket_issuer import MOST_GRANTED
from tests.support.in_memory_intermediaries import Crowd, MemoryIntermediaries
from tests.support.server_harness import REWARDS, House, config, serve


def test_a_request_gets_its_slots_once_and_always_the_same_ones(house: House) -> None:
    async def asked() -> None:
        house.service.create(config())
        name = "ab" * 16
        first = await house.ask("demo", 40, name)
        assert [(grant.cohort, grant.first, grant.count) for grant in first.grants] == [
            ("demo.1.0.1", 0, 32),
            ("demo.1.1.1", 0, 8),
        ]
        assert first == await house.ask("demo", 40, name)
        second = await house.ask("demo", 2)
        assert [(grant.cohort, grant.first, grant.count) for grant in second.grants] == [("demo.1.1.1", 8, 2)]
        with pytest.raises(Conflict):
            await house.ask("demo", 41, name)
        with pytest.raises(WrongStage):
            await house.ask("demo", 1, number=2)
        await house.coordinator.stop()

    asyncio.run(asked())


def test_one_request_has_so_many_tickets_signed_and_the_next_one_gets_the_rest(house: House) -> None:
    async def asked() -> None:
        house.service.create(config(horizon=100_000, policy={"first_batch": 13}))  # cohorts of 8,192
        assert house.service.round_view("demo").round is not None
        size = house.service.active_run("demo").pending()[0].clients
        assert size > MOST_GRANTED
        name = "cd" * 16
        first = await house.ask("demo", 100_000, name)
        assert [(grant.first, grant.count) for grant in first.grants] == [(0, MOST_GRANTED)]
        assert len(first.grants[0].signatures) == 64 * MOST_GRANTED
        assert first == await house.ask("demo", 100_000, name)
        second = await house.ask("demo", size - MOST_GRANTED)
        assert [(grant.first, grant.count) for grant in second.grants] == [(MOST_GRANTED, size - MOST_GRANTED)]
        await house.coordinator.stop()

    asyncio.run(asked())


def test_a_slot_is_handed_out_once_by_a_server_that_was_killed_in_between_too(
    tmp_path: Path, s: MemoryIntermediaries
) -> None:
    async def asked() -> None:
        first = House(tmp_path, s)
        first.service.create(config())
        before = await first.ask("demo", 40, "ab" * 16)
        await first.stop()
        again = House(tmp_path, s)
        assert await again.ask("demo", 40, "ab" * 16) == before
        after = await again.ask("demo", 40, "cd" * 16)
        await again.stop()
        slots = [
            (one.cohort, slot)
            for one in before.grants + after.grants
            for slot in range(one.first, one.first + one.count)
        ]
        assert len(slots) == len(set(slots)) == 80

    asyncio.run(asked())


def test_no_ticket_is_handed_out_before_s_knows_the_cohort(house: House) -> None:
    async def asked() -> None:
        house.service.create(config())
        house.s.down = True
        with pytest.raises(Unavailable):
            await house.ask("demo")
        assert house.service.view("demo").clients == 0
        house.s.down = False
        assert sum(grant.count for grant in (await house.ask("demo")).grants) == 64
        await house.coordinator.stop()

    asyncio.run(asked())


@pytest.mark.parametrize(("window", "cohorts"), [(1, 1), (33, 2), (8192, 3)])
def test_cohorts_are_begun_only_while_few_clients_are_in_flight(
    tmp_path: Path, s: MemoryIntermediaries, window: int, cohorts: int
) -> None:
    async def asked() -> None:
        house = House(tmp_path, s, window=window)
        house.service.create(config())
        granted = await house.ask("demo", 500)
        assert [grant.count for grant in granted.grants] == [32] * cohorts
        assert len(set(s.opened)) == cohorts
        assert not (await house.ask("demo")).grants
        await house.stop()

    asyncio.run(asked())


def test_a_window_of_one_cohort_still_finishes(tmp_path: Path, s: MemoryIntermediaries) -> None:
    house = House(tmp_path, s, window=1)
    house.service.create(config(horizon=400))
    assert serve(house, "demo", Crowd(s, REWARDS)).state == "finished"
    house.database.close()


def test_a_fresh_cohort_is_opened_once_and_recorded_with_its_first_tickets(
    house: House, s: MemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call to S and one commit for each cohort that a request needs."""
    commits: list[int] = []
    transaction = house.database.transaction

    def counted() -> AbstractContextManager[Connection]:
        commits.append(1)
        return transaction()

    async def asked() -> None:
        house.service.create(config())
        monkeypatch.setattr(house.database, "transaction", counted)
        grants = (await house.ask("demo", 40)).grants
        assert [grant.count for grant in grants] == [32, 8]
        await asyncio.sleep(0.05)  # both collectors ask for their batch meanwhile
        await house.coordinator.stop()

    asyncio.run(asked())
    assert s.opened == ["demo.1.0.1", "demo.1.1.1"]
    assert len(commits) == 2
