"""Tests what all nodes of a tree show of a client in several batches: in the ledger, and to the client."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.dp.accounting.composition import compose
from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger
from distrust.common.dp.accounting.profile import Privacy
from distrust.common.dp.accounting.returning import Visits
from distrust.common.dp.accounting.techniques.gaussian import gaussian_delta, gaussian_epsilon, largest_ratio
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.calculator.report import report_on
from distrust.common.dp.mechanisms import MECHANISMS, check_returning, composable_of
from distrust.common.dp.mechanisms.central.tree import Counter, Tree
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.errors import BadParameter, BudgetExceeded
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.run_config import check_run_config

COHORT: dict[str, Any] = {"clients": 100, "epsilon": 0.8, "delta": 1e-6, "batches": 8}
RUN: dict[str, Any] = {
    "run": "demo",
    "arms": 3,
    "horizon": 1000,
    "mechanism": {"name": "tree", "epsilon": 0.8, "delta": 1e-6, "batches": 8},
    "policy": {"first_batch": 3},
}


def tree(**fields: Any) -> Tree:
    made = PrivacyQuery(**{**COHORT, **fields}).planned("tree", "exact")
    assert isinstance(made, Tree)
    return made


def nodes(batches: int) -> list[range]:
    """Return all complete dyadic runs of batches: what the tree releases."""
    levels = range(batches.bit_length())
    return [range(i << level, (i + 1) << level) for level in levels for i in range(batches >> level)]


def moved(batches: int, own: tuple[int, ...]) -> int:
    """Return how far, squared and in clients' steps, a client of its own batches moves all nodes."""
    return sum(sum(batch in node for batch in own) ** 2 for node in nodes(batches))


@pytest.mark.parametrize("batches", range(1, 13))
def test_the_weight_is_that_of_the_worst_batches_by_brute_force(batches: int) -> None:
    for times in range(1, batches + 1):
        worst = max(moved(batches, own) for own in combinations(range(batches), times))
        weight = Visits(Grid(1, 1, "linf"), batches, times).weight
        assert weight == worst == moved(batches, tuple(range(times)))
        printed = sum((times >> level) * 4**level + (times % 2**level) ** 2 for level in range(batches.bit_length()))
        assert weight <= printed <= batches.bit_length() * times**2  # CTX Appendix E has the last


def test_a_counter_releases_no_node_that_the_weight_leaves_out() -> None:
    """The sum of batch m is 2^m steps, so that a node's sum says which batches are in it. All the leaves are drawn."""
    counter, drawn = Counter(tree(batches=13, precision=64)), set()
    for batch in range(13):
        total = np.array([1 << batch], dtype=np.uint64)
        counter, _ = counter.add_with(total, 100, lambda: np.zeros(1, dtype=np.int64))
        drawn |= {int(node.true[0]) for node in counter.nodes} | {1 << batch}
    assert drawn <= {sum(1 << batch for batch in node) for node in nodes(13)}
    assert {255, 1 << 12} <= drawn  # the first eight batches, and the last alone


@pytest.mark.parametrize("times", [2, 3, 5, 8])
def test_what_several_batches_cost_holds_for_the_released_law_of_one_coordinate(times: int) -> None:
    """δ at the stated ε, of all nodes moved by their numbers of batches: exact on the integers, and within 2 %.

    The loss of node v is k_v g (2x + k_v g)/(2σ²), linear in its noise x. So only T = Σ k_v x_v counts, whose law is
    convolved from the nodes' own.
    """
    mechanism = tree(epsilon=1.0, delta=1e-3)
    promise = mechanism.privacy().stream.joint(times).promise  # type: ignore[union-attr]
    assert promise.epsilon is not None
    g, moves = mechanism.precision, [sum(b in node for b in range(times)) for node in nodes(8)]
    table = np.ones(1)
    one = DiscreteGaussianSum(mechanism.variance, 1).pmf()
    for k in (k for k in moves if k):
        spread = np.zeros((one.logs.size - 1) * k + 1)
        spread[::k] = one.masses
        table = np.convolve(table, spread)
    law = np.arange(table.size) - table.size // 2
    weight = sum(k * k for k in moves)
    loss = g * law / mechanism.variance + g * g * weight / (2 * mechanism.variance)  # ln P(x)/P(x + move)
    delta = float(table @ np.maximum(0.0, -np.expm1(promise.epsilon - loss)))
    assert delta <= 1e-3
    lower = float(table @ np.maximum(0.0, -np.expm1(0.98 * promise.epsilon - loss)))
    assert lower > 1e-3


@pytest.mark.parametrize(("times", "total"), [(2, 1.0), (5, 1.0), (8, 3.0)])
def test_the_epsilon_of_one_batch_for_a_total_is_the_page_s(times: int, total: float) -> None:
    """returning.md: r(ε, δ) √(D/W) is the ratio of one batch. Discrete noise takes 1 % more ε at most."""
    weight = Visits(Grid(1, 1, "linf"), 8, times).weight
    own = gaussian_epsilon(largest_ratio(total, 1e-6) * math.sqrt(4 / weight), 1e-6)
    stream = tree(epsilon=own).privacy().stream
    assert stream is not None
    assert stream.joint(times).promise.epsilon == pytest.approx(total, rel=0.01)


def test_one_batch_of_the_stream_costs_what_the_mechanism_promises() -> None:
    mechanism = tree()
    assert mechanism.privacy().stream.joint(1).promise == mechanism.privacy().promise  # type: ignore[union-attr]


def test_a_client_that_answers_by_what_it_was_told_gains_nothing_over_the_worst_batches() -> None:
    """400,000 streams of four batches of moves of one step, turned round by the sign of what was told so far.

    δ at ε, estimated, is at most that of one Gaussian release that moves by all four batches. It is above it by chance
    with probability 1e-6.
    """
    variance, epsilon, count = 30.0, 1.0, 400_000
    noise = np.random.default_rng(11).normal(0.0, math.sqrt(variance), (7, count))  # P is the world that moves
    leaf = [np.ones(count)]
    loss = (2 * noise[0] + 1) / (2 * variance)
    for batch, node in ((1, 1), (2, 2), (3, 3)):
        leaf.append(np.where(loss > 0, 1.0, -1.0))  # go on where it has told something, else turn back
        loss = loss + leaf[batch] * (2 * noise[node] + leaf[batch]) / (2 * variance)
        for extra, level in {1: ((4, 2),), 3: ((5, 2), (6, 4))}.get(batch, ()):
            move = np.sum(leaf[batch + 1 - level : batch + 1], axis=0)
            loss = loss + move * (2 * noise[extra] + move) / (2 * variance)
    gained = np.maximum(0.0, -np.expm1(epsilon - loss))
    ratio = math.sqrt(Visits(Grid(1, 1, "linf"), 4, 4).weight / variance)
    allowed = gaussian_delta(ratio, epsilon)
    assert gained.mean() <= allowed + 4.8 * gained.std() / math.sqrt(count)
    assert gained.mean() > 0.2 * allowed  # it does tell something


@pytest.mark.parametrize(
    ("statistic", "precision", "most"),
    [(None, None, 1.001), (ContextualSum(features=5), None, 1.045), (ContextualSum(features=5), 2000, 1.01)],
)
def test_several_batches_cost_what_continuous_noise_tells_and_little_for_the_rounding(
    statistic: ContextualSum | None, precision: int | None, most: float
) -> None:
    """In a ball the mean of what rounding adds counts, and somewhat more. A finer grid makes it less."""
    query = PrivacyQuery(**{**COHORT, "batches": 100}, precision=precision)
    mechanism = query.planned("tree", "exact", statistic)
    stream = mechanism.privacy().stream
    assert stream is not None
    spent = [stream.joint(times).promise.epsilon or 0.0 for times in (1, 2, 4, 8, 100)]
    assert spent == sorted(spent)
    for times, epsilon in zip((2, 4, 8), spent[1:], strict=False):
        visits = Visits(mechanism.grid, 100, times)
        assert isinstance(mechanism, Tree)
        least = gaussian_epsilon(math.sqrt(visits.weight * mechanism.grid.unrounded / mechanism.variance), 1e-6)
        assert least <= epsilon <= most * least
    assert stream.joint(101).promise.kind == "none"


def test_a_ledger_charges_all_batches_of_a_stream_as_one_release() -> None:
    """Three batches cost ε = 2.21. Composed, as three streams apart would be, they would be charged 1.56."""
    promise, stream = tree().privacy().promise, tree().privacy().stream
    assert stream is not None
    assert compose(((promise, 3),), 1e-6).epsilon == pytest.approx(1.56, abs=0.01)
    entry = Entry("rounds to 8", 800, 8, promise, (stream,))
    ledger = PrivacyLedger(3, None, (entry,))
    assert ledger.of(1).epsilon == promise.epsilon
    assert [ledger.of(times).epsilon for times in (2, 3)] == [stream.joint(times).promise.epsilon for times in (2, 3)]
    assert ledger.total.epsilon == pytest.approx(2.21, abs=0.01)
    assert (ledger.total.delta, ledger.total.claimed) == (1e-6, None)
    assert "every client takes part in at most 3 cohorts of the run" in ledger.total.assumptions
    ledger.check(BudgetSpec(epsilon=2.25, delta=1e-6))
    with pytest.raises(BudgetExceeded, match="3 contributions"):
        ledger.check(BudgetSpec(epsilon=2.2, delta=1e-6))
    with pytest.raises(BudgetExceeded):
        ledger.check(BudgetSpec(epsilon=50.0))  # δ = 0: Gaussian noise is never pure
    at_once = PrivacyLedger(3, BudgetSpec(epsilon=2.25, delta=1e-4), (entry,))
    assert at_once.total == ledger.total.model_copy(update={"epsilon": stream.joint(3).at(1e-4).epsilon, "delta": 1e-4})


def test_a_ledger_takes_the_weakest_stream_and_knows_no_sum_of_a_stream_and_other_releases() -> None:
    streams = [tree(epsilon=epsilon).privacy() for epsilon in (0.5, 0.8)]
    entries = tuple(Entry("round", 100, 1, one.promise, (one.stream,)) for one in streams if one.stream is not None)
    two = [PrivacyLedger(2, None, kept).total.epsilon or 0.0 for kept in (entries, (*entries[1:], *entries[1:]))]
    assert two[0] == two[1] > 0.8
    other = PrivacyQuery(clients=100, epsilon=0.1).planned("distributed-polya", "exact").privacy().promise
    assert PrivacyLedger(2, None, (*entries, Entry("round", 100, 1, other))).total.kind == "none"


def test_a_run_whose_clients_are_in_at_most_as_many_batches_as_the_stream_has_is_accepted() -> None:
    for times in (1, 3, 8):
        check_run_config(RunConfig.model_validate({**RUN, "returning": {"contributions": times}}))
    refusal = r"contributions = 9: must be at most mechanism\.batches = 8"
    with pytest.raises(BadParameter, match=refusal):
        check_run_config(RunConfig.model_validate({**RUN, "returning": {"contributions": 9}}))
    with pytest.raises(BadParameter, match=refusal):
        report_on("tree", PrivacyQuery(**COHORT, contributions=9))
    for name in set(MECHANISMS) - {"tree", "prefix-factorization"}:
        check_returning(name, 1000, None)


def test_the_calculator_gives_what_the_stream_costs_at_any_delta() -> None:
    stream = tree().privacy().stream
    assert stream is not None
    side = report_on("tree", PrivacyQuery(**COHORT, contributions=3)).sides["exact"]
    assert not isinstance(side, str)
    assert side.promise.guarantee.epsilon == stream.joint(3).promise.epsilon
    assert side.promise.profile == stream.joint(3).profile(1e-6)
    other = report_on("tree", PrivacyQuery(**COHORT, contributions=3, target_delta=1e-9)).sides["exact"]
    assert not isinstance(other, str)
    assert other.promise.guarantee.epsilon == stream.joint(3).at(1e-9).epsilon


def test_a_stream_that_does_not_say_what_several_batches_cost_does_not_compose() -> None:
    mechanism = tree()
    whole = mechanism.privacy()
    silent = Privacy(compute_promise=lambda: whole.promise, compute_profile=whole.profile)
    assert silent.composable.kind == "renyi" or silent.composable.rdp
    assert composable_of(mechanism, silent).kind == composable_of(mechanism, whole).kind == "none"
