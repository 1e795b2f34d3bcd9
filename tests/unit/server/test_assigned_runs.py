"""Tests runs that assign actions, over a shuffler in memory: what they open, settle, keep and refuse."""

from typing import Any

import pytest

from distrust.common.errors import BadParameter
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import ASSIGNED_ACTION_ASSUMPTIONS, LostCohort, ReleasedCohort
from tests.support.server_harness import ServerHarness

ACTIONS = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]}


def config(**changes: Any) -> RunConfig:
    whole: dict[str, Any] = {
        "run": "dealt",
        "arms": 3,
        "horizon": 1000,
        "policy": {"name": "almost-free", "model": "shuffled", "actions": ACTIONS},
        "mechanism": {"name": "shuffled-laplace", "epsilon": 1.0, "delta": 1e-3},
    }
    return RunConfig.model_validate(whole | changes)


def opened(harness: ServerHarness) -> Cohort:
    (cohort,) = harness.service.active_run("dealt").pending()
    with harness.service.store.writing() as writing:
        writing.cohort(cohort)
    return cohort


def answer(cohort: Cohort, survivors: int) -> BatchAnswer:
    """Return a batch of records that do not open."""
    assert isinstance(cohort.channel, AssignedRecords)
    counts = [survivors] + [0] * (len(cohort.channel.deal.times) - 1)
    content = GroupedRecords(counts=counts, body=b"", checksum=bytes(32))
    return BatchAnswer(
        cohort=cohort.cohort,
        state="released",
        batch=Batch(cohort=cohort.cohort, survivors=survivors, content=content),
        delivery=1,
    )


@pytest.mark.parametrize("seed", [None, 5])
def test_a_cohort_deals_the_rounds_own_list_and_names_a_seed_only_in_unsafe_runs(
    harness: ServerHarness, seed: int | None
) -> None:
    unsafe = {} if seed is None else {"unsafe": {"noise_seed": seed}}
    harness.service.create(config(**unsafe))
    round_ = harness.reader.round_view("dealt").round
    assert round_ is not None
    (assignment,) = round_.assignments
    channel = assignment.cohort.channel
    assert isinstance(channel, AssignedRecords)
    assert (channel.deal, channel.noise_seed, assignment.arm) == (round_.decision, seed, None)
    assert channel.deal.plays == assignment.cohort.clients == round_.mechanism.clients


@pytest.mark.parametrize("name", ["identity", "central-laplace-discrete", "local-laplace-discrete"])
def test_whatever_a_mechanisms_own_way_is_dealt_actions_go_through_the_shuffler(
    harness: ServerHarness, name: str
) -> None:
    spec = {"name": name} | ({} if name == "identity" else {"epsilon": 1.0})
    harness.service.create(config(mechanism=spec))
    (cohort,) = harness.service.active_run("dealt").pending()
    assert (cohort.via, cohort.channel.kind) == ("shuffler", "dealt")


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "distributed-polya", "epsilon": 1.0},
        {"name": "shuffled-gaussian", "epsilon": 1.0, "delta": 1e-3},
        {"name": "local-laplace-discrete", "epsilon": 1.0, "via": "aggregator"},
    ],
)
def test_what_protects_a_whole_sum_only_or_travels_elsewhere_is_refused(
    harness: ServerHarness, mechanism: dict[str, Any]
) -> None:
    with pytest.raises(BadParameter, match="shuffled actions need"):
        harness.service.create(config(mechanism=mechanism))


def test_a_horizon_whose_last_batch_might_outgrow_a_cohort_is_refused(harness: ServerHarness) -> None:
    with pytest.raises(BadParameter, match="below 1000000"):
        harness.service.create(config(horizon=1_000_000))
    learner = Learner(config(horizon=999_999, mechanism={"name": "identity"}))
    sizes = []
    while plan := learner.plan():
        (cohort,) = plan.cohorts
        assert plan.decision.kind == "assigned-action"
        sizes.append(cohort.clients)
        times = plan.decision.times
        learner.absorb(ReleasedCohort(cohort=cohort.cohort, sum=[0.0] * len(times), survivors=sum(times), counts=times))
    assert max(sizes) < 1_000_000


LOCAL = {"name": "local-laplace-discrete", "epsilon": 1.0}
"""A mechanism without receipts, which would refuse such batches before they are opened."""


def test_a_batch_that_does_not_open_is_lost_whole_and_another_cohort_is_asked(harness: ServerHarness) -> None:
    harness.service.create(config(mechanism=LOCAL))
    cohort = opened(harness)
    assert harness.service.settle(cohort, answer(cohort, cohort.clients))[0]
    outcome = harness.service.store.outcome(cohort.cohort)
    assert isinstance(outcome, LostCohort)
    assert outcome.reason.startswith("refused: ")
    (again,) = harness.service.active_run("dealt").pending()
    assert (again.cohort, again.channel) == ("dealt.1.0.2", cohort.channel)


def test_a_batch_below_the_minimum_is_never_opened(harness: ServerHarness) -> None:
    harness.service.create(config(mechanism=LOCAL))
    cohort = opened(harness)
    assert harness.service.settle(cohort, answer(cohort, cohort.minimum - 1))[0]
    outcome = harness.service.store.outcome(cohort.cohort)
    assert isinstance(outcome, LostCohort)
    assert "needed: nothing is released" in outcome.reason


def test_a_runs_guarantee_says_what_shuffled_actions_count_on(harness: ServerHarness) -> None:
    harness.service.create(config(intermediary={"minimum": 300}))
    promise = harness.reader.view("dealt").snapshot.guarantee
    assert (promise.model, promise.epsilon) == ("shuffle", pytest.approx(1.0, rel=1e-6))
    assert set(ASSIGNED_ACTION_ASSUMPTIONS) < set(promise.assumptions)
    assert set(ASSIGNED_ACTION_ASSUMPTIONS) < set(harness.reader.round_report("dealt", 1).guarantee.assumptions)
    local = Learner(config(run="alone", mechanism={"name": "local-laplace-discrete", "epsilon": 1.0})).snapshot()
    assert not set(ASSIGNED_ACTION_ASSUMPTIONS) & set(local.guarantee.assumptions)
