"""Tests that a run with a declared budget, or with returning clients, opens nothing that overdraws it."""

from functools import lru_cache
from typing import Any

import pytest

from distrust.common.dp.accounting.guarantee import BudgetSpec, Guarantee
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger, parallel
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BudgetExceeded, Refused
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, ReleasedCohort, RoundPlan, RoundRecord, run_ledger
from tests.support.limits import lenient
from tests.support.picked import picked

CORNERS = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]]
GAUSSIAN = ["distributed-skellam", "distributed-discrete-gaussian", "central-gaussian"]


def config(**changes: Any) -> RunConfig:
    whole: dict[str, Any] = {
        "run": "demo",
        "arms": 3,
        "horizon": 1000,
        "mechanism": {"name": "distributed-polya", "epsilon": 0.5},
        "policy": {"first_batch": 3},
    }
    return RunConfig.model_validate(whole | changes)


def test_without_the_new_tables_the_digest_is_what_it_always_was() -> None:
    """Bound into every seal and key derivation: a run that was begun before must find its cohorts again."""
    assert b"budget" not in config().canonical()
    assert b"returning" not in config().canonical()
    assert b'"unsafe":null' in config().canonical()
    assert b'"budget":{"delta":0.0,"epsilon":1.0}' in config(budget={"epsilon": 1.0}).canonical()
    assert RunConfig.model_validate_json(config(budget={"epsilon": 1.0}).canonical()) == config(budget={"epsilon": 1.0})


@pytest.mark.parametrize(
    ("budget", "contributions", "fits"),
    [
        pytest.param({"epsilon": 0.5}, 1, True, id="one-contribution"),
        pytest.param({"epsilon": 0.49}, 1, False, id="less-than-one"),
        pytest.param({"epsilon": 2.0}, 4, True, id="four"),
        pytest.param({"epsilon": 2.0}, 5, False, id="five"),
        pytest.param({"epsilon": 9.9, "delta": 1e-5}, 20, True, id="twenty-with-a-delta"),
    ],
)
def test_a_plan_is_made_only_if_every_client_can_afford_it(
    budget: dict[str, float], contributions: int, *, fits: bool
) -> None:
    config_ = config(budget=budget, returning={"contributions": contributions})
    if fits:
        assert Learner(config_).plan() is not None
    else:
        with pytest.raises(BudgetExceeded, match="budget is"):
            Learner(config_)


def test_noise_from_a_seed_fits_no_budget() -> None:
    why = r"^unsafe\.noise_seed = 17: noise from a seed leaves no privacy, and the budget is ε = 50: leave out one"
    with pytest.raises(BudgetExceeded, match=why):
        Learner(config(budget={"epsilon": 50.0}, unsafe={"noise_seed": 17}))


def test_a_mechanism_without_noise_fits_no_budget_and_does_not_read_as_free() -> None:
    why = "^one contribution would leave no privacy, and the budget is ε = 50 at δ = 0$"
    with pytest.raises(BudgetExceeded, match=why):
        Learner(config(budget={"epsilon": 50.0}, mechanism={"name": "identity"}))


def test_a_later_round_that_overdraws_ends_the_run_and_asks_no_client() -> None:
    """Rényi guarantees differ a little from round to round: the first fits to the last digit, a weaker one does not."""
    fields = {"name": "distributed-skellam", "epsilon": 0.5, "calibration": "paper"}
    free = Learner(config(mechanism=fields))
    first = free.rounds[0].cost.guarantee.epsilon
    while (plan := free.plan()) is not None:
        for cohort in plan.cohorts:
            free.absorb(ReleasedCohort(cohort=cohort.cohort, sum=[4.0], survivors=cohort.clients))
    later = max(record.cost.guarantee.epsilon or 0 for record in free.rounds)
    assert first is not None
    assert later > first * (1 + 1e-6)
    bound = Learner(config(mechanism=fields, budget={"epsilon": first, "delta": 1e-6}))
    pulls = 0
    while (plan := bound.plan()) is not None:
        pulls += sum(cohort.clients for cohort in plan.cohorts)
        for cohort in plan.cohorts:
            bound.absorb(ReleasedCohort(cohort=cohort.cohort, sum=[4.0], survivors=cohort.clients))
    assert bound.fault is not None
    assert "budget" in bound.fault
    assert sum(bound.pulls) == pulls


def test_the_ledger_counts_what_returning_clients_can_have_spent() -> None:
    learner = Learner(config(returning={"contributions": 3}))
    kept = run_ledger(learner.config, learner.rounds)
    assert kept.total.epsilon == pytest.approx(1.5)
    assert {times: one.epsilon for times, one in kept.classes.items()} == pytest.approx({1: 0.5, 2: 1.0, 3: 1.5})
    assert learner.snapshot().guarantee.epsilon == pytest.approx(1.5)


@pytest.mark.parametrize("unsafe", [None, {"noise_seed": 1}])
def test_rounds_that_repeat_a_mechanism_are_one_entry_of_the_ledger(unsafe: dict[str, int] | None) -> None:
    """A run of one client a round has as many rounds as clients, and its ledger is read at every look."""
    policy, mechanism = {"name": "linucb", "features": 5}, {"name": "local-gaussian", "epsilon": 1.0, "delta": 0.1}
    rates = {"dropout": 0.0, "corrupt": 0.0, "minimum": 1}
    fields = {"run": "many", "arms": 5, "horizon": 20, "policy": policy, "mechanism": mechanism, "intermediary": rates}
    learner = Learner(RunConfig.model_validate({**fields, "unsafe": unsafe}))
    lone = run_ledger(learner.config, learner.rounds)
    while (plan := learner.plan()) is not None:
        for cohort in plan.cohorts:
            learner.absorb(ReleasedCohort(cohort=cohort.cohort, sum=[0.0] * 20, survivors=1))
    ledger = run_ledger(learner.config, learner.rounds)
    assert len(learner.rounds) == 20
    assert [(entry.clients, entry.cohorts) for entry in ledger.entries] == [(20, 20)]
    assert ledger.total == lone.total


DELTA = 1e-3
"""The δ of the mechanisms of the table that have one."""

POLICIES: dict[str, dict[str, Any]] = {
    "successive-elimination": {},
    "linucb": {"features": 2, "batch": 200},
}
"""An elimination, whose cohorts grow from round to round, and vectors in cohorts of one size."""


@lru_cache(maxsize=64)
def played(name: str, policy: str) -> tuple[RoundRecord, ...]:
    """Return the rounds of a run without a budget."""
    mechanism: dict[str, Any] = {"name": name, "epsilon": 0.5, "batches": 8 if MECHANISMS[name].takes_batches else None}
    mechanism["delta"] = DELTA if MECHANISMS[name].takes_delta else None
    learner = Learner(config(mechanism=mechanism, policy={"name": policy, **POLICIES[policy]}))
    learner.run_cohorts(
        lambda plan, cohort: ReleasedCohort(
            cohort=cohort.cohort, sum=[0.0] * plan.statistic.dimension, survivors=cohort.clients
        )
    )
    return tuple(learner.rounds)


def ledger_of(name: str, policy: str, contributions: int, epsilon: float, delta: float) -> PrivacyLedger:
    """Return the ledger of the rounds, had their run such a budget and such clients."""
    records, budget = played(name, policy), {"epsilon": epsilon, "delta": delta}
    return run_ledger(config(budget=budget, returning={"contributions": contributions}), records)


def is_admitted(ledger: PrivacyLedger) -> bool:
    assert ledger.budget is not None
    try:
        ledger.check(ledger.budget)
    except BudgetExceeded:
        return False
    return True


def is_within(one: Guarantee, epsilon: float, delta: float) -> bool:
    return one.kind != "none" and (one.epsilon or 0.0) <= epsilon * (1 + 1e-9) and one.delta <= delta


RUNS = [
    *((name, "successive-elimination") for name in MECHANISMS if name not in {"identity", "relaxed-secagg-shuffle"}),
    *((name, "linucb") for name in ("shuffled-binomial", "central-gaussian", "tree")),
]
FEW = 9
"""Runs that the next two tests look at. CI looks at all."""


def least_budget(name: str, policy: str, contributions: int, delta: float) -> float | None:
    """Return the least ε at δ that so many contributions fit into; None where nothing is proven at δ."""
    tiny = 1e-3
    try:
        ledger_of(name, policy, contributions, tiny, delta).check(BudgetSpec(epsilon=tiny, delta=delta))
    except BudgetExceeded as refused:
        return refused.epsilon
    return tiny


@pytest.mark.parametrize("delta", [0.0, DELTA / 2, 100 * DELTA])
@pytest.mark.parametrize(("name", "policy"), picked(RUNS, FEW, "ledgers"))
@pytest.mark.few(9)
def test_every_class_of_an_admitted_ledger_is_within_its_budget(name: str, policy: str, delta: float) -> None:
    """Each budget is the least that R contributions fit into, and what it admits for R it admits for fewer."""
    for contributions in (4, 2, 1):
        least = least_budget(name, policy, contributions, delta)
        if least is None:
            several_bits = (name, policy) == ("shuffled-binomial", "successive-elimination")
            assert delta == 0 or (several_bits and contributions > 1)  # rounds with other bits have no common law
            continue
        for fewer in (one for one in (1, 2, 4) if one <= contributions):
            ledger = ledger_of(name, policy, fewer, least, delta)
            assert is_admitted(ledger)
            assert all(is_within(one, least, delta) for one in (*ledger.classes.values(), ledger.total))


@pytest.mark.parametrize("delta", [0.0, DELTA / 2, 100 * DELTA])
@pytest.mark.parametrize(("name", "policy"), picked(RUNS, FEW, "budgets"))
@pytest.mark.few(9)
def test_the_clients_admit_what_the_learner_admits(name: str, policy: str, delta: float) -> None:
    """A run file is played over services where it is played in process: the clients' limits are its budget."""
    mechanisms = [one for record in played(name, policy) for one in record.mechanisms.values()]
    for contributions in (1, 2):
        least = least_budget(name, policy, contributions, delta)
        for epsilon in (9.0,) if least is None else (least, 0.999 * least):
            limits = lenient(max_epsilon=epsilon, max_delta=delta, contributions=contributions)
            budget = BudgetSpec(epsilon=epsilon, delta=delta)
            agreed: list[Entry] = []
            fits = is_admitted(ledger_of(name, policy, contributions, epsilon, delta))
            try:
                for mechanism in mechanisms:
                    agreed.append(limits.cost(mechanism, agreed, budget))
            except (BudgetExceeded, Refused):
                assert not fits
            else:
                assert fits


def played_design(mechanism: str, means: list[float]) -> Learner:
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


@pytest.mark.parametrize("mechanism", GAUSSIAN)
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
    learner = played_design(mechanism, means)
    sizes = {record.ask.statistic.dimension for record in learner.rounds}
    assert (1 in sizes) == (kind == "approximate")
    total = learner.snapshot().guarantee
    rounds = [record.cost.guarantee for record in learner.rounds]
    assert total.kind == kind
    assert (total.epsilon, total.delta) == (max(one.epsilon or 0.0 for one in rounds), 1e-3)
    assert total.kind == parallel(rounds).kind
