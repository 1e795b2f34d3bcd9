"""Tests that a batch is released once: what a server or an intermediary gains that was restored from an old copy.

The server is the deployed logic over a database file. The intermediaries stay as they are, as other hosts do.
"""

import asyncio
import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrust.common.errors import RunFailed
from distrust.common.protocol.channels.sealed import Records
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import DeliveryList
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.round import TicketAnswer
from distrust.server.learner.rounds import ReleasedCohort
from distrust.server.runs.deliveries import NotComparedError
from distrust.server.runs.settlement import analyzer_stream
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, ServerHarness, config, fill_first_round, serve, until

CENTRAL = {"name": "central-laplace-discrete", "epsilon": 1.0, "via": "aggregator"}
FORGOTTEN = "of cohorts that this server never began: its database is an old copy"
LOST = "the aggregator's database was lost or is an old copy"


made: list[ServerHarness] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the databases of a test's servers at its end."""
    yield
    while made:
        made.pop().database.close()


def served(folder: Path, intermediaries: InMemoryIntermediaries) -> ServerHarness:
    """Return a server over the database in a folder."""
    folder.mkdir(exist_ok=True)
    made.append(ServerHarness(folder, intermediaries))
    return made[-1]


def private() -> RunConfig:
    """Return a run whose analyzer draws its noise, and whose noise has no seed."""
    return config(mechanism=CENTRAL, unsafe=None)


def copy(folder: Path, to: Path) -> Path:
    """Copy a server's database, and the keys of its open runs, as a backup does, while they may be in use."""
    to.mkdir()
    shutil.copytree(folder / "server.keys", to / "server.keys")
    file = "server.sqlite3"
    with closing(sqlite3.connect(folder / file)) as live, closing(sqlite3.connect(to / file)) as backup:
        live.backup(backup)
    return to


def released(harness: ServerHarness) -> dict[str, list[float]]:
    """Return the estimates that the run has released, by cohort."""
    return {one.cohort: one.sum for one in harness.service.store.outcomes("demo") if isinstance(one, ReleasedCohort)}


def play_and_copy(folder: Path, intermediaries: InMemoryIntermediaries, rounds: int) -> tuple[Path, dict[str, Any]]:
    """Play a run to its end. Return a copy of the server's database as round `rounds` began, and what was released."""
    harness = served(folder / "first", intermediaries)
    clients = InMemoryClients(intermediaries, REWARDS)
    harness.service.create(private())
    serve(harness, "demo", clients, until=rounds)
    saved = copy(folder / "first", folder / "copy")
    assert serve(harness, "demo", clients).state == "finished"
    whole = released(harness)
    return saved, whole


@pytest.mark.parametrize("asked", ["by-a-client", "by-nobody"])
def test_a_server_restored_from_an_old_copy_releases_nothing_and_ends_the_run(tmp_path: Path, asked: str) -> None:
    """Without the comparison it opened the forgotten rounds again: 6 of 8 cohorts had a second estimate."""
    intermediaries = InMemoryIntermediaries()
    saved, whole = play_and_copy(tmp_path, intermediaries, rounds=2)
    restored = served(saved, intermediaries)
    known, clients = released(restored), InMemoryClients(intermediaries, REWARDS, seed=2)
    assert 0 < len(known) < len(whole)
    view = serve(restored, "demo", clients) if asked == "by-a-client" else asyncio.run(started(restored))
    assert (view.state, released(restored)) == ("failed", known)
    assert FORGOTTEN in (view.reason or "")
    assert restored.reader.events("demo", 0)[0][-1].kind == "failed"
    assert clients.sent == {}
    again = served(saved, intermediaries)  # the end is stored
    assert again.reader.view("demo").reason == view.reason


async def started(harness: ServerHarness) -> RunView:
    """Start a server to which no client comes, and wait until it has compared its past."""
    await harness.coordinator.start()
    await until(lambda: harness.reader.view("demo").state != "running")
    await harness.coordinator.stop()
    return harness.reader.view("demo")


def test_a_batch_that_a_restored_server_had_begun_gets_the_noise_that_it_had_before(tmp_path: Path) -> None:
    """The copy has the cohorts as open, so nothing is forgotten: the same batches give the same estimates."""
    intermediaries = InMemoryIntermediaries()
    harness = served(tmp_path / "first", intermediaries)
    ends = []

    async def first() -> None:
        harness.service.create(private())
        round_ = harness.reader.round_view("demo").round
        assert round_ is not None
        tickets = await harness.ask("demo", 96)
        copy(tmp_path / "first", tmp_path / "copy")
        InMemoryClients(intermediaries, REWARDS).answer(round_, tickets)
        await until(lambda: len(released(harness)) == 3)
        await harness.coordinator.stop()

    asyncio.run(first())
    ends.append(released(harness))
    restored = served(tmp_path / "copy", intermediaries)

    async def second() -> None:
        await restored.coordinator.start()
        await until(lambda: len(released(restored)) == 3)
        await restored.coordinator.stop()

    asyncio.run(second())
    ends.append(released(restored))
    assert ends[0] == ends[1]


def test_a_server_that_lost_its_database_makes_another_run_of_the_same_file(tmp_path: Path) -> None:
    """Names of cohorts are the same, addresses and digests are not: no old batch is the new cohort's."""
    runs = []
    for folder in ("first", "second"):
        harness = served(tmp_path / folder, InMemoryIntermediaries())
        harness.service.create(private())
        runs.append(harness.service.active_run("demo"))
    one, other = (run.pending()[0] for run in runs)
    assert (one.cohort, runs[0].digest) == (other.cohort, runs[1].digest)
    assert one.address != other.address
    assert one.digest() != other.digest()
    assert runs[0].keys.noise != runs[1].keys.noise


def test_a_copy_of_the_database_alone_releases_nothing_of_a_run_that_has_ended_since(tmp_path: Path) -> None:
    """A second line of defence: the intermediaries are restored as well, and list what the copy knows.

    The run's keys were destroyed at its end, so that no record of it opens and no noise of it is drawn.
    """
    intermediaries = InMemoryIntermediaries()
    saved, _ = play_and_copy(tmp_path, intermediaries, rounds=2)
    shutil.rmtree(saved / "server.keys")
    shutil.copytree(tmp_path / "first" / "server.keys", saved / "server.keys")
    for digests in intermediaries.delivered_digests.values():
        del digests[3:]
    restored = served(saved, intermediaries)
    known, clients = released(restored), InMemoryClients(intermediaries, REWARDS, seed=2)
    assert len(known) == 3
    view = serve(restored, "demo", clients)
    assert (view.state, released(restored), clients.sent) == ("failed", known, {})
    assert str(view.reason).startswith("its key file is gone: the run had ended before its database was restored")


@pytest.mark.parametrize("kept", [0, 1])
def test_an_intermediary_that_lost_its_database_ends_the_run_at_the_servers_start(tmp_path: Path, kept: int) -> None:
    """Its clients may be asked a second time by cohorts that it has forgotten."""
    intermediaries = InMemoryIntermediaries()
    saved, _ = play_and_copy(tmp_path, intermediaries, rounds=2)
    for digests in intermediaries.delivered_digests.values():
        del digests[kept:]
    restored = served(saved, intermediaries)
    view = asyncio.run(started(restored))
    assert (view.state, len(released(restored))) == ("failed", 3)
    assert f"has released {kept} batches of run demo, and not all of the 3 that this server has settled: {LOST}" in (
        view.reason or ""
    )


@pytest.mark.parametrize("lie", ["an-earlier-place", "another-past"])
def test_an_intermediary_that_loses_its_database_while_the_server_runs_is_noticed(tmp_path: Path, lie: str) -> None:
    intermediaries = InMemoryIntermediaries()
    harness = served(tmp_path, intermediaries)

    async def play() -> RunView:
        send = await fill_first_round(harness)
        (digests,) = intermediaries.delivered_digests.values()
        if lie == "an-earlier-place":
            del digests[1:]
        else:
            digests[:] = [hashlib.sha256(digest).digest() for digest in digests] * 2
        send()
        await until(lambda: harness.reader.view("demo").state == "failed")
        await harness.coordinator.stop()
        return harness.reader.view("demo")

    view = asyncio.run(play())
    assert "old copy" in (view.reason or "")
    assert len(released(harness)) == 2


def answer_of(harness: ServerHarness, cohort: Cohort) -> BatchAnswer:
    return asyncio.run(harness.intermediaries.collect(cohort))


def test_a_batch_is_settled_only_at_its_own_place_in_the_list_of_deliveries(tmp_path: Path) -> None:
    intermediaries = InMemoryIntermediaries()
    harness = served(tmp_path, intermediaries)

    async def fill() -> list[Cohort]:
        harness.service.create(private())
        round_ = harness.reader.round_view("demo").round
        assert round_ is not None
        tickets = await harness.ask("demo", 96)
        await harness.coordinator.stop()
        InMemoryClients(intermediaries, REWARDS).answer(round_, tickets)
        return [assignment.cohort for assignment in round_.assignments]

    first, second, third = asyncio.run(fill())
    answers = [answer_of(harness, cohort) for cohort in (first, second, third)]
    assert [answer.delivery for answer in answers] == [1, 2, 3]
    with pytest.raises(NotComparedError):  # the first two are not known yet
        harness.service.settle(third, answers[2])
    assert harness.service.settle(first, answers[0])[0]
    assert not harness.service.settle(first, answers[0])[0]  # collected a second time
    with pytest.raises(RunFailed, match=LOST):
        harness.service.settle(second, answers[1].model_copy(update={"delivery": 1}))
    assert (harness.reader.view("demo").state, len(released(harness))) == ("failed", 1)


def test_batches_that_come_while_the_list_is_read_are_no_other_past(tmp_path: Path) -> None:
    """The page was answered before they were released, or ends in the middle of them."""
    harness = served(tmp_path, InMemoryIntermediaries())
    harness.service.create(private())
    run, digests = harness.service.active_run("demo"), [hashlib.sha256(bytes([i])).digest() for i in range(5)]
    with pytest.MonkeyPatch.context() as known:
        known.setattr(harness.service.store, "known_digests", lambda _run, _via, asked: set(asked))
        for after, listed in ((0, 0), (0, 1), (1, 3), (4, 5)):
            run.delivered["aggregator"] = digests[:4]
            harness.service.compare("demo", "aggregator", after, digests[after:listed])
            assert run.delivered["aggregator"] == digests[: max(4, listed)]
        with pytest.raises(RunFailed, match="lists other batches"):
            harness.service.compare("demo", "aggregator", 1, [digests[1], digests[3]])


@pytest.mark.parametrize("lie", ["beyond-the-list", "a-batch-twice", "without-end"])
def test_an_intermediary_whose_list_cannot_be_ends_the_run(tmp_path: Path, lie: str) -> None:
    """It gains nothing by it; the server reads no more of a list than the run has cohorts there, and one."""
    intermediaries = InMemoryIntermediaries()
    harness, honest, collect = served(tmp_path, intermediaries), intermediaries.delivered, intermediaries.collect
    pages = []

    async def listed(run_digest: bytes, via: str, after: int) -> DeliveryList:
        pages.append(after)
        if lie == "beyond-the-list":
            return await honest(run_digest, via, after)
        digests = (await honest(run_digest, via, 0)).digests[:32]
        return DeliveryList(count=10**15, digests=digests * (2 if lie == "a-batch-twice" else 1))

    async def numbered(cohort: Cohort, *, opening: bool = False) -> BatchAnswer:
        answer = await collect(cohort, opening=opening)
        return answer if answer.batch is None else answer.model_copy(update={"delivery": 99})

    async def play() -> RunView:
        send = await fill_first_round(harness)
        intermediaries.delivered, intermediaries.collect = listed, numbered  # type: ignore[method-assign]
        send()
        await until(lambda: harness.reader.view("demo").state == "failed")
        await harness.coordinator.stop()
        return harness.reader.view("demo")

    view = asyncio.run(play())
    fields = {"beyond-the-list": "as its delivery 99, and lists 3", "a-batch-twice": "lists a batch of run demo twice"}
    assert fields.get(lie, "lists a batch of run demo twice") in (view.reason or "")
    assert len(pages) <= 4
    assert len(released(harness)) == 2


def test_a_list_of_ragged_digests_is_read_again(tmp_path: Path) -> None:
    """It may be a fault on the way: nothing is released meanwhile, and the run goes on with a whole one."""
    intermediaries = InMemoryIntermediaries()
    saved, whole = play_and_copy(tmp_path, intermediaries, rounds=1)
    del whole
    restored, honest, answers = served(saved, intermediaries), intermediaries.delivered, []

    async def listed(run_digest: bytes, via: str, after: int) -> DeliveryList:
        answers.append(after)
        return DeliveryList(count=1, digests=b"abc") if len(answers) < 3 else await honest(run_digest, via, after)

    intermediaries.delivered = listed  # type: ignore[method-assign]
    view = asyncio.run(started(restored))
    assert (len(answers), view.state, released(restored)) == (3, "failed", {})


def test_the_analyzers_noise_is_that_of_its_totals_and_of_its_streams_past() -> None:
    """The same totals of the same cohort and run have the same noise; each change of one of them gives other noise."""
    run, key = private(), bytes(range(32))
    cohort = Cohort.model_construct(cohort="demo.1.0.1", run="demo", round=1, run_digest=bytes(32))
    totals, survivors = np.array([5, 7], dtype=np.uint64), np.array([3])
    drawn = [
        analyzer_stream(run, *one).bytes(32)
        for one in (
            (key, cohort, totals, survivors),
            (bytes(32), cohort, totals, survivors),
            (key, cohort.model_copy(update={"round": 2}), totals, survivors),
            (key, cohort, totals[::-1], survivors),
            (key, cohort, totals, survivors + 1),
            (key, cohort, totals, survivors, bytes(32)),
        )
    ]
    assert len(set(drawn)) == 6
    assert analyzer_stream(run, key, cohort, totals, survivors).bytes(32) == drawn[0]


@pytest.mark.parametrize("via", ["shuffler", "aggregator"])
def test_a_batch_in_other_bytes_has_the_same_estimate(via: str, tmp_path: Path) -> None:
    """A shuffler that was restored, too, permutes again; an aggregator that lies names a dispute more."""
    estimates = []
    for changed in (False, True):
        if not changed:
            intermediaries = InMemoryIntermediaries()
            harness = served(tmp_path / "False", intermediaries)
            harness.service.create(config(mechanism={**CENTRAL, "via": via}, unsafe=None))
            round_ = harness.reader.round_view("demo").round
            assert round_ is not None
            tickets = asyncio.run(granted_and_stopped(harness))
            copy(tmp_path / "False", tmp_path / "copy")
            InMemoryClients(intermediaries, REWARDS).answer(round_, tickets)
            cohort = round_.assignments[0].cohort
            answer = answer_of(harness, cohort)
        else:
            harness = served(tmp_path / "copy", intermediaries)
            harness.service.active_run("demo").delivered[cohort.via] = []
            assert answer.batch is not None
            content = answer.batch.content
            if isinstance(content, Records):
                size = len(content.body) // content.count
                records = [content.body[at : at + size] for at in range(0, len(content.body), size)]
                content = content.model_copy(update={"body": b"".join(reversed(records))})
            batch = answer.batch.model_copy(update={"content": content, "disputes": 1})
            answer = answer.model_copy(update={"batch": batch})
        assert harness.service.settle(cohort, answer)[0]
        estimates.append(released(harness)[cohort.cohort])
    assert estimates[0] == estimates[1]


async def granted_and_stopped(harness: ServerHarness) -> TicketAnswer:
    tickets = await harness.ask("demo", 96)
    await harness.coordinator.stop()
    return tickets
