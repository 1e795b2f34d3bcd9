"""Tests of attacks that take, or hold, the tickets of others: what a stranger gets, and what a participant gets."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS
from distrust.common.protocol.messages.admission import new_token
from distrust.common.protocol.run.listing import RunList
from distrust.common.protocol.run.round import TicketAnswer
from tests.support.admitting_server import OPEN, World, play, refusal, slots
from tests.support.server_harness import until

CROWDS = {
    "shuffled": (
        256,
        {"policy": {"first_batch": 8}, "mechanism": {"name": "shuffled-laplace", "epsilon": 1.0, "delta": 1e-6}},
    ),
    "masked": (64, {"policy": {"first_batch": 6}}),
}
"""Clients of a first cohort, and its run."""


async def three_plain_calls(world: World, clients: int) -> httpx.Response:
    """Have a stranger look for a run and its round, and request all tickets of a cohort but one."""
    listed = RunList.model_validate_json((await world.client.get("/runs")).content)
    assert [line.run for line in listed.runs] == ["demo"]
    return await world.ask(None, clients - 1)  # it gets the round before


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_stranger_with_three_plain_calls_takes_no_slot_of_a_cohort_and_a_participant_no_more_than_may_collude(
    crowd: str, tmp_path: Path
) -> None:
    """The stranger took n - 1 of them, and read the last client's reward off the sum."""
    clients, changes = CROWDS[crowd]

    async def body(world: World) -> None:
        await world.create(**changes, intermediary={"corrupt": 0.1})
        assert refusal(await three_plain_calls(world, clients)) == (401, "unauthorized")
        for header in ("Basic abc", "Bearer", "Device abc"):
            assert refusal(await world.ask(header, clients - 1)) == (401, "unauthorized")
        assert refusal(await world.ask(f"Bearer {new_token()}", clients - 1)) == (401, "foreign-token")
        assert world.cells("SELECT count(*) FROM grants") == [(0,)]
        assert world.intermediaries.opened == []
        holder = world.token("some", share=1.0)
        most = clients // 10
        assert [slots(await world.ask(holder, clients - 1)) for _ in range(3)] == [most, 0, 0]
        assert slots(await world.ask(world.operator, clients - most)) == clients - most

    play(tmp_path, body)


@pytest.mark.parametrize("crowd", CROWDS)
def test_without_tokens_three_plain_calls_take_all_slots_of_a_cohort_but_one(crowd: str, tmp_path: Path) -> None:
    """The attack of the test above is a real one."""
    clients, changes = CROWDS[crowd]

    async def body(world: World) -> None:
        await world.create(**changes)
        assert slots(await three_plain_calls(world, clients)) == clients - 1
        assert world.cells("SELECT cohort, count FROM grants") == [("demo.1.0.1", clients - 1)]

    play(tmp_path, body, **OPEN)


@pytest.mark.parametrize("settings", [OPEN, {}], ids=["without-tokens", "with-tokens"])
def test_six_requests_of_a_token_leave_all_tickets_of_a_run_to_others_but_its_share(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Without tokens they take all 640: ten cohorts of 64 are the whole run."""

    async def body(world: World) -> None:
        await world.create(arms=10, horizon=640, policy={"first_batch": 6}, intermediary={"corrupt": 0.1})
        header = None if settings else world.token("some", share=1.0)
        got = [slots(await world.ask(header, 107)) for _ in range(6)]
        assert sum(got) == (640 if settings else 6)
        if not settings:
            assert slots(await world.ask(world.operator, 640)) == 634

    play(tmp_path, body, **settings)


def test_a_ticket_that_is_held_does_not_stop_a_run_of_one_client_a_round(tmp_path: Path) -> None:
    """It stopped the run for two stages, of up to a day."""

    async def body(world: World) -> None:
        alone = {"minimum": 1, "stage_seconds": 86_400.0}
        await world.create(
            policy={"name": "ucb1"}, mechanism={"name": "identity", "via": "shuffler"}, intermediary=alone
        )
        assert slots(await world.ask(world.token("some"), 1)) == 1
        assert slots(await world.ask(world.operator, 1)) == 0
        waiting = asyncio.create_task(world.ask(world.operator, 1, number=0, wait=60))
        await until(lambda: len(world.app.state.coordinator.places.unserved("demo")) == 1)
        world.intermediaries.time += FIRST_SECONDS
        answer = await waiting
        assert TicketAnswer.model_validate_json(answer.content).grants[0].cohort == "demo.1.0.2"

    play(tmp_path, body)
