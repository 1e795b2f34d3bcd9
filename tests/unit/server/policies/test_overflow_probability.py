"""Tests that the probability of a wrapped sum follows from the run's configuration."""

from typing import Any

import pytest

from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, ReleasedCohort, RoundPlan

MEANS = [0.9, 0.8, 0.3]
GIVEN = {"kind": "given", "vectors": [[0.9], [0.8], [0.3]]}


def outcome(plan: RoundPlan, cohort: CohortPlan) -> ReleasedCohort:
    """Return the cohort released with the exact sum of rewards at the means."""
    actions = getattr(plan.decision, "actions", [cohort.arm])
    means = [MEANS[action] for action in actions]
    if plan.decision.kind == "assigned-action":
        counts = [count for _, count in plan.decision.pulls(None, cohort.clients)]
        sums = [mean * count for mean, count in zip(means, counts, strict=True)]
        return ReleasedCohort(cohort=cohort.cohort, sum=sums, survivors=cohort.clients, counts=counts)
    return ReleasedCohort(cohort=cohort.cohort, sum=[mean * cohort.clients for mean in means], survivors=cohort.clients)


@pytest.mark.parametrize(
    ("policy", "calibration"),
    [
        pytest.param({"name": "successive-elimination", "first_batch": 4}, "exact", id="successive-elimination"),
        pytest.param({"name": "successive-elimination", "first_batch": 4}, "paper", id="successive-elimination-paper"),
        pytest.param({"name": "successive-elimination", "constants": "published-code"}, "paper", id="published-code"),
        pytest.param({"name": "dp-se", "failure": 0.3}, "exact", id="dp-se"),
        pytest.param({"name": "dp-se", "failure": 0.3}, "paper", id="dp-se-paper"),
        pytest.param({"name": "vb-sdp-ae", "first_batch": 3}, "exact", id="vb-sdp-ae"),
        pytest.param({"name": "ucb1"}, "exact", id="ucb1"),
        pytest.param({"name": "adap-ucb", "first_batch": 3}, "exact", id="adap-ucb"),
        pytest.param({"name": "dp-ucb"}, "exact", id="dp-ucb"),
        pytest.param({"name": "thompson", "first_batch": 3}, "exact", id="thompson"),
        pytest.param({"name": "dp-pe", "actions": GIVEN}, "exact", id="dp-pe"),
        pytest.param({"name": "dp-pe", "actions": GIVEN}, "paper", id="dp-pe-paper"),
        pytest.param({"name": "dp-dpe", "actions": GIVEN, "beta": 1e-3}, "exact", id="dp-dpe-beta"),
        pytest.param({"name": "almost-free", "actions": GIVEN}, "paper", id="almost-free-paper"),
        pytest.param({"name": "almost-free", "actions": GIVEN, "model": "shuffled"}, "exact", id="almost-free-dealt"),
    ],
)
def test_it_follows_from_the_configuration_in_every_round(policy: dict[str, Any], calibration: str) -> None:
    public = policy["name"] in {"ucb1", "dp-ucb"}
    shuffled = policy.get("model") == "shuffled"
    fields: dict[str, Any] = {"name": "identity"} if public else {"name": "distributed-polya", "epsilon": 1.0}
    fields = {"name": "local-laplace-discrete", "epsilon": 1.0} if shuffled else fields
    config = RunConfig.model_validate(
        {
            "run": "demo",
            "arms": 3,
            "horizon": 60 if public else 10**6,
            "policy": policy,
            "mechanism": {**fields, "calibration": calibration},
            "intermediary": {"minimum": 1 if public else 2},
        }
    )
    learner, seen = Learner(config), {}

    def noted(plan: RoundPlan, cohort: CohortPlan) -> ReleasedCohort:
        seen[plan.number] = len(learner.policy.active)
        return outcome(plan, cohort)

    learner.run_cohorts(noted)
    assert learner.fault is None
    assert len(seen) > 1
    for record in learner.rounds:
        own = config.overflow_probability(record.number, seen[record.number])
        assert {own} == {mechanism.wrap for mechanism in record.mechanisms.values()}
