"""Tests that the learner turns outcomes of cohorts into the plans of the next round."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.common.errors import BadMessage, BadParameter, WrongCohort
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, LostCohort, ReleasedCohort, RoundPlan, plan_round
from distrust.server.policies.base import Ask, Query

Outcome = ReleasedCohort | LostCohort
MEANS = [0.2, 0.4, 0.9]


def config(**changes: Any) -> RunConfig:
    whole: dict[str, Any] = {
        "run": "demo",
        "arms": 3,
        "horizon": 3000,
        "mechanism": {"name": "distributed-polya", "epsilon": 1.0},
        "policy": {"first_batch": 3},
    }
    return RunConfig.model_validate(whole | changes)


def released(cohort: CohortPlan, mean: float = 0.5, survivors: int | None = None) -> ReleasedCohort:
    survivors = survivors or cohort.clients
    return ReleasedCohort(cohort=cohort.cohort, sum=[mean * survivors], survivors=survivors)


def lost(cohort: CohortPlan) -> LostCohort:
    return LostCohort(cohort=cohort.cohort, reason="too few")


def play(learner: Learner, answer: Callable[[CohortPlan], Outcome], rounds: int = 10**6) -> list[Outcome]:
    """Answer every cohort of the next rounds."""
    outcomes: list[Outcome] = []
    until = len(learner.rounds) + rounds
    while (plan := learner.plan()) and plan.number < until:
        for cohort in plan.cohorts:
            outcomes.append(answer(cohort))
            learner.absorb(outcomes[-1])
    return outcomes


def open_plan(learner: Learner) -> RoundPlan:
    plan = learner.plan()
    assert plan is not None
    return plan


def test_a_round_asks_every_active_arm_for_its_own_cohort() -> None:
    plan = open_plan(Learner(config()))
    assert [(cohort.cohort, cohort.arm, cohort.clients, cohort.attempt) for cohort in plan.cohorts] == [
        ("demo.1.0.1", 0, 8, 1),
        ("demo.1.1.1", 1, 8, 1),
        ("demo.1.2.1", 2, 8, 1),
    ]


@pytest.mark.parametrize(
    ("dropout", "corrupt", "minimum", "min_survivors", "min_honest"),
    [
        pytest.param(0.0, 0.0, 2, 1024, 1024, id="no-client-leaves"),
        pytest.param(0.1, 0.1, 2, 922, 820, id="ten-and-ten-percent"),
        pytest.param(0.4, 0.1, 1000, 1000, 898, id="the-runs-own-minimum"),
        pytest.param(0.4, 0.49, 2, 615, 114, id="large-rates"),
    ],
)
def test_survivors_and_floor_follow_the_rates(
    dropout: float, corrupt: float, minimum: int, min_survivors: int, min_honest: int
) -> None:
    rates = {"dropout": dropout, "corrupt": corrupt, "minimum": minimum}
    plan = open_plan(Learner(config(policy={"first_batch": 10}, horizon=10_000, intermediary=rates)))
    assert (min_survivors, min_honest) == (plan.minimum, plan.mechanism.floor)


def test_the_wrap_probability_is_the_policys_share() -> None:
    learner = Learner(config())
    assert pytest.approx(open_plan(learner).mechanism.wrap) == 0.1 / (5 * 3 * 9)


def test_the_best_arm_is_found_and_the_others_drop_out() -> None:
    learner = Learner(config(horizon=100_000))
    play(learner, lambda cohort: released(cohort, MEANS[cohort.arm]))
    view = learner.snapshot()
    assert (view.chosen, view.finished, view.pulls) == (2, True, 100_000)
    assert [arm.active for arm in view.arms] == [False, False, True]
    assert view.arms[0].eliminated is not None
    assert view.arms[2].mean == pytest.approx(0.9)


def test_an_aborted_cohort_is_replaced_by_fresh_clients_that_count() -> None:
    learner = Learner(config())
    for cohort in open_plan(learner).cohorts:
        learner.absorb(lost(cohort) if cohort.arm != 1 else released(cohort))
    plan = open_plan(learner)
    assert [cohort.cohort for cohort in plan.cohorts] == ["demo.1.0.2", "demo.1.2.2"]
    assert learner.pulls == [16, 8, 16]
    play(learner, released, rounds=1)
    assert learner.pulls == [16 + 16, 8 + 16, 16 + 16]
    assert (learner.aborted, open_plan(learner).number) == (2, 2)


def test_a_batch_whose_replacement_does_not_fit_is_not_used() -> None:
    learner = Learner(config(horizon=3 * 8 + 3 * 16 + 15))
    play(learner, released, rounds=1)
    before = learner.policy.intervals
    for cohort in open_plan(learner).cohorts:
        learner.absorb(released(cohort, MEANS[cohort.arm]) if cohort.arm else lost(cohort))
    view = learner.snapshot()
    assert (view.finished, view.unfinished, view.pulls) == (True, 3 * 16 + 15, learner.config.horizon)
    assert learner.policy.intervals == before
    assert learner.plan() is None


def test_a_replacement_that_costs_all_that_is_left_is_opened_and_ends_the_horizon() -> None:
    learner = Learner(config(horizon=3 * 8 + 3 * 16 + 16))
    play(learner, released, rounds=1)
    for cohort in open_plan(learner).cohorts:
        learner.absorb(released(cohort, MEANS[cohort.arm or 0]) if cohort.arm else lost(cohort))
    assert [(one.cohort, one.clients) for one in open_plan(learner).cohorts] == [("demo.2.0.2", 16)]
    play(learner, released)
    view = learner.snapshot()
    assert (view.finished, view.unfinished, view.pulls) == (True, 0, learner.config.horizon)


def test_the_unfinished_last_batch_opens_nothing() -> None:
    learner = Learner(config(horizon=3 * 8 + 3 * 16 - 1))
    play(learner, released, rounds=1)
    assert learner.plan() is None
    view = learner.snapshot()
    assert (len(learner.rounds), view.unfinished, view.pulls) == (1, 47, 71)
    assert [arm.pulls for arm in view.arms] == [8 + 16, 8 + 16, 8 + 15]


@given(data=st.data(), horizon=st.integers(24, 1500))
@settings(max_examples=40, deadline=None)
def test_replaying_the_outcomes_gives_the_same_plans_and_never_passes_the_horizon(
    data: st.DataObject, horizon: int
) -> None:
    """Cohorts end well or badly, in any order within a wave; a second learner is asked for its plan at every step."""
    rates = {"dropout": 0.25, "corrupt": 0.0}
    learner = Learner(config(horizon=horizon, intermediary=rates))
    outcomes: list[Outcome] = []
    while plan := learner.plan():
        cohort = data.draw(st.sampled_from(plan.cohorts))
        survivors = data.draw(st.integers(plan.minimum - 1, cohort.clients))
        mean = data.draw(st.floats(0, 1))
        enough = survivors >= plan.minimum
        outcomes.append(released(cohort, mean, survivors) if enough else lost(cohort))
        learner.absorb(outcomes[-1])
        assert sum(learner.pulls) <= horizon
        again = Learner.replay(learner.config, outcomes)
        assert learner.plan() == again.plan()
    assert learner.snapshot() == again.snapshot()
    assert sum(learner.pulls) == horizon


@given(order=st.permutations(range(3)), ends=st.lists(st.booleans(), min_size=3, max_size=3))
@settings(deadline=None)
def test_the_order_of_outcomes_within_a_wave_does_not_matter(order: list[int], ends: list[bool]) -> None:
    straight, shuffled = Learner(config(horizon=90)), Learner(config(horizon=90))
    cohorts = open_plan(straight).cohorts
    outcomes = [released(c, MEANS[c.arm]) if good else lost(c) for c, good in zip(cohorts, ends, strict=True)]
    for outcome in outcomes:
        straight.absorb(outcome)
    for place in order:
        shuffled.absorb(outcomes[place])
    assert straight.plan() == shuffled.plan()
    assert straight.snapshot() == shuffled.snapshot()


def test_a_cohort_ends_once() -> None:
    learner = Learner(config())
    first = open_plan(learner).cohorts[0]
    learner.absorb(released(first))
    with pytest.raises(WrongCohort):
        learner.absorb(released(first))
    with pytest.raises(WrongCohort):
        learner.absorb(LostCohort(cohort="other.1.0.1", reason=""))


@pytest.mark.parametrize("survivors", [7, 9])
def test_impossible_survivors_are_refused_and_nothing_changes(survivors: int) -> None:
    learner = Learner(config())
    first = open_plan(learner).cohorts[0]
    with pytest.raises(BadMessage):
        learner.absorb(released(first, survivors=survivors))
    assert first in open_plan(learner).cohorts


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"horizon": 23}, "horizon", id="no-whole-batch"),
        pytest.param({"run": "r" * 57}, "run", id="name-too-long-for-cohort-ids"),
        pytest.param({"intermediary": {"minimum": 9}}, "intermediary.minimum", id="minimum-above-the-first-batch"),
        pytest.param({"mechanism": {"name": "distributed-polya", "epsilon": -1.0}}, "mechanism.epsilon", id="epsilon"),
        pytest.param(
            {"mechanism": {"name": "shuffled-binomial", "epsilon": 1.0, "delta": 0.5}}, "mechanism.delta", id="delta"
        ),
    ],
)
def test_a_run_that_cannot_be_started_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        Learner(config(**changes))
    assert field == caught.value.field


def test_the_guarantee_is_the_weakest_of_the_rounds() -> None:
    learner = Learner(config(horizon=2000))
    play(learner, released)
    result = learner.snapshot().guarantee
    assert (result.kind, result.epsilon) == ("pure", pytest.approx(1.0, abs=1e-9))
    assert max(record.cost.guarantee.epsilon or 0 for record in learner.rounds) == result.epsilon
    assert any("one cohort" in text for text in result.assumptions)


def test_a_seeded_run_has_no_guarantee_and_says_why() -> None:
    result = Learner(config(unsafe={"noise_seed": 1})).snapshot().guarantee
    assert (result.kind, result.epsilon) == ("none", None)
    assert "noise_seed" in result.assumptions[0]


def test_runs_with_similar_names_never_share_a_cohort() -> None:
    names = ["a", "a.1", "a.1.1", "a-1", "a.1.0.1"]
    cohorts = [cohort.cohort for name in names for cohort in open_plan(Learner(config(run=name))).cohorts]
    assert len(set(cohorts)) == len(cohorts)


def test_estimates_are_means_of_the_survivors() -> None:
    learner = Learner(config(intermediary={"dropout": 0.25}))
    play(learner, lambda cohort: ReleasedCohort(cohort=cohort.cohort, sum=[3.0], survivors=6), rounds=1)
    means = np.array([interval.mean for interval in learner.policy.intervals])
    assert means == pytest.approx(0.5)


def test_all_rounds_of_a_stream_have_one_modulus() -> None:
    """The nodes of a tree are sums modulo m. A round with another p', and so another m, would make them wrong."""
    spec = {"name": "tree", "epsilon": 1.0, "delta": 1e-3, "batches": 4}
    run = config(horizon=400, mechanism=spec, policy={"name": "dp-ucb", "batch": 100})
    asks = [Ask(number, (Query(0, 100),), cumulative=True) for number in (1, 2, 3)]
    first = plan_round(run, 1, asks[0], 2)
    second = plan_round(run, 2, asks[1], 2, [first])
    assert second.mechanism == first.mechanism
    with pytest.raises(BadParameter, match="counts a stream, whose rounds must all have one size, one share"):
        plan_round(run.model_copy(update={"horizon": 10**6}), 3, asks[2], 2, [second])
