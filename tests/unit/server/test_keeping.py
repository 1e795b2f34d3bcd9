"""Tests that the server deletes what it need not keep, tells its intermediaries, and prunes finished runs whole."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select

from distrust.common.errors import Conflict, Gone, RunFailed, Unavailable, WrongCohort, WrongStage
from distrust.common.protocol.messages.status import MOST_SETTLED
from distrust.common.protocol.run.listing import RunList, RunView, Tombstone
from distrust.server.runs.intermediaries import Housekeeper
from distrust.server.storage import tables
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.manual_clock import ManualClock
from tests.support.server_harness import REWARDS, ServerHarness, config, serve
from tests.unit.server.test_api import OPERATOR, create, over_http, play

KEEP = 100.0
SEALED = {"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler"}
SUMMED = {"name": "central-laplace-discrete", "epsilon": 2.0, "via": "aggregator"}

Step = Callable[[Housekeeper], Coroutine[Any, Any, Any]]


def short(run: str = "demo", keep: float = KEEP, **changes: Any) -> Any:
    rates = {"keep_seconds": keep}
    return config(run, **{"horizon": 100, "mechanism": SEALED, "intermediary": rates, **changes})


def finish(harness: ServerHarness, run: str = "demo", **changes: Any) -> RunView:
    """Play a run to its end, at a clock that stands still."""
    harness.service.store.clock = ManualClock(1000.0)
    harness.service.create(short(run, **changes))
    return serve(harness, run, InMemoryClients(harness.intermediaries, REWARDS))


def keeping(harness: ServerHarness, step: Step) -> Any:
    return asyncio.run(step(Housekeeper(harness.service, harness.intermediaries)))


def turn(harness: ServerHarness, after: float = 0.0) -> None:
    clock = harness.service.store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(after)
    keeping(harness, lambda keeper: keeper.turn())


def prune(harness: ServerHarness, run: str = "demo") -> Tombstone:
    result: Tombstone = keeping(harness, lambda keeper: keeper.prune(run))
    return result


def batches(harness: ServerHarness) -> list[str]:
    with harness.database.reading() as connection:
        return [body for body in connection.execute(select(tables.BATCHES.c.body)).scalars() if body is not None]


def found(folder: Path, texts: list[str]) -> int:
    """Return how many texts are in the files of the database, by the signs in their middle."""
    files = b"".join(file.read_bytes() for file in folder.glob("server.sqlite3*"))
    return sum(text[len(text) // 2 - 20 : len(text) // 2 + 20].encode() in files for text in texts)


def rows(harness: ServerHarness) -> set[str]:
    """Return the tables that are not empty."""
    with harness.database.reading() as connection:
        return {
            name
            for name, table in tables.METADATA.tables.items()
            if connection.execute(select(table)).first() is not None
        }


@pytest.mark.parametrize("mechanism", [SEALED, SUMMED])
def test_batches_leave_the_files_keep_seconds_after_their_outcome_and_results_stay(
    mechanism: dict[str, Any], harness: ServerHarness, tmp_path: Path
) -> None:
    view = finish(harness, mechanism=mechanism)
    bodies = batches(harness)
    turn(harness, KEEP - 1)
    assert found(tmp_path, bodies) == len(bodies) > 0
    assert harness.intermediaries.settled == harness.intermediaries.held.keys()
    turn(harness, 1)
    assert (batches(harness), found(tmp_path, bodies)) == ([], 0)
    assert harness.reader.view("demo") == view
    for report in harness.reader.rounds("demo", 0, 50).rounds:
        for cohort in report.cohorts:
            shown = harness.reader.transcript("demo", cohort.cohort, 0, 100)
            assert (shown.scrubbed, "batch" in {entry.stage for entry in shown.messages}) == (1100.0, False)
            assert harness.reader.collected("demo", cohort.cohort)
    harness.database.close()
    again = ServerHarness(tmp_path, harness.intermediaries)
    assert again.reader.view("demo") == view
    again.database.close()


def test_an_intermediary_that_is_away_is_told_later_and_batches_are_scrubbed_all_the_same(
    harness: ServerHarness,
) -> None:
    finish(harness, keep=0.0)
    harness.intermediaries.down = True
    with pytest.raises(Unavailable):
        turn(harness)
    assert (batches(harness), harness.intermediaries.settled) == ([], set())
    harness.intermediaries.down = False
    for _ in range(2):  # the second turn finds nothing more to do
        turn(harness)
    assert harness.intermediaries.settled == harness.intermediaries.held.keys()
    assert "kept" not in rows(harness)


def test_an_intermediary_that_is_gone_for_good_keeps_the_other_one_from_nothing(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is more to tell than one turn tells, and the runs of the one that is gone come first."""
    finish(harness, "away", mechanism=SUMMED)
    finish(harness, "near")
    near = {name for name, one in harness.intermediaries.held.items() if one.cohort.via == "shuffler"}
    row = {"run": "away", "via": "aggregator", "due": None, "told": False}
    with harness.database.transaction() as connection:
        connection.execute(insert(tables.ENDED), [{**row, "cohort": f"away.1.0.{n}"} for n in range(2, MOST_SETTLED)])
    whole, asked = harness.intermediaries.settle, list[str]()

    async def settle(run_digest: bytes, via: str, cohorts: Sequence[str]) -> None:
        asked.append(via)
        if via == "aggregator":
            raise Unavailable("the aggregator is gone")
        await whole(run_digest, via, cohorts)

    monkeypatch.setattr(harness.intermediaries, "settle", settle)
    with pytest.raises(Unavailable, match="is gone"):
        turn(harness, KEEP)
    assert (harness.intermediaries.settled, batches(harness)) == (near, [])
    assert asked.count("aggregator") == 1


def test_open_cohorts_of_a_cancelled_run_are_settled_too(harness: ServerHarness) -> None:
    async def half(harness: ServerHarness) -> None:
        await harness.ask("demo", 8)
        harness.service.cancel("demo", "enough")
        await harness.coordinator.stop()

    harness.service.create(short(keep=0.0))
    asyncio.run(half(harness))
    keeping(harness, lambda keeper: keeper.turn())
    assert harness.intermediaries.settled == harness.intermediaries.held.keys() != set()


def test_a_stream_keeps_its_batches_until_its_run_is_over(harness: ServerHarness) -> None:
    """A restart reads them again to go on with the stream."""
    finish(harness, keep=0.0)
    active = harness.service.active_run("demo")
    mechanism = active.config.mechanism.model_copy(update={"batches": 8})
    over, active.config = active.config, active.config.model_copy(update={"mechanism": mechanism})
    active.state = "running"
    turn(harness)
    assert batches(harness)
    active.config, active.state = over, "finished"
    turn(harness)
    assert batches(harness) == []


def test_after_a_start_no_batch_is_kept_longer_than_keep_seconds_whatever_the_wall_clock_says(
    harness: ServerHarness, tmp_path: Path
) -> None:
    finish(harness)
    harness.service.store.clock = clock = ManualClock(-(10.0**6))
    harness.service.keeping.rebase({"demo": KEEP})
    clock.advance(KEEP)
    turn(harness)
    assert batches(harness) == []


def test_a_pruned_run_leaves_a_tombstone_alone_and_its_name_is_free(harness: ServerHarness, tmp_path: Path) -> None:
    before = finish(harness, "other")
    view = finish(harness)
    spent = harness.reader.ledger("demo").total
    digest = harness.service.active_run("demo").run_digest
    bodies = batches(harness)
    stone = prune(harness)
    told = (stone.run, stone.run_id, stone.run_digest, stone.state, stone.guarantee)
    assert told == ("demo", view.run_id, digest, "finished", spent)
    assert (stone.started, stone.ended, stone.pruned) == (1000.0, 1000.0, 1000.0)
    assert harness.intermediaries.pruned == {(digest, "shuffler"), (digest, "aggregator")}
    assert len(batches(harness)) == found(tmp_path, bodies) < len(bodies)  # those of the other run
    with pytest.raises(Gone, match="run demo was pruned at 1970-01-01 00:16:40 UTC: it finished at"):
        harness.reader.view("demo")
    assert [run.run for run in harness.reader.runs().runs] == ["other"]
    assert harness.reader.runs().pruned == [stone]
    assert prune(harness) == stone
    assert harness.reader.view("other") == before
    prune(harness, "other")
    assert rows(harness) == {"tombstones"}
    harness.database.close()
    again = ServerHarness(tmp_path, harness.intermediaries)
    with pytest.raises(Gone):
        again.service.active_run("demo")
    assert again.service.create(short())
    anew = again.reader.view("demo")
    assert (anew.run_id != view.run_id, anew.state) == (True, "running")
    again.database.close()


def test_a_run_that_is_running_is_not_pruned_and_names_what_forbids_it(harness: ServerHarness) -> None:
    harness.service.create(short())
    with pytest.raises(Conflict, match=r"run\.state = 'running': run demo must be over .* cancel it first"):
        prune(harness)
    assert harness.intermediaries.pruned == set()
    with pytest.raises(WrongCohort):
        prune(harness, "unknown")


def test_with_an_intermediary_away_the_run_stays_whole_here_and_the_same_call_goes_on(harness: ServerHarness) -> None:
    view = finish(harness)
    harness.intermediaries.down = True
    with pytest.raises(Unavailable):
        prune(harness)
    assert harness.reader.view("demo") == view
    assert harness.reader.runs().pruned == []
    harness.intermediaries.down = False
    assert prune(harness).state == "finished"


def test_a_pruned_run_is_pruned_again_at_intermediaries_that_were_restored_from_older_copies(
    harness: ServerHarness,
) -> None:
    finish(harness)
    held, listed = dict(harness.intermediaries.held), dict(harness.intermediaries.delivered_digests)
    stone = prune(harness)
    pruned = set(harness.intermediaries.pruned)
    harness.intermediaries.held, harness.intermediaries.delivered_digests = held, listed
    harness.intermediaries.pruned.clear()
    harness.intermediaries.down = True
    with pytest.raises(Unavailable):
        prune(harness)
    harness.intermediaries.down = False
    assert prune(harness) == stone
    assert (harness.intermediaries.pruned, harness.intermediaries.held) == (pruned, {})


@pytest.mark.parametrize("settled", [True, False])
def test_an_old_copy_of_the_database_releases_nothing_of_a_pruned_run(
    harness: ServerHarness, tmp_path: Path, *, settled: bool
) -> None:
    """The copy is of before the first outcome, or after it. For both the run's list of deliveries is gone."""
    clients = InMemoryClients(harness.intermediaries, REWARDS)
    harness.service.create(short(horizon=300))

    async def begun() -> None:
        if settled:
            await harness.play("demo", clients, until=2)
        else:
            await harness.ask("demo", 8)
        await harness.coordinator.stop()

    asyncio.run(begun())
    copied = tmp_path / "copy"
    copied.mkdir()
    harness.database.close()
    shutil.copy(tmp_path / "server.sqlite3", copied / "server.sqlite3")
    shutil.copytree(tmp_path / "server.keys", copied / "server.keys")  # without them the run fails before it asks
    later = ServerHarness(tmp_path, harness.intermediaries)
    later.service.cancel("demo", "enough")
    prune(later)
    later.database.close()
    old = ServerHarness(copied, harness.intermediaries)

    async def restored() -> None:
        await old.coordinator.start()
        with pytest.raises(WrongStage, match="is failed: no more tickets"):
            await old.ask("demo", 8)
        await old.coordinator.stop()

    asyncio.run(restored())
    state, reason = old.service.store.state("demo")
    assert (state, "its database is an old copy" in str(reason)) == ("failed", True)
    old.database.close()


def test_a_batch_that_was_scrubbed_is_not_taken_for_a_lost_cohort(harness: ServerHarness, tmp_path: Path) -> None:
    """Only a later state of this server has settled it: its run ends, and opens no cohort in its place."""

    async def gone(cohort: Any, *, opening: bool) -> Any:
        raise Gone(f"cohort {cohort.cohort}: its batch was settled by the server, and scrubbed here at some time")

    async def asked() -> None:
        await harness.ask("demo", 8)
        async with asyncio.timeout(60):
            while harness.service.active_run("demo").state == "running":  # noqa: ASYNC110  the harness has no event
                await asyncio.sleep(0.001)
        await harness.coordinator.stop()

    harness.service.create(short())
    harness.intermediaries.collect = gone  # type: ignore[method-assign]
    asyncio.run(asked())
    view = harness.reader.view("demo")
    assert (view.state, "its database is an old copy" in str(view.reason), view.cohorts_aborted) == ("failed", True, 0)


def test_a_batch_that_comes_after_the_end_of_its_run_is_not_stored(harness: ServerHarness) -> None:
    finish(harness)
    active = harness.service.active_run("demo")
    cohort = harness.service.store.cohort_message(next(iter(harness.intermediaries.held)))
    answer = harness.service.store.batch(cohort.cohort) if cohort else None
    assert cohort is not None
    assert answer is not None
    with pytest.raises(RunFailed, match="is over"):
        harness.service.receipts.collect(active, cohort, answer)


def test_prune_over_http_is_the_operators_and_its_answers_are_clear(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, intermediaries: InMemoryIntermediaries) -> None:
        await create(client)
        assert (await client.delete("/runs/demo/data")).status_code == 401
        running = await client.delete("/runs/demo/data", headers=OPERATOR)
        assert (running.status_code, "run.state = 'running'" in running.json()["detail"]) == (409, True)
        await play(client, InMemoryClients(intermediaries, REWARDS))
        intermediaries.down = True
        assert (await client.delete("/runs/demo/data", headers=OPERATOR)).status_code == 503
        assert (await client.get("/runs/demo")).status_code == 200
        intermediaries.down = False
        done = await client.delete("/runs/demo/data", headers=OPERATOR)
        stone = Tombstone.model_validate_json(done.content)
        gone = await client.get("/runs/demo")
        assert (gone.status_code, gone.json()["type"]) == (410, "urn:distrust:problem:gone")
        assert gone.json()["run_digest"] == stone.run_digest.hex()
        listed = RunList.model_validate_json((await client.get("/runs")).content)
        assert (listed.runs, listed.pruned) == ([], [stone])
        page = await client.get("http://server.localhost/", headers={"Accept": "text/html"})
        assert "Run demo was pruned at" in page.text
        old = await client.get("http://server.localhost/runs/demo", headers={"Accept": "text/html"})
        assert (old.status_code, "run demo was pruned at" in old.text) == (410, True)
        assert (await client.delete("/runs/demo/data", headers=OPERATOR)).content == done.content
        assert (await create(client)).status_code == 201

    over_http(tmp_path, body)
