"""Tests that the aggregator's long polls end with the stage, and that inboxes hold the slots' messages."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from distrust.aggregator.app import AggregatorSettings, aggregator_app
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView, Statement, StatementList
from distrust.common.protocol.web import waiting
from distrust.common.protocol.web.intermediary import close
from tests.support.cohorts import RUN_DIGEST, Authority, MaskingClients

server = Authority()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = aggregator_app(AggregatorSettings(database=f"sqlite:///{folder}/a.sqlite3"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=f"http://a.localhost/v1/cohorts/{RUN_DIGEST.hex()}"
    ) as client:
        yield client
    close(app)


async def stage(client: httpx.AsyncClient, cohort: Cohort, after: str = "", wait: float = 20) -> StageView:
    """Return the stage behind `after`, or the open one, with all inboxes."""
    params = {"after": after, "wait": wait} if after else {}
    if after != "shares":  # before it, no client has an inbox
        view = StageView.model_validate_json((await client.get("/c1/stage", params=params)).content)
        if view.stage != "confirm":
            return view
    body = server.collecting(cohort, range(cohort.clients)).model_dump(mode="json")
    return StageView.model_validate_json((await client.post("/c1/stage", params=params, json=body)).content)


def test_a_fleet_that_waits_is_led_through_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SWEEP_SECONDS", 60.0)  # so that only a ring ends a wait

    async def fleet() -> float:
        cohort = server.masked()
        masking_clients = MaskingClients(cohort)
        started = time.monotonic()
        async with running(tmp_path) as client:
            await client.put("/c1", json=cohort.model_dump(mode="json"))
            view = StageView.model_validate_json((await client.get("/c1/stage")).content)
            seen = [view.stage]
            while view.stage != "done":
                upload = server.upload(cohort, view.stage, masking_clients.answer(view, range(5)))
                waiter = asyncio.create_task(stage(client, cohort, view.stage))
                await asyncio.sleep(0.05)
                await client.post(f"/c1/{view.stage}", json=upload.model_dump(mode="json"))
                view = await waiter
                seen.append(view.stage)
            assert seen == ["keys", "shares", "confirm", "masked", "unmask", "done"]
        return time.monotonic() - started

    assert asyncio.run(fleet()) < 15


def test_a_wait_for_a_stage_that_is_past_ends_at_once(tmp_path: Path) -> None:
    async def fleet() -> None:
        cohort = server.masked()
        async with running(tmp_path) as client:
            await client.put("/c1", json=cohort.model_dump(mode="json"))
            upload = server.upload(
                cohort, "keys", MaskingClients(cohort).answer(await stage(client, cohort, "keys", wait=0), range(5))
            )
            await client.post("/c1/keys", json=upload.model_dump(mode="json"))
            started = time.monotonic()
            assert (await stage(client, cohort, "keys", wait=60)).stage == "shares"
            assert (await stage(client, cohort, "masked", wait=0.1)).stage == "shares"
            assert time.monotonic() - started < 10

    asyncio.run(fleet())


def test_the_server_gets_a_statement_as_soon_as_its_stage_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SWEEP_SECONDS", 60.0)  # so that only a ring ends a wait

    async def ask(client: httpx.AsyncClient, after: int, wait: float = 20) -> StatementList:
        answer = await client.get("/c1/statements", params={"after": after, "wait": wait})
        return StatementList.model_validate_json(answer.content)

    async def fleet() -> None:
        cohort = server.masked()
        masking_clients = MaskingClients(cohort)
        async with running(tmp_path) as client:
            await client.put("/c1", json=cohort.model_dump(mode="json"))
            assert await ask(client, 0, wait=0) == StatementList(cohort="c1", statements=[], over=False)
            known: list[Statement] = []
            for name in ("keys", "shares", "confirm", "masked", "unmask"):
                view = await stage(client, cohort)
                waiter = asyncio.create_task(ask(client, len(known)))
                await asyncio.sleep(0.02)
                upload = server.upload(cohort, name, masking_clients.answer(view, range(5)))
                await client.post(f"/c1/{name}", json=upload.model_dump(mode="json"))
                if name != "keys":
                    result = await waiter
                    known += result.statements
                    assert result.over == (name == "unmask")
                else:
                    waiter.cancel()
            assert [item.stage for item in known] == ["confirm", "masked", "unmask"]
            assert (await client.get("/c1/statements?after=4")).status_code == httpx.codes.UNPROCESSABLE_ENTITY

    asyncio.run(fleet())


@pytest.mark.parametrize("query", ["after=report", "wait=61", "wait=nan"])
def test_a_query_that_means_nothing_is_a_problem(tmp_path: Path, query: str) -> None:
    async def ask() -> httpx.Response:
        async with running(tmp_path) as client:
            await client.put("/c1", json=server.masked().model_dump(mode="json"))
            return await client.get(f"/c1/stage?{query}")

    answer = asyncio.run(ask())
    assert answer.status_code == answer.json()["status"] == 422
    assert query.partition("=")[0] in answer.json()["detail"]
