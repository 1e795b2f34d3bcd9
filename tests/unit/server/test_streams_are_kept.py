"""Tests that a stream goes on over scrubs and restarts as without: its counter is restored from the stored batches."""

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round
from distrust.common.randomness import Stream, UnsafeSeededStream
from distrust.common.wire import Via
from distrust.server.learner.rounds import ReleasedCohort
from distrust.server.runs.intermediaries import Housekeeper
from distrust.server.runs.settlement import analyzer_stream
from distrust.server.storage import tables
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import ServerHarness, config

BATCHES, BATCH = 6, 8


CONTEXTS: dict[str, Any] = {"name": "linucb", "features": 2, "batch": BATCH}
ARMS: dict[str, Any] = {"name": "dp-ucb", "batch": BATCH}
"""It plays its three arms twice in the six batches, or one of them more often: three streams."""


def stream(name: str, via: Via, keep_seconds: float, policy: dict[str, Any] = CONTEXTS) -> RunConfig:
    return config(
        horizon=BATCHES * BATCH,
        policy=policy,
        mechanism={"name": name, "epsilon": 1.0, "delta": 1e-3, "batches": BATCHES, "via": via},
        intermediary={"keep_seconds": keep_seconds},
    )


class Learning(InMemoryClients):
    """Clients of a stream, whose vectors follow from their cohort's round alone."""

    def _messages(self, round_: Round, assignment: Assignment) -> NDArray[np.uint64]:
        mechanism, cohort = round_.mechanism, assignment.cohort
        vectors = np.full((cohort.clients, mechanism.dimension), 0.1 + round_.number / 50)
        return mechanism.randomize(vectors, UnsafeSeededStream(self._seed, cohort.cohort))


def released(harness: ServerHarness) -> list[tuple[str, list[float]]]:
    outcomes = harness.service.store.outcomes("demo")
    return [(outcome.cohort, outcome.sum) for outcome in outcomes if isinstance(outcome, ReleasedCohort)]


def batches(harness: ServerHarness) -> int:
    with harness.database.reading() as connection:
        bodies = connection.execute(select(tables.BATCHES.c.body)).scalars()
        return sum(body is not None for body in bodies)


async def played(harness: ServerHarness, clients: InMemoryClients, until: int) -> None:
    await asyncio.wait_for(harness.play("demo", clients, until), 240)
    await harness.coordinator.stop()


@pytest.mark.parametrize("name", ["tree", "prefix-factorization"])
@pytest.mark.parametrize("via", ["shuffler", "aggregator"])
@pytest.mark.few(2)
def test_a_stream_with_keep_seconds_of_0_that_is_scrubbed_and_restarted_has_the_estimates_that_it_has_without(
    tmp_path: Path, via: Via, name: str
) -> None:
    check_restarted(tmp_path, partial(stream, name, via), name)


@pytest.mark.parametrize("name", ["tree", "prefix-factorization"])
@pytest.mark.few(1)
def test_the_streams_of_all_arms_are_restored_each_from_its_own_batches(tmp_path: Path, name: str) -> None:
    check_restarted(tmp_path, partial(stream, name, "shuffler", policy=ARMS), name)


def check_restarted(tmp_path: Path, of: Callable[[float], RunConfig], name: str) -> None:
    """Check that a run that is scrubbed at once and restarted releases what it releases without."""
    folders = [tmp_path / "whole", tmp_path / "restarted"]
    for folder in folders:
        folder.mkdir()
    whole = ServerHarness(folders[0], InMemoryIntermediaries())
    whole.service.create(of(86_400.0))
    asyncio.run(played(whole, Learning(whole.intermediaries, []), 10**9))
    assert whole.service.active_run("demo").learner.rounds[0].mechanism.name == name

    harness = ServerHarness(folders[1], InMemoryIntermediaries())
    harness.service.create(of(0.0))
    clients = Learning(harness.intermediaries, [])
    for number in [2, 5, 10**9]:
        asyncio.run(played(harness, clients, number))
        open_ = harness.service.active_run("demo").state == "running"
        asyncio.run(Housekeeper(harness.service, harness.intermediaries).turn())
        assert batches(harness) == (number - 1 if open_ else 0)
        harness.database.close()
        harness = ServerHarness(folders[1], harness.intermediaries)
    assert released(harness) == released(whole)
    assert len(released(whole)) == BATCHES
    ours, theirs = (one.reader.view("demo") for one in (harness, whole))
    assert (ours.state, ours.snapshot) == ("finished", theirs.snapshot)
    for one in (harness, whole):
        one.database.close()


class Varied(Learning):
    """Clients whose vectors in the first round are those of one history or of another."""

    def __init__(self, intermediaries: InMemoryIntermediaries, first: float) -> None:
        super().__init__(intermediaries, [])
        self._first = first

    def _messages(self, round_: Round, assignment: Assignment) -> NDArray[np.uint64]:
        if round_.number > 1:
            return super()._messages(round_, assignment)
        mechanism, cohort = round_.mechanism, assignment.cohort
        vectors = np.full((cohort.clients, mechanism.dimension), self._first)
        return mechanism.randomize(vectors, UnsafeSeededStream(self._seed, cohort.cohort))


def two_batches(folder: Path, first: float, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Play two batches of the run in this folder, and a third after a restart. Return the seeds of their noise."""
    seeds: dict[str, bytes] = {}

    def noted(*given: Any, **past: Any) -> Stream:
        made = analyzer_stream(*given, **past)
        seeds.setdefault(given[2].cohort, made.bytes(32))
        return analyzer_stream(*given, **past)

    monkeypatch.setattr("distrust.server.runs.settlement.analyzer_stream", noted)
    intermediaries = InMemoryIntermediaries()
    for number in (3, 4):
        harness = ServerHarness(folder, intermediaries)
        asyncio.run(played(harness, Varied(intermediaries, first), number))
        assert harness.service.active_run("demo").state == "running"
        harness.database.close()
    return list(seeds.values())


@pytest.mark.parametrize("name", ["tree", "prefix-factorization"])
def test_a_batch_of_a_stream_has_other_noise_behind_another_past_and_the_same_after_a_restart(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server runs twice from one copy, and its shuffler leaves a record of the first batch out the second time.

    Noise of the second batch that is a function of the second batch alone cancels between the two prefixes. After the
    restart the counter finds every prefix again, or the run ends.
    """
    (tmp_path / "begun").mkdir()
    harness = ServerHarness(tmp_path / "begun", InMemoryIntermediaries())
    harness.service.create(stream(name, "shuffler", 86_400.0).model_copy(update={"unsafe": None}))
    harness.database.close()
    seeds = []
    for copied, first in (("one", 0.12), ("same", 0.12), ("other", 0.14)):
        shutil.copytree(tmp_path / "begun", tmp_path / copied)
        seeds.append(two_batches(tmp_path / copied, first, monkeypatch))
    one, same, other = seeds
    assert (len(one), one) == (3, same)
    assert set(one).isdisjoint(other)
