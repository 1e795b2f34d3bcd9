"""Tests that prunes which meet each other, or lose their confirmation, agree; and that late calls change nothing."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from distrust.common.errors import Conflict, Gone, ProtocolError, RunFailed, Unavailable, WrongCohort
from distrust.common.protocol.messages.status import Statement, StatementList
from distrust.common.protocol.run.listing import Tombstone
from distrust.common.protocol.run.progress import RegretCurve
from distrust.server.runs.coordinator import RunCoordinator
from distrust.server.runs.intermediaries import Housekeeper
from distrust.server.runs.service import Service
from distrust.server.storage import tables
from distrust.server.storage.keeping import Keeping
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import ServerHarness
from tests.unit.server.test_api import OPERATOR, create, over_http, play
from tests.unit.server.test_keeping import SUMMED, finish, prune, rows, short


def tombstones(harness: ServerHarness) -> list[Tombstone]:
    stored = harness.service.keeping.tombstones()
    assert harness.reader.runs().pruned == stored
    return stored


def test_two_prunes_at_once_return_one_tombstone(harness: ServerHarness) -> None:
    finish(harness)
    house = Housekeeper(harness.service, harness.intermediaries)

    async def both() -> list[Tombstone]:
        begun, whole = asyncio.Barrier(2), harness.intermediaries.prune

        async def together(*words: Any) -> None:
            await whole(*words)
            await begun.wait()

        harness.intermediaries.prune = together  # type: ignore[method-assign]
        return await asyncio.gather(house.prune("demo"), house.prune("demo"))

    first, second = asyncio.run(both())
    assert [first] == [second] == tombstones(harness)


def test_a_late_prune_of_the_same_run_leaves_a_new_run_of_its_name_alone(harness: ServerHarness) -> None:
    finish(harness)
    digest = harness.service.prunable("demo")
    stone = prune(harness)
    anew = finish(harness)
    assert harness.service.prune("demo", digest) == stone
    with pytest.raises(WrongCohort, match=f"not known here with R = {bytes(32).hex()}"):
        harness.service.prune("demo", bytes(32))
    assert harness.reader.view("demo") == anew


def test_a_running_run_is_not_pruned_by_its_digest_either(harness: ServerHarness) -> None:
    harness.service.create(short())
    with pytest.raises(Conflict, match=r"run\.state = 'running'"):
        harness.service.prune("demo", harness.service.active_run("demo").run_digest)


@pytest.mark.parametrize("reads", [True, False])
def test_a_prune_whose_confirmation_is_lost_is_found_by_the_same_call_or_the_next(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> None:
    """reads: whether the database answers again at once."""
    finish(harness)
    whole, read = Keeping.prune, Keeping.tombstones

    def lost(self: Keeping, tombstone: Tombstone) -> None:
        whole(self, tombstone)
        raise Unavailable("the connection was lost behind the commit")

    def away(_self: Keeping) -> list[Tombstone]:
        raise Unavailable("the database is away")

    monkeypatch.setattr(Keeping, "prune", lost)
    if not reads:
        monkeypatch.setattr(Keeping, "tombstones", away)
        with pytest.raises(Unavailable):
            prune(harness)
        monkeypatch.setattr(Keeping, "tombstones", read)
    stone = prune(harness)
    assert [stone] == tombstones(harness)
    with pytest.raises(Gone):
        harness.service.active_run("demo")
    assert harness.service.create(short())


def test_a_prune_that_was_not_committed_leaves_the_run(harness: ServerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    view = finish(harness)

    def refused(_self: Keeping, _tombstone: Tombstone) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(Keeping, "prune", refused)
        with pytest.raises(Unavailable):
            prune(harness)
    assert harness.reader.view("demo") == view
    assert prune(harness).state == "finished"


def test_what_an_intermediary_says_of_a_pruned_run_ends_no_new_run_of_its_name(harness: ServerHarness) -> None:
    finish(harness)
    digest = harness.service.prunable("demo")
    prune(harness)
    harness.service.create(short())
    late = RunCoordinator(harness.service, harness.intermediaries)
    asyncio.run(late._gone("demo", digest, "shuffler", Gone("the run was pruned here")))
    assert harness.reader.view("demo").state == "running"
    now = harness.service.active_run("demo").run_digest
    asyncio.run(late._gone("demo", now, "shuffler", Gone("the run was pruned here")))
    assert harness.reader.view("demo").state == "failed"


def test_late_statements_and_curves_of_a_pruned_run_are_not_stored(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(harness, mechanism=SUMMED)
    cohort = harness.service.store.cohort_message(next(iter(harness.intermediaries.held)))
    assert cohort is not None
    listed = StatementList(cohort=cohort.cohort, statements=[Statement(stage="confirm", digest=bytes(32))], over=False)
    with pytest.raises(RunFailed, match=f"run demo is over: the statements of {cohort.cohort} are not kept"):
        harness.service.publish(cohort, 0, listed)
    late, active_run = harness.service.active_run("demo"), Service.active_run
    prune(harness)
    with monkeypatch.context() as patch:
        patch.setattr(Service, "active_run", lambda *_: late)  # it looked before the prune
        for store in (
            lambda: harness.service.keep_regret("demo", RegretCurve(curve=[(8, 1.5)])),
            lambda: harness.service.publish(cohort, 0, listed),
        ):
            with pytest.raises(Gone, match="run demo was pruned just now"):
                store()
    assert Service.active_run is active_run
    assert rows(harness) == {tables.TOMBSTONES.name}
    harness.service.create(short())
    with pytest.raises(ProtocolError, match=f"the statements of {cohort.cohort} are not kept"):
        harness.service.publish(cohort, 0, listed)


def test_collectors_of_a_run_end_before_its_name_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened, forget, whole = list[str](), RunCoordinator.forget, Service.prune

    def forgotten(self: RunCoordinator, run: str) -> None:
        happened.append(f"forget {run}")
        forget(self, run)

    def deleted(self: Service, run: str, run_digest: bytes) -> Tombstone:
        happened.append(f"prune {run}")
        return whole(self, run, run_digest)

    async def body(client: httpx.AsyncClient, intermediaries: InMemoryIntermediaries) -> None:
        await create(client)
        await client.delete("/runs/demo/data", headers=OPERATOR)
        assert happened == []  # it is running
        await play(client, InMemoryClients(intermediaries, [[0.0], [0.5], [1.0]]))
        happened.clear()
        assert (await client.delete("/runs/demo/data", headers=OPERATOR)).status_code == 200
        assert happened == ["forget demo", "prune demo"]

    monkeypatch.setattr(RunCoordinator, "forget", forgotten)
    monkeypatch.setattr(Service, "prune", deleted)
    over_http(tmp_path, body)
