"""Tests the ε of several releases of labelled bits against the worst client that adapts to earlier releases."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from distrust.common.bandit.statistics import Reward
from distrust.common.errors import BudgetExceeded
from distrust.common.mechanisms import Mechanism, plan, promise_of
from distrust.common.mechanisms.families.base import MechanismSpec
from distrust.common.mechanisms.shuffled.binomial import binomial_epsilon
from distrust.common.privacy.composition import compose
from distrust.common.privacy.guarantee import BudgetSpec
from distrust.common.privacy.ledger import Entry, PrivacyLedger
from distrust.common.privacy.sensitivity import Grid
from distrust.common.wire import Norm

Laws = list[tuple[NDArray[np.float64], NDArray[np.float64]]]


def pairs(trials: int, chance: float, grid: Grid) -> Laws:
    """Return P and Q on the same outcomes, for every whole move inside the grid's ball."""
    g, places = grid.precision, np.arange(-grid.precision, trials + grid.precision + 1)
    own = binom.pmf(places, trials, chance)
    laws: Laws = []
    for move in itertools.product(range(-g, g + 1), repeat=grid.dimension):
        length = {"l1": sum(map(abs, move)), "l2": math.hypot(*move), "linf": max(map(abs, move))}[grid.norm]
        if 0 < length <= g:
            p, q = np.ones(1), np.ones(1)
            for step in move:
                p = np.outer(p, own).ravel()
                q = np.outer(q, binom.pmf(places - step, trials, chance)).ravel()
            laws.append((p, q))
    return laws


def adaptive_delta(laws: Laws, epsilon: float, times: int) -> float:
    """Return the largest Σ (P - e^ε Q)₊ over clients that choose each move by the earlier releases."""
    return float(_worst(laws, np.array([math.exp(epsilon)]), times)[0])


def _worst(laws: Laws, ratios: NDArray[np.float64], times: int) -> NDArray[np.float64]:
    """Return max Σ (P - r Q)₊ for each r. After an outcome x it is P(x) times that of r Q(x)/P(x)."""
    best = np.zeros(ratios.size)
    for p, q in laws:
        if times == 1:
            # The outcomes with P > r Q are the first ones in the order of P/Q: their sums are looked up.
            likelier = np.divide(p, q, out=np.full(p.size, np.inf), where=q > 0)
            order = np.argsort(-likelier)
            counts = np.searchsorted(-likelier[order], -ratios)
            of_p, of_q = (np.concatenate(([0.0], np.cumsum(law[order]))) for law in (p, q))
            best = np.maximum(best, of_p[counts] - ratios * of_q[counts])
            continue
        met = p > 0
        after = ratios[:, np.newaxis] * (q[met] / p[met])
        rest = _worst(laws, after.ravel(), times - 1).reshape(after.shape)
        best = np.maximum(best, rest @ p[met])
    return best


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize(("chance", "slack"), [(0.5, 1.005), (0.3, 1.05)])
def test_several_numbers_of_bits_cost_no_less_than_the_worst_adaptive_client_and_hardly_more(
    times: int, chance: float, slack: float
) -> None:
    grid, delta = Grid(2, 1, "linf"), 0.01
    result = binomial_epsilon(40, chance, grid, delta, times)
    laws = pairs(40, chance, grid)
    assert adaptive_delta(laws, result, times) <= delta
    assert adaptive_delta(laws, result / slack, times) > delta


@pytest.mark.parametrize("chance", [0.5, 0.3])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_two_vectors_of_bits_cost_no_less_than_the_worst_adaptive_client(norm: Norm, chance: float) -> None:
    grid, delta = Grid(1 if norm == "linf" else 2, 2, norm), 0.02
    result = binomial_epsilon(24, chance, grid, delta, 2)
    assert math.isfinite(result)
    laws = pairs(24, chance, grid)
    assert adaptive_delta(laws, result, 2) <= delta
    assert adaptive_delta(laws, result / 2, 2) > delta


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_several_vectors_of_bits_cost_less_than_their_sum_and_more_than_fewer(norm: Norm, times: int) -> None:
    grid = Grid(30, 5, norm)
    once, fewer, result = (binomial_epsilon(20_000, 0.5, grid, 0.01, count) for count in (1, times - 1, times))
    assert fewer < result < 0.85 * times * once


def bits(clients: int) -> Mechanism:
    spec = MechanismSpec(name="shuffled-binomial", epsilon=0.5, delta=1e-3)
    sizes = {"clients": clients, "min_survivors": clients, "min_honest": clients}
    return plan(spec, **sizes, overflow_probability=1e-9, statistic=Reward())


def cost(mechanism: Mechanism, cohorts: int = 4) -> Entry:
    law = mechanism.privacy().repeated
    assert law is not None
    return Entry("round", 10, cohorts, promise_of(mechanism, composable=True), laws=(law,))


def test_the_ledger_charges_a_client_that_returns_by_the_law_of_the_bits() -> None:
    entry = cost(bits(1000))
    spent = PrivacyLedger(3, None, (entry, entry)).total
    generic = compose(((entry.guarantee, 3),))
    law = entry.laws[0]
    assert (spent.kind, spent.delta) == ("approximate", generic.delta)
    assert spent.epsilon == law.epsilon(3, spent.delta)
    assert generic.epsilon is not None
    assert 0.5 < spent.epsilon < 0.8 * generic.epsilon


def test_rounds_with_different_bits_are_charged_by_their_guarantees() -> None:
    first, second = cost(bits(1000)), cost(bits(3000))
    assert first.laws != second.laws
    for others in (second, Entry("round", 10, 4, second.guarantee)):
        spent = PrivacyLedger(3, None, (first, others)).total
        assert spent.epsilon == pytest.approx(compose(((first.guarantee, 3),)).epsilon, rel=1e-6)


def test_a_budget_admits_contributions_that_the_law_of_the_bits_pays_for_and_no_more() -> None:
    entry = cost(bits(1000))
    epsilon = entry.laws[0].epsilon(3, 1e-3)
    ledger = PrivacyLedger(3, BudgetSpec(epsilon=epsilon, delta=1e-3)).spend(entry)
    assert (ledger.total.epsilon, ledger.total.delta) == (epsilon, 1e-3)
    with pytest.raises(BudgetExceeded):
        PrivacyLedger(3, BudgetSpec(epsilon=0.999 * epsilon, delta=1e-3)).spend(entry)
    with pytest.raises(BudgetExceeded):
        PrivacyLedger(4, BudgetSpec(epsilon=epsilon, delta=1e-3)).spend(entry)
