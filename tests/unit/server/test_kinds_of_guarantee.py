"""Tests of the kind of guarantee that a run has, which follows from the sizes of its rounds."""

import pytest

from distrust.common.dp.accounting.ledger import parallel
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, ReleasedCohort, RoundPlan

CORNERS = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]]
MECHANISMS = ["distributed-skellam", "distributed-discrete-gaussian", "central-gaussian"]


def played(mechanism: str, means: list[float]) -> Learner:
    """Return a learner of DP-DPE whose clients all answered with these means."""
    config = RunConfig.model_validate(
        {
            "run": "kinds",
            "arms": 3,
            "horizon": 4000,
            "policy": {"name": "dp-dpe", "actions": {"kind": "given", "vectors": CORNERS}, "deviation": 0.0},
            "mechanism": {"name": mechanism, "epsilon": 8.0, "delta": 1e-3},
        }
    )

    def outcome(plan: RoundPlan, cohort: CohortPlan) -> ReleasedCohort:
        assert plan.decision.kind == "play-design"
        sums = [cohort.clients * means[action] for action in plan.decision.actions]
        return ReleasedCohort(cohort=cohort.cohort, sum=sums, survivors=cohort.clients)

    learner = Learner(config)
    learner.run_cohorts(outcome)
    return learner


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("means", "kind"),
    [
        pytest.param([0.0, 0.0, 0.0], "renyi", id="all-actions-stay"),
        pytest.param([1.4, -1.4, 0.0], "approximate", id="one-action-is-left"),
    ],
)
def test_rounds_of_vectors_and_of_one_coordinate_together_promise_an_epsilon_at_delta(
    mechanism: str, means: list[float], kind: str
) -> None:
    learner = played(mechanism, means)
    sizes = {record.ask.statistic.dimension for record in learner.rounds}
    assert (1 in sizes) == (kind == "approximate")
    total = learner.snapshot().guarantee
    rounds = [record.cost.guarantee for record in learner.rounds]
    assert total.kind == kind
    assert (total.epsilon, total.delta) == (max(one.epsilon or 0.0 for one in rounds), 1e-3)
    assert total.kind == parallel(rounds).kind
