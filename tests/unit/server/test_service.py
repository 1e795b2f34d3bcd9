"""Tests runs over intermediaries in memory: every channel, replacement, restart, cancellation."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrust.common.errors import BadParameter, Conflict, WrongStage
from distrust.common.modular import sum_rows
from distrust.common.protocol.run.listing import RunView
from distrust.server.runs.settlement import analyzer_stream
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import MECHANISMS, REWARDS, ServerHarness, config, serve


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: str(one["name"]))
def test_a_run_ends_with_the_right_sums_through_every_channel(
    harness: ServerHarness, mechanism: dict[str, Any]
) -> None:
    """Each sum is what the mechanism makes of the very rows that the clients drew, added here a second time."""
    clients = InMemoryClients(harness.intermediaries, REWARDS)
    harness.service.create(config(mechanism=mechanism))
    view = serve(harness, "demo", clients)
    assert (view.state, view.snapshot.finished, view.cohorts_open) == ("finished", True, 0)
    assert view.clients == view.snapshot.pulls - view.snapshot.unfinished
    _check_sums(harness, clients)


def _check_sums(harness: ServerHarness, clients: InMemoryClients) -> None:
    active = harness.service.active_run("demo")
    for record in active.learner.rounds:
        for outcome in record.released.values():
            rows = clients.rows[outcome.cohort]
            cohort = harness.service.store.cohort_message(outcome.cohort)
            assert cohort is not None
            summed = sum_rows(rows, record.mechanism.modulus)
            stream = analyzer_stream(active.config, bytes(32), cohort, summed, np.array([outcome.survivors]))
            again = record.mechanism.estimate(summed, outcome.survivors, stream)
            assert again.tolist() == outcome.sum


def test_the_same_configuration_is_the_same_run_and_another_one_is_refused(harness: ServerHarness) -> None:
    assert harness.service.create(config())
    first = harness.reader.view("demo")
    assert not harness.service.create(config())
    assert harness.reader.view("demo") == first
    with pytest.raises(Conflict):
        harness.service.create(config(horizon=801))


def test_a_horizon_that_outgrows_a_cohort_is_refused_over_services(harness: ServerHarness) -> None:
    with pytest.raises(BadParameter, match="horizon"):
        harness.service.create(config(horizon=2_000_000))


def test_clients_that_leave_are_not_in_the_sum(harness: ServerHarness) -> None:
    harness.service.create(config(horizon=96))
    clients = InMemoryClients(harness.intermediaries, REWARDS, {"0.1": 3, "2.1": 1})
    serve(harness, "demo", clients)
    cohorts = harness.reader.round_report("demo", 1).cohorts
    assert [(cohort.survivors, cohort.lost) for cohort in cohorts] == [(29, 3), (32, 0), (31, 1)]


def test_an_aborted_cohort_is_replaced_and_counted(harness: ServerHarness) -> None:
    harness.service.create(config(horizon=200))
    view = serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS, {"1.1": 5}))
    report = harness.reader.round_report("demo", 1)
    assert [(cohort.cohort, cohort.state) for cohort in report.cohorts] == [
        ("demo.1.0.1", "released"),
        ("demo.1.1.1", "aborted"),
        ("demo.1.2.1", "released"),
        ("demo.1.1.2", "released"),
    ]
    assert report.cohorts[1].reason == "27 survivors, needs 29"
    assert (view.cohorts_aborted, view.snapshot.aborted, view.snapshot.arms[1].pulls) == (1, 1, 64 + 8)


def test_a_restarted_server_goes_on_to_the_same_end(tmp_path: Path, intermediaries: InMemoryIntermediaries) -> None:
    """Stopped at every round, in the middle of its cohorts; the sums are those of a server that never stopped."""

    async def interrupted() -> RunView:
        clients = InMemoryClients(intermediaries, REWARDS)
        harness = ServerHarness(tmp_path / "a", intermediaries)
        harness.service.create(config())
        for _ in range(1000):
            view = harness.reader.round_view("demo")
            if view.round is None:
                break
            with contextlib.suppress(WrongStage):  # the round may end between the look and the question
                clients.answer(view.round, await harness.ask("demo", 20, number=view.round.number))
            await harness.stop()
            harness = ServerHarness(tmp_path / "a", intermediaries)
            await harness.coordinator.start()
            await asyncio.sleep(0.005)
        await harness.stop()
        return harness.reader.view("demo")

    whole = ServerHarness(tmp_path / "b", InMemoryIntermediaries())
    whole.service.create(config())
    expected = serve(whole, "demo", InMemoryClients(whole.intermediaries, REWARDS))
    whole.database.close()
    assert expected.snapshot == asyncio.run(interrupted()).snapshot


def test_an_intermediary_that_is_away_for_a_while_costs_nothing(harness: ServerHarness) -> None:
    async def interrupted() -> RunView:
        harness.service.create(config(horizon=96))
        clients = InMemoryClients(harness.intermediaries, REWARDS)
        round_ = harness.reader.round_view("demo").round
        assert round_ is not None
        tickets = await harness.ask("demo", 96)
        harness.intermediaries.down = True
        clients.answer(round_, tickets)
        await asyncio.sleep(0.05)
        assert harness.reader.view("demo").cohorts_released == 0
        harness.intermediaries.down = False
        view = await asyncio.wait_for(harness.play("demo", clients), 240)
        await harness.coordinator.stop()
        return view

    view = asyncio.run(interrupted())
    assert (view.state, view.cohorts_released, view.cohorts_aborted) == ("finished", 3, 0)


def test_runs_do_not_mix(harness: ServerHarness) -> None:
    async def both() -> None:
        clients_of = {
            run: InMemoryClients(harness.intermediaries, rewards)
            for run, rewards in (("a", REWARDS), ("a.1", REWARDS[::-1]))
        }
        for run in clients_of:
            harness.service.create(config(run))
        await asyncio.wait_for(
            asyncio.gather(*(harness.play(run, clients) for run, clients in clients_of.items())), 240
        )
        await harness.coordinator.stop()
        for run, clients in clients_of.items():
            assert set(clients.sent) == {
                cohort.cohort for page in harness.reader.rounds(run, 0, 50).rounds for cohort in page.cohorts
            }

    asyncio.run(both())
    lows = [harness.reader.view(run).snapshot.arms[0].mean for run in ("a", "a.1")]
    assert lows[0] is not None
    assert lows[1] is not None
    assert lows[0] < 0.5 < lows[1]


def test_a_cancelled_run_hands_out_nothing_and_releases_nothing(harness: ServerHarness) -> None:
    async def cancelled() -> None:
        harness.service.create(config())
        round_ = harness.reader.round_view("demo").round
        assert round_ is not None
        name = "cd" * 16
        tickets = await harness.ask("demo", 32, name)
        harness.service.cancel("demo", "enough")
        harness.coordinator.forget("demo")
        InMemoryClients(harness.intermediaries, REWARDS).answer(round_, tickets)
        with pytest.raises(WrongStage):
            await harness.ask("demo")
        await asyncio.sleep(0.02)
        await harness.coordinator.stop()

    asyncio.run(cancelled())
    view = harness.reader.view("demo")
    assert (view.state, view.reason, view.cohorts_released) == ("cancelled", "enough", 0)
    assert harness.reader.round_view("demo").round is None
