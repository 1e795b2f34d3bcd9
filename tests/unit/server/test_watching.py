"""What a run shows of itself: transcripts, events, the ledger."""

import re
from typing import Any

import pytest

from distrust.common.bandit.statistics import Reward
from distrust.common.errors import WrongCohort, WrongStage
from distrust.common.mechanisms import MechanismSpec, plan
from distrust.server.learner.rounds import promise_to_survivors
from tests.support.in_memory_intermediaries import Crowd
from tests.support.server_harness import MECHANISMS, REWARDS, House, config, serve


def test_unknown_runs_rounds_and_cohorts_are_refused(house: House) -> None:
    house.service.create(config())
    for call in (
        lambda: house.service.view("other"),
        lambda: house.service.round_report("demo", 2),
        lambda: house.service.round_report("demo", 0),
        lambda: house.service.transcript("demo", "demo.9.9.9", 0, 10),
    ):
        with pytest.raises(WrongCohort):
            call()
    with pytest.raises(WrongStage):
        house.service.transcript("demo", "demo.1.0.1", 0, 10)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: str(one["name"]))
def test_a_transcript_shows_what_the_server_saw_page_by_page(house: House, mechanism: dict[str, Any]) -> None:
    house.service.create(config(horizon=96, mechanism=mechanism))
    crowd = Crowd(house.s, REWARDS)
    serve(house, "demo", crowd)
    whole = house.service.transcript("demo", "demo.1.1.1", 0, 100)
    pages = [house.service.transcript("demo", "demo.1.1.1", at, 1) for at in range(whole.total)]
    assert whole.messages == [page.messages[0] for page in pages]
    assert (pages[0].next, pages[-1].next, whole.next) == (1, None, None)
    stages = [seen.stage for seen in whole.messages]
    assert [stages[0], stages[-2], stages[-1]] == ["cohort", "batch", "estimate"]
    seen = whole.messages[-2].view
    rows = crowd.rows["demo.1.1.1"]
    if "values" in seen:
        assert sorted(rows[:, 0].tolist()) == sorted(seen["values"])  # type: ignore[arg-type]
    elif "ones" in seen:
        assert [int(rows.sum())] == seen["ones"]
    else:
        assert [int(rows.sum()) % int(str(seen["modulus"]))] == seen["sum"]


def test_a_cohorts_page_says_what_is_promised_with_those_who_answered_and_if_some_collude(house: House) -> None:
    """MAB Theorem 1, t = n: ε = 1 for all 32, and log p_r(0)/p_r(g) at r = 29/32 when 3 of them tell their noise."""
    mechanism = plan(
        MechanismSpec(name="distributed-polya", epsilon=1.0),
        clients=32,
        min_survivors=32,
        min_honest=32,
        overflow_probability=1e-6,
        statistic=Reward(),
    )
    worse = mechanism.privacy(32, 3).promise.epsilon
    assert worse is not None
    assert worse > 1.1
    assert (
        promise_to_survivors(mechanism, 32) == f"ε = 1 with the 32 who answered, ε = {worse:.3g} if 3 of them collude"
    )
    house.service.create(config(horizon=96, unsafe=None))
    serve(house, "demo", Crowd(house.s, REWARDS))
    said = house.service.transcript("demo", "demo.1.1.1", 0, 100).messages[-1].view["privacy"]
    assert re.fullmatch(r"ε = [\d.]+ with the \d+ who answered, ε = [\d.]+ if \d+ of them collude", str(said))


def test_events_tell_the_run_in_order_and_resume(house: House) -> None:
    house.service.create(config())
    view = serve(house, "demo", Crowd(house.s, REWARDS))
    events, over = house.service.events("demo", 0)
    kinds = [event.kind for event in events]
    assert over
    assert (kinds[0], kinds[1], kinds[-1]) == ("round-opened", "cohort-opened", "finished")
    assert kinds.count("cohort-released") == view.cohorts_released
    assert kinds.count("round-opened") == view.snapshot.round
    gone = [event.arm for event in events if event.kind == "arm-eliminated"]
    assert gone == [arm.arm for arm in view.snapshot.arms if not arm.active]
    assert house.service.events("demo", events[3].number)[0] == events[4:]
    assert not house.service.events("demo", 0, limit=3)[1]


def test_the_ledger_has_a_line_for_each_round(house: House) -> None:
    house.service.create(config(unsafe=None))
    serve(house, "demo", Crowd(house.s, REWARDS))
    ledger = house.service.ledger("demo")
    rounds = house.service.rounds("demo", 0, 50).rounds
    assert [line.clients for line in ledger.lines] == [sum(one.clients for one in page.cohorts) for page in rounds]
    assert ledger.total.epsilon == max(line.guarantee.epsilon or 0 for line in ledger.lines)


def test_watchers_are_rung_for_their_own_run(house: House) -> None:
    house.service.create(config(horizon=96))
    serve(house, "demo", Crowd(house.s, REWARDS))
    assert set(house.rung) == {"demo"}
    assert len(house.rung) >= 6
