"""A client that is in several batches of one stream has spent more than single promises add up to: refused."""

import math
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from distrust.common.calculator.query import PrivacyQuery
from distrust.common.calculator.report import report_on
from distrust.common.errors import BadParameter, BudgetExceeded
from distrust.common.mechanisms import MECHANISMS, check_returning
from distrust.common.mechanisms.central.tree import Tree
from distrust.common.privacy.composition import compose
from distrust.common.privacy.gaussian import gaussian_epsilon
from distrust.common.privacy.guarantee import BudgetSpec
from distrust.common.privacy.ledger import Entry, PrivacyLedger
from distrust.common.run.config import RunConfig
from distrust.server.learner.run_config import check_run_config

COHORT: dict[str, Any] = {"clients": 100, "epsilon": 0.8, "delta": 1e-6, "batches": 8}
REFUSAL = "contributions = 3: must be 1: tree's promise is for one batch a client"
RUN: dict[str, Any] = {
    "run": "demo",
    "arms": 3,
    "horizon": 1000,
    "mechanism": {"name": "tree", "epsilon": 0.8, "delta": 1e-6, "batches": 8},
    "policy": {"first_batch": 3},
}


def tree() -> Tree:
    made = PrivacyQuery(**COHORT).planned("tree", "exact")
    assert isinstance(made, Tree)
    return made


def moved(batches: tuple[int, ...]) -> int:
    """How far, squared and in clients' steps, a client of these batches moves all the dyadic nodes of eight."""
    return sum(shared**2 for level in range(4) for shared in Counter(batch >> level for batch in batches).values())


def test_batches_that_share_nodes_cost_more_than_streams_apart() -> None:
    """Three batches of one stream, against three streams at the same δ, for any three that a client may be in."""
    mechanism = tree()
    worst = max(combinations(range(8), 3), key=moved)
    ratio = math.sqrt(moved(worst) / mechanism.variance) * mechanism.precision
    apart = compose(((mechanism.privacy().promise, 3),), 1e-6).epsilon
    assert worst == (0, 1, 2)
    assert apart == pytest.approx(1.56, abs=0.01)
    assert gaussian_epsilon(ratio, 1e-6) == pytest.approx(2.21, abs=0.01)


def test_a_ledger_of_returning_clients_has_no_guarantee() -> None:
    ledger = PrivacyLedger(3, None, (Entry("round 1", 100, 3, tree().privacy().composable),))
    assert ledger.of(2).kind == ledger.total.kind == "none"
    with pytest.raises(BudgetExceeded, match="no privacy"):
        ledger.check(BudgetSpec(epsilon=50.0, delta=1e-3))
    assert tree().privacy().promise.kind == "approximate"


def test_a_run_whose_clients_return_to_a_tree_is_refused() -> None:
    check_run_config(RunConfig.model_validate(RUN))
    with pytest.raises(BadParameter, match=REFUSAL):
        check_run_config(RunConfig.model_validate({**RUN, "returning": {"contributions": 3}}))


def test_the_calculator_refuses_it_too() -> None:
    with pytest.raises(BadParameter, match=REFUSAL):
        report_on("tree", PrivacyQuery(**COHORT, contributions=3))


def test_it_is_the_only_one_that_is() -> None:
    refused = set()
    for name in MECHANISMS:
        try:
            check_returning(name, 2)
        except BadParameter:
            refused.add(name)
    assert refused == {"tree"}
