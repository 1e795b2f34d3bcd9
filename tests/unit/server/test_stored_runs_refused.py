"""Tests that a stored run that this code refuses is listed as failed, and that others go on."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from distrust.common.errors import Conflict, RunFailed, Unavailable
from distrust.server.runs.coordinator import RunCoordinator
from distrust.server.runs.intermediaries import Housekeeper
from distrust.server.storage import tables
from distrust.server.storage.rows import UnreadRun
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, ServerHarness, config, serve
from tests.unit.server.test_api import OPERATOR, create, over_http
from tests.unit.server.test_lost_confirmations import Faults

Change = Callable[[dict[str, Any]], None]


def no_policy_plans_it(fields: dict[str, Any]) -> None:
    """Set a value that fits its field and that `check` refuses, as a later rule would."""
    fields["policy"]["failure"] = 1e-300


def unknown_mechanism(fields: dict[str, Any]) -> None:
    fields["mechanism"]["name"] = "withdrawn\x1b]0;x\x07"  # a terminal would obey it


def rewrite(harness: ServerHarness, run: str, change: Change, state: str = "running") -> None:
    with harness.database.transaction() as connection:
        text = connection.execute(select(tables.RUNS.c.config).where(tables.RUNS.c.run == run)).scalar_one()
        fields = json.loads(text)
        change(fields)
        values = {"config": json.dumps(fields, sort_keys=True, separators=(",", ":")), "state": state}
        connection.execute(update(tables.RUNS).where(tables.RUNS.c.run == run).values(values))


def stored_state(harness: ServerHarness, run: str) -> tuple[str, str | None]:
    with harness.database.reading() as connection:
        columns = (tables.RUNS.c.state, tables.RUNS.c.reason)
        state, reason = connection.execute(select(*columns).where(tables.RUNS.c.run == run)).one()
        return state, reason


def restarted(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, change: Change, state: str = "running"
) -> ServerHarness:
    """Store the runs `old` and `demo`, stop the server, rewrite `old`, and return the server started again."""
    first = ServerHarness(tmp_path, intermediaries)
    first.service.create(config("old"))
    first.service.create(config("demo"))
    rewrite(first, "old", change, state)
    first.database.close()
    return ServerHarness(tmp_path, intermediaries)


@pytest.mark.parametrize(("change", "kept"), [(no_policy_plans_it, 1), (unknown_mechanism, 2)])
def test_keys_stay_of_an_open_run_that_another_version_may_read(tmp_path: Path, change: Change, kept: int) -> None:
    """A run that is read and refused has ended; one that is not read is open in the database."""
    harness = restarted(tmp_path, InMemoryIntermediaries(), change)
    assert len(list(harness.keys.path.iterdir())) == kept
    harness.database.close()


def states(harness: ServerHarness) -> dict[str, str]:
    return {line.run: line.state for line in harness.reader.runs().runs}


def test_a_run_that_is_refused_today_has_failed_and_says_why(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    harness = restarted(tmp_path, intermediaries, no_policy_plans_it)
    view = harness.reader.view("old")
    assert states(harness) == {"old": "failed", "demo": "running"}
    assert "its stored configuration is refused: policy.failure = 1e-300" in (view.reason or "")
    assert view.snapshot.guarantee.kind == "none"
    assert harness.reader.round_view("old").state == "failed"
    assert stored_state(harness, "old") == ("failed", view.reason)
    assert [event.kind for event in harness.reader.events("old", 0)[0]] == ["round-opened", "failed"]
    with pytest.raises(RunFailed, match=r"policy\.failure"):
        harness.reader.ledger("old")
    harness.database.close()
    again = ServerHarness(tmp_path, intermediaries)
    assert again.reader.view("old").reason == view.reason
    assert [event.kind for event in again.reader.events("old", 0)[0]] == ["round-opened", "failed"]
    again.database.close()


def test_a_run_that_was_over_keeps_its_stored_state(tmp_path: Path, intermediaries: InMemoryIntermediaries) -> None:
    """A version of the code that accepts it can show it again."""
    harness = restarted(tmp_path, intermediaries, no_policy_plans_it, "finished")
    assert states(harness)["old"] == "failed"
    assert stored_state(harness, "old") == ("finished", None)
    harness.database.close()


def test_a_configuration_that_cannot_be_read_is_listed_too(
    tmp_path: Path, intermediaries: InMemoryIntermediaries
) -> None:
    harness = restarted(tmp_path, intermediaries, unknown_mechanism)
    assert states(harness) == {"demo": "running", "old": "failed"}
    line = next(line for line in harness.reader.runs().runs if line.run == "old")
    assert (line.arms, line.horizon, line.mechanism) == (3, 800, "withdrawn\ufffd]0;x\ufffd")
    with pytest.raises(RunFailed, match=r"run old failed: its stored configuration is refused: mechanism\.name"):
        harness.reader.view("old")
    with pytest.raises(Conflict, match="run old exists"):
        harness.service.create(config("old"))
    harness.database.close()


@pytest.mark.parametrize("confirmed", [True, False])
def test_an_open_run_that_cannot_be_read_can_be_cancelled_and_pruned_and_its_keys_are_destroyed(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch, *, confirmed: bool
) -> None:
    harness = restarted(tmp_path, intermediaries, unknown_mechanism)
    digest = harness.service.keeping.stored("old")["old"].run_digest
    with pytest.raises(Conflict, match=r"run\.state = 'running'"):
        harness.service.prunable("old")
    if not confirmed:
        with monkeypatch.context() as patch:
            Faults(["lost"], patch)
            with pytest.raises(Unavailable):
                harness.service.cancel("old", "enough")
    harness.service.cancel("old", "enough")
    with pytest.raises(RunFailed, match=r"run old was cancelled: its stored configuration is refused: mechanism\.name"):
        harness.reader.view("old")
    assert stored_state(harness, "old") == ("cancelled", "enough")
    assert states(harness) == {"old": "cancelled", "demo": "running"}
    assert [event.kind for event in harness.service.store.events("old", 0, 9)] == ["round-opened", "cancelled"]
    assert not harness.keys.file(digest).exists()
    assert len(list(harness.keys.path.iterdir())) == 1  # of the other run
    harness.database.close()
    again = ServerHarness(tmp_path, intermediaries)
    assert again.service.prune("old", digest).state == "cancelled"
    assert states(again) == {"demo": "running"}
    again.database.close()


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the runs whose collection was stopped."""
    names: list[str] = []
    monkeypatch.setattr(RunCoordinator, "forget", lambda _, run: names.append(run))
    return names


def test_a_run_that_may_not_be_pruned_is_refused_before_its_collection_is_stopped(
    tmp_path: Path, forgotten: list[str]
) -> None:
    async def body(client: httpx.AsyncClient, _: InMemoryIntermediaries) -> None:
        service = client._transport.app.state.service
        for run in ("old", "demo"):
            await create(client, run=run)
        service._unread["old"] = UnreadRun("old", {}, "withdrawn", "running")
        del service._runs["old"]
        refused = [await client.delete(f"/runs/{run}/data", headers=OPERATOR) for run in ("old", "demo", "none")]
        assert ([answer.status_code for answer in refused], forgotten) == ([409, 409, 404], [])
        await client.delete("/runs/old", headers=OPERATOR)
        assert (await client.delete("/runs/old/data", headers=OPERATOR)).status_code == 200
        assert forgotten == ["old", "old"]

    over_http(tmp_path, body)


def test_a_run_that_got_the_name_of_a_pruned_one_meanwhile_is_collected_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: list[str]
) -> None:
    async def body(client: httpx.AsyncClient, _: InMemoryIntermediaries) -> None:
        service = client._transport.app.state.service
        await create(client)
        for path in ("/runs/demo", "/runs/demo/data"):
            assert (await client.delete(path, headers=OPERATOR)).status_code == 200
        prunable = service.prunable

        def late(run: str) -> bytes:
            result: bytes = prunable(run)
            service.create(config())
            return result

        monkeypatch.setattr(service, "prunable", late)
        forgotten.clear()
        assert (await client.delete("/runs/demo/data", headers=OPERATOR)).status_code == 409
        assert forgotten == []

    over_http(tmp_path, body)


@pytest.mark.parametrize("state", ["running", "cancelled"])
def test_batches_of_an_open_run_that_cannot_be_read_stay_for_the_version_that_can(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, state: str
) -> None:
    first = ServerHarness(tmp_path, intermediaries)
    first.service.create(config("old", intermediary={"keep_seconds": 0.0}))
    serve(first, "old", InMemoryClients(intermediaries, REWARDS), until=2)
    rewrite(first, "old", unknown_mechanism, state)
    first.database.close()
    again = ServerHarness(tmp_path, intermediaries)
    asyncio.run(Housekeeper(again.service, intermediaries).turn())
    with again.database.reading() as connection:
        bodies = connection.execute(select(tables.BATCHES.c.body)).scalars().all()
    assert {body is None for body in bodies} == {state != "running"}
    again.database.close()


def test_the_other_run_is_served_to_its_end(tmp_path: Path, intermediaries: InMemoryIntermediaries) -> None:
    harness = restarted(tmp_path, intermediaries, no_policy_plans_it)
    assert serve(harness, "demo", InMemoryClients(intermediaries, REWARDS)).state == "finished"
    harness.database.close()
