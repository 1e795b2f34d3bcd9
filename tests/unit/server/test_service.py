"""Runs over an S in memory: every channel, replacement, restart, cancellation."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from distrust.common.errors import BadParameter, Conflict, WrongStage
from distrust.common.modular import sum_rows
from distrust.common.run.progress import RunView
from distrust.server.active_run import analyzer_stream
from tests.support.in_memory_intermediaries import Crowd, MemoryIntermediaries
from tests.support.server_harness import MECHANISMS, REWARDS, House, config, serve


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: str(one["name"]))
def test_a_run_ends_with_the_right_sums_through_every_channel(house: House, mechanism: dict[str, Any]) -> None:
    """Each sum is what the mechanism makes of the very rows that the clients drew, added here a second time."""
    crowd = Crowd(house.s, REWARDS)
    house.service.create(config(mechanism=mechanism))
    view = serve(house, "demo", crowd)
    assert (view.state, view.snapshot.finished, view.cohorts_open) == ("finished", True, 0)
    assert view.clients == view.snapshot.pulls - view.snapshot.unfinished
    _check_sums(house, crowd)


def _check_sums(house: House, crowd: Crowd) -> None:
    active = house.service.active_run("demo")
    for record in active.learner.rounds:
        for outcome in record.released.values():
            rows = crowd.rows[outcome.cohort]
            stream = analyzer_stream(active.config, outcome.cohort)
            summed = sum_rows(rows, record.mechanism.modulus)
            again = record.mechanism.estimate(summed, outcome.survivors, stream)
            assert again.tolist() == outcome.sum


def test_the_same_configuration_is_the_same_run_and_another_one_is_refused(house: House) -> None:
    first, new = house.service.create(config())
    again, news = house.service.create(config())
    assert (new, news, first) == (True, False, again)
    with pytest.raises(Conflict):
        house.service.create(config(horizon=801))


def test_a_horizon_that_outgrows_a_cohort_is_refused_over_services(house: House) -> None:
    with pytest.raises(BadParameter, match="horizon"):
        house.service.create(config(horizon=2_000_000))


def test_clients_that_leave_are_not_in_the_sum(house: House) -> None:
    house.service.create(config(horizon=96))
    crowd = Crowd(house.s, REWARDS, {"0.1": 3, "2.1": 1})
    serve(house, "demo", crowd)
    cohorts = house.service.round_report("demo", 1).cohorts
    assert [(one.survivors, one.lost) for one in cohorts] == [(29, 3), (32, 0), (31, 1)]


def test_an_aborted_cohort_is_replaced_and_counted(house: House) -> None:
    house.service.create(config(horizon=200))
    view = serve(house, "demo", Crowd(house.s, REWARDS, {"1.1": 5}))
    report = house.service.round_report("demo", 1)
    assert [(one.cohort, one.state) for one in report.cohorts] == [
        ("demo.1.0.1", "released"),
        ("demo.1.1.1", "aborted"),
        ("demo.1.2.1", "released"),
        ("demo.1.1.2", "released"),
    ]
    assert report.cohorts[1].reason == "27 survivors, needs 29"
    assert (view.cohorts_aborted, view.snapshot.aborted, view.snapshot.arms[1].pulls) == (1, 1, 64 + 8)


def test_a_restarted_server_goes_on_to_the_same_end(tmp_path: Path, s: MemoryIntermediaries) -> None:
    """Stopped at every round, in the middle of its cohorts; the sums are those of a server that never stopped."""

    async def interrupted() -> RunView:
        crowd = Crowd(s, REWARDS)
        house = House(tmp_path / "a", s)
        house.service.create(config())
        for _ in range(1000):
            view = house.service.round_view("demo")
            if view.round is None:
                break
            with contextlib.suppress(WrongStage):  # the round may end between the look and the question
                crowd.answer(view.round, await house.ask("demo", 20))
            await house.stop()
            house = House(tmp_path / "a", s)
            await house.coordinator.start()
            await asyncio.sleep(0.005)
        await house.stop()
        return house.service.view("demo")

    whole = House(tmp_path / "b", MemoryIntermediaries())
    whole.service.create(config())
    expected = serve(whole, "demo", Crowd(whole.s, REWARDS))
    whole.database.close()
    assert expected.snapshot == asyncio.run(interrupted()).snapshot


def test_s_that_is_away_for_a_while_costs_nothing(house: House) -> None:
    async def interrupted() -> RunView:
        house.service.create(config(horizon=96))
        crowd = Crowd(house.s, REWARDS)
        asked = house.service.round_view("demo").round
        assert asked is not None
        tickets = await house.ask("demo", 96)
        house.s.down = True
        crowd.answer(asked, tickets)
        await asyncio.sleep(0.05)
        assert house.service.view("demo").cohorts_released == 0
        house.s.down = False
        view = await asyncio.wait_for(house.play("demo", crowd), 30)
        await house.coordinator.stop()
        return view

    view = asyncio.run(interrupted())
    assert (view.state, view.cohorts_released, view.cohorts_aborted) == ("finished", 3, 0)


def test_runs_do_not_mix(house: House) -> None:
    async def both() -> None:
        crowds = {run: Crowd(house.s, rewards) for run, rewards in (("a", REWARDS), ("a.1", REWARDS[::-1]))}
        for run in crowds:
            house.service.create(config(run))
        await asyncio.wait_for(asyncio.gather(*(house.play(run, crowd) for run, crowd in crowds.items())), 60)
        await house.coordinator.stop()
        for run, crowd in crowds.items():
            assert set(crowd.sent) == {
                one.cohort for page in house.service.rounds(run, 0, 50).rounds for one in page.cohorts
            }

    asyncio.run(both())
    lows = [house.service.view(run).snapshot.arms[0].mean for run in ("a", "a.1")]
    assert lows[0] is not None
    assert lows[1] is not None
    assert lows[0] < 0.5 < lows[1]


def test_a_cancelled_run_hands_out_nothing_and_releases_nothing(house: House) -> None:
    async def cancelled() -> None:
        house.service.create(config())
        asked = house.service.round_view("demo").round
        assert asked is not None
        name = "cd" * 16
        tickets = await house.ask("demo", 32, name)
        house.service.cancel("demo", "enough")
        house.coordinator.forget("demo")
        Crowd(house.s, REWARDS).answer(asked, tickets)
        with pytest.raises(WrongStage):
            await house.ask("demo")
        await asyncio.sleep(0.02)
        await house.coordinator.stop()

    asyncio.run(cancelled())
    view = house.service.view("demo")
    assert (view.state, view.reason, view.cohorts_released) == ("cancelled", "enough", 0)
    assert house.service.round_view("demo").round is None
