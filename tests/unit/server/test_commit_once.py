"""Tests that an estimate is drawn, committed and shown once, and is never shown uncommitted."""

import asyncio
from typing import Any

import pytest

from distrust.common.errors import Unavailable
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.server.storage.store import Store
from tests.support.in_memory_intermediaries import InMemoryClients
from tests.support.server_harness import REWARDS, ServerHarness, config
from tests.unit.server.test_lost_confirmations import Faults, away

CENTRAL = {"name": "central-laplace-discrete", "epsilon": 1.0, "via": "aggregator"}


async def played(harness: ServerHarness, **changes: Any) -> list[tuple[Cohort, BatchAnswer]]:
    """Play a run's first round. Return its cohorts with their batches, which the server has not collected yet."""
    harness.service.create(config(mechanism=CENTRAL, unsafe=None, **changes))
    round_ = harness.reader.round_view("demo").round
    assert round_ is not None
    InMemoryClients(harness.intermediaries, REWARDS).answer(round_, await harness.ask("demo", 96))
    await harness.coordinator.stop()
    cohorts = [assignment.cohort for assignment in round_.assignments]
    return [(cohort, await harness.intermediaries.collect(cohort)) for cohort in cohorts]


def test_an_estimate_that_could_not_be_committed_is_shown_nowhere(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one were shown, its noise would be drawn twice, and two releases of one sum average their noise out."""
    (cohort, answer), *_ = asyncio.run(played(harness))
    with monkeypatch.context() as broken:
        broken.setattr(Store, "writing", away)
        broken.setattr(Store, "outcomes", away)
        with pytest.raises(Unavailable):
            harness.service.settle(cohort, answer)
        with pytest.raises(Unavailable):
            harness.reader.round_view("demo")
    assert cohort in harness.service.active_run("demo").pending()
    assert harness.reader.round_report("demo", 1).cohorts[0].estimate is None
    assert harness.service.settle(cohort, answer)[0] is True
    committed = harness.service.store.outcomes("demo")
    assert [harness.reader.round_report("demo", 1).cohorts[0].estimate] == [one.sum for one in committed]  # type: ignore[union-attr]


def test_a_commit_whose_confirmation_is_lost_is_not_repeated_with_fresh_noise(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cohort, answer), *_ = asyncio.run(played(harness))
    Faults(["lost"], monkeypatch)
    with pytest.raises(Unavailable):
        harness.service.settle(cohort, answer)
    (committed,) = harness.service.store.outcomes("demo")
    assert harness.service.settle(cohort, answer)[0] is False
    assert harness.service.store.outcomes("demo") == [committed]


def test_a_run_that_ended_behind_a_lost_confirmation_is_over(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    *others, (cohort, answer) = asyncio.run(played(harness, horizon=97))
    for one, its in others:
        harness.service.settle(one, its)
    Faults(["lost"], monkeypatch)
    with pytest.raises(Unavailable):
        harness.service.settle(cohort, answer)
    assert harness.reader.round_view("demo").state == "finished"
    assert harness.reader.view("demo").state == "finished"


def test_a_cohort_is_settled_once_however_often_the_intermediary_answers(harness: ServerHarness) -> None:
    (cohort, answer), *_ = asyncio.run(played(harness))
    assert [harness.service.settle(cohort, answer)[0] for _ in range(3)] == [True, False, False]
    assert len(harness.service.store.outcomes("demo")) == 1


def test_a_slot_whose_grant_was_not_committed_is_granted_to_the_next_request(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def round_() -> None:
        harness.service.create(config())
        assert [(grant.first, grant.count) for grant in (await harness.ask("demo", 3)).grants] == [(0, 3)]
        Faults(["refused"], monkeypatch)
        with pytest.raises(Unavailable):
            await harness.ask("demo", 4)
        assert [(one.first, one.count) for one in (await harness.ask("demo", 5)).grants] == [(3, 5)]
        await harness.coordinator.stop()

    asyncio.run(round_())


def test_a_slot_whose_grant_was_committed_behind_a_lost_confirmation_is_granted_to_no_other_request(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def round_() -> None:
        harness.service.create(config())
        name = "ab" * 16
        Faults(["lost"], monkeypatch)
        with pytest.raises(Unavailable):
            await harness.ask("demo", 32, name)
        later = (await harness.ask("demo", 4)).grants
        repeated = (await harness.ask("demo", 32, name)).grants
        slots = [(one.cohort, slot) for one in [*later, *repeated] for slot in range(one.first, one.first + one.count)]
        assert len(slots) == len(set(slots)) >= 4
        await harness.coordinator.stop()

    asyncio.run(round_())
