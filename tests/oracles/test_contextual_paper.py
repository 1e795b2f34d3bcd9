"""Tests `paper` noise of contextual runs: as CTX prints it, where its theorems hold, and the promise of that noise."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from distrust.common.bandit.contextual_sum import ContextualSum, Observation
from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger
from distrust.common.dp.accounting.returning import Visits
from distrust.common.dp.accounting.techniques.amplification.vectors import Crowd
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, largest_ratio
from distrust.common.dp.accounting.techniques.gaussian_vectors import lattice_variance
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms import Mechanism, promise_of
from distrust.common.dp.mechanisms.central.tree import Tree
from distrust.common.dp.mechanisms.families.gaussian import GaussianLike, textbook
from distrust.common.dp.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.dp.mechanisms.shuffled.gaussian import ShuffledGaussian, shuffled_gaussian_epsilon
from distrust.common.errors import BadParameter
from tests.support.printed import DELTA, SUM, entry, planned_mechanism

DOCS = Path(__file__).parents[2] / "docs/concepts"
WIDEST = SUM.sensitivity  # √4.5
ROUNDS = 20_000  # of CTX's experiments
USED = (0.2, 1.0, 10.0)


def local_sigma(epsilon: float, delta: float = DELTA) -> float:
    return 4 * math.sqrt(2 * math.log(2.5 / delta)) / epsilon


def shuffled_sigma(epsilon: float, batch: int) -> float:
    return 4 * math.sqrt(2 * math.log(2.5 * batch / DELTA) * math.log(2 / DELTA)) / (epsilon * math.sqrt(batch))


def test_two_releases_without_weights_move_by_no_more_than_one_with_them_and_by_as_much_in_one_basis() -> None:
    """10,000 pairs of clients: the move of (φy, φφᵀ's upper triangle), with and without the weights √2."""
    rng = np.random.default_rng(3)
    contexts = rng.standard_normal((2, 10_000, 5))
    contexts /= np.linalg.norm(contexts, axis=-1, keepdims=True)
    rewards = rng.integers(0, 2, (2, 10_000)).astype(float)
    none = np.zeros(rewards.shape, dtype=np.int64)
    whole = np.diff(SUM.vectors(Observation(none, contexts, rewards, rewards)), axis=0)[0]
    rows, columns = np.triu_indices(5)
    light = whole / np.concatenate([np.ones(5), np.where(rows == columns, 1.0, math.sqrt(2))])
    with_weights, without = (np.linalg.norm(move, axis=-1) for move in (whole, light))
    assert (without <= with_weights + 1e-12).all()
    assert with_weights.max() <= WIDEST + 1e-12
    # Unit vectors at ⟨φ, φ'⟩ = -1/2 in the basis in which φφᵀ - φ'φ'ᵀ is diagonal: the weights change nothing.
    ends = np.array([[0.5, math.sqrt(0.75), 0, 0, 0], [0.5, -math.sqrt(0.75), 0, 0, 0]])
    matrix = np.outer(ends[0], ends[0]) - np.outer(ends[1], ends[1])
    turned = ends @ np.linalg.eigh(matrix)[1]
    linear = turned[0] - turned[1]
    upper = (np.outer(turned[0], turned[0]) - np.outer(turned[1], turned[1]))[rows, columns]
    assert math.hypot(float(np.linalg.norm(linear)), float(np.linalg.norm(upper))) == pytest.approx(WIDEST, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 1.0])
def test_local_noise_is_proposition_f1_s_and_promises_at_least_its_epsilon(epsilon: float) -> None:
    """Every entry has the printed σ, and at most 1 % more for the rounding."""
    mechanism = planned_mechanism("local-gaussian", epsilon, 20, "paper")
    assert local_sigma(epsilon) <= entry(mechanism) <= 1.01 * local_sigma(epsilon)
    promise = mechanism.privacy().promise
    assert promise.epsilon is not None
    assert promise.epsilon <= epsilon
    assert promise.epsilon == pytest.approx(gaussian_epsilon(WIDEST / local_sigma(epsilon), DELTA), abs=1e-6)


def test_larger_rewards_are_charged_for_in_both_parts() -> None:
    wide = ContextualSum(features=5, rewards=[-1.0, 3.0])
    mechanism = planned_mechanism("local-gaussian", 0.5, 20, "paper", wide)
    assert entry(mechanism) == pytest.approx(3 * local_sigma(0.5), rel=0.01)
    assert (mechanism.privacy().promise.epsilon or 0.0) <= 0.5
    small = ContextualSum(features=5, rewards=[0.0, 0.5])
    assert entry(planned_mechanism("local-gaussian", 0.5, 20, "paper", small)) == pytest.approx(
        local_sigma(0.5), rel=0.01
    )


def test_shuffled_noise_is_theorem_b1_s_inside_its_range() -> None:
    """B = 1000, ε = 0.01, the errata's setting. The worst rounding adds 14 %, which the promise counts."""
    mechanism = planned_mechanism("shuffled-gaussian", 0.01, 1000, "paper")
    assert shuffled_sigma(0.01, 1000) <= entry(mechanism) <= 1.15 * shuffled_sigma(0.01, 1000)
    assert mechanism.privacy().promise.epsilon == 0.0


@pytest.mark.parametrize("clients", [1_000, 100_000])
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-6])
@pytest.mark.few(3)
def test_inside_its_range_theorem_b1_s_noise_has_less_than_half_of_its_epsilon(delta: float, clients: int) -> None:
    most = math.sqrt(math.log(2 / delta) / clients)  # ε₀ = 1
    for share in (0.5, 0.999):
        mechanism = planned_mechanism("shuffled-gaussian", share * most, clients, "paper", delta=delta)
        promise = mechanism.privacy().promise
        assert promise.epsilon is not None
        assert promise.epsilon < 0.5 * share * most


TOO_FEW = r"B = 20 honest clients must be at least 16 e\^ε₀ ln\(4/δ\) = 98\.9\d* for the constants of CTX Theorem B\.1"
TOO_LARGE = r"must be at most √\(ln\(2/δ\)/B\) = 0\.0886\d* at B = 381 honest clients .*; calibration exact has no such"


@pytest.mark.parametrize(
    ("name", "epsilon", "clients", "refusal"),
    [
        ("local-gaussian", 1.01, 20, r"mechanism\.epsilon = 1.01: must lie in \(0, 1\]"),
        ("local-gaussian", 10.0, 20, r"mechanism\.epsilon = 10.0: must lie in \(0, 1\]"),
        ("shuffled-gaussian", 0.2, 20, rf"mechanism\.calibration = 'paper': {TOO_FEW}"),
        ("shuffled-gaussian", 0.2, 381, rf"mechanism\.epsilon = 0\.2: {TOO_LARGE}"),
        ("shuffled-gaussian", 10.0, 381, rf"mechanism\.epsilon = 10\.0: {TOO_LARGE}"),
        ("shuffled-binomial", 0.2, 20, "bits a client and coordinate, at most 16777216"),
        ("tree", 1.01, 20, r"must lie in \(0, 1\] for the constants of Shariff & Sheffet"),
        ("shuffled-binomial", 1.0, 20, "would take 48936123 bits a client and coordinate, at most 16777216"),
        ("shuffled-binomial", 15.0, 20, r"must be below 15 for vectors \(.*CTX Theorem C\.1\)"),
    ],
)
def test_outside_its_theorem_paper_is_refused_with_the_bound(
    name: str, epsilon: float, clients: int, refusal: str
) -> None:
    with pytest.raises(BadParameter, match=refusal):
        planned_mechanism(name, epsilon, clients, "paper", **({"batches": 10} if name == "tree" else {}))


def test_a_vector_that_no_paper_releases_in_parts_has_the_classical_noise() -> None:
    mechanism = planned_mechanism("local-gaussian", 0.5, 20, "paper", BoundedVector(dimension=5, norm="l2"))
    assert isinstance(mechanism, GaussianLike)
    assert mechanism.variance == mechanism.grid.squared_l2 * textbook(0.5, DELTA)
    central = planned_mechanism("central-gaussian", 0.5, 20, "paper")
    assert isinstance(central, GaussianLike)
    assert central.variance == pytest.approx(central.grid.squared_l2 * textbook(0.5, DELTA), rel=0.02)


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_noise_that_needs_no_epsilon_has_epsilon_zero(share: float) -> None:
    """At σ = 10 Δ₂ and δ = 0.1 one message is (0, δ)-private. At 3 Δ₂ it is not, but 381 shuffled messages are."""
    grid = Grid(1500, 20, "l2", rounded=False)
    variance = (1500.0 * (10 if share else 3)) ** 2
    epsilon = shuffled_gaussian_epsilon(variance, Crowd(grid, 2000, 381), DELTA, 0.0)
    assert epsilon == 0.0 if share else epsilon < 1e-8


def amplified(sigma: float, clients: int) -> float:
    """Return ε at δ of this many shuffled vectors with this noise, by the best bound here, without rounding."""
    grid = Grid(1500, SUM.dimension, "l2", rounded=False)
    return shuffled_gaussian_epsilon((1500 * sigma / WIDEST) ** 2, Crowd(grid, 2000, clients), DELTA, 0.0)


def shuffled(epsilon: float, clients: int) -> ShuffledGaussian:
    mechanism = planned_mechanism("shuffled-gaussian", epsilon, clients, "exact")
    assert isinstance(mechanism, ShuffledGaussian)
    return mechanism


@pytest.mark.parametrize(("epsilon", "most"), [(0.2, 0.88), (1.0, 0.98)])
def test_two_messages_need_less_noise_than_one(epsilon: float, most: float) -> None:
    """Amplification helps from B = 2 on at ε = 0.2 and 1."""
    least = entry(planned_mechanism("local-gaussian", epsilon, 1, "exact"))
    alone, pair, crowd = (entry(shuffled(epsilon, batch)) for batch in (1, 2, 20))
    assert alone <= 1.001 * least
    assert crowd < pair < most * alone


def test_at_a_large_epsilon_no_batch_of_the_horizon_amplifies() -> None:
    mechanism = shuffled(10.0, ROUNDS)
    assert mechanism.variance == pytest.approx(lattice_variance(mechanism.grid, 10.0, DELTA), rel=1e-3)


def figure(value: float) -> str:
    return f"{0.0 if value < 1e-6 else value:.4g}"


def gaussian_rows() -> list[list[str]]:
    """Return the rows of the page's first table."""
    rows = []

    def row(what: str, epsilon: float, sigma: float, spent: float, *, least: float) -> None:
        rows.append([what, f"{epsilon:g}", *map(figure, (sigma, spent, least, sigma / least))])

    def of_ratio(sigma: float, moved: float) -> float:
        return gaussian_epsilon(moved * WIDEST / sigma, DELTA)

    for epsilon in USED:
        least, sigma = entry(planned_mechanism("local-gaussian", epsilon, 1, "exact")), local_sigma(epsilon)
        row("local", epsilon, sigma, of_ratio(sigma, 1), least=least)
    for batch in (20, 381):
        for epsilon in USED:
            sigma = shuffled_sigma(epsilon, batch)
            least = entry(planned_mechanism("shuffled-gaussian", epsilon, batch, "exact"))
            row(f"SDP-Amp, B = {batch}", epsilon, sigma, amplified(sigma, batch), least=least)
    for epsilon in USED:
        levels, depth = 1 + math.ceil(math.log2(ROUNDS)), ROUNDS.bit_length()
        sigma, moved = 8 * math.sqrt(levels) * math.log(4 / DELTA) / epsilon, math.sqrt(depth)
        least = entry(planned_mechanism("tree", epsilon, 1, "exact", batches=ROUNDS))
        row("JDP, a node", epsilon, sigma, of_ratio(sigma, moved), least=least)
    batches = ROUNDS // 20
    own = 1.0 / (2 * math.sqrt(2 * batches * math.log(2 / DELTA)))
    sigma, moved = local_sigma(own, DELTA / (2 * batches)), math.sqrt(batches)
    row(f"local, in all M = {batches}", 1.0, sigma, of_ratio(sigma, moved), least=entry(in_all_batches()))
    return rows


def in_all_batches() -> Mechanism:
    """Return the noise of the page's run of clients that are in all M = 1000 batches."""
    return planned_mechanism("local-gaussian", 0.0885, 20, "exact", delta=1e-5, precision=400)


def test_the_page_s_noise_for_clients_of_all_batches_is_charged_their_budget_and_hardly_less() -> None:
    """σ = 72.93. Without rounding 72.84 would do: Δ₂√M over the analytic Gaussian mechanism's ratio."""
    mechanism, least = in_all_batches(), math.sqrt(1000) * WIDEST / largest_ratio(1.0, DELTA)
    law = mechanism.privacy().repeated
    assert law is not None
    cost = Entry("all rounds", 20_000, 1000, promise_of(mechanism, composable=True), laws=(law,))
    total = PrivacyLedger(1000, BudgetSpec(epsilon=1.0, delta=DELTA)).spend(cost).total
    assert total.delta == DELTA
    assert 0.998 < (total.epsilon or 0.0) <= 1
    assert least < entry(mechanism) < 1.002 * least


def bit_rows() -> list[list[str]]:
    """Return the rows of the page's second table: bits a label, and the noise of an entry of the batch's sum."""
    rows = []
    for batch in (20, 381):
        for epsilon in USED:
            steps = math.ceil(max(2 * math.sqrt(batch), 5, 4))
            bits = 24e4 * steps**2 * math.log(4 * 26 / DELTA) ** 2 / (epsilon**2 * batch)
            ours = planned_mechanism("shuffled-binomial", epsilon, batch, "exact")
            assert isinstance(ours, ShuffledBinomial)
            numbers = (bits, math.sqrt(batch * bits * 3 / 16) / steps, ours.coins, ours.error(batch).std)
            try:
                sent = planned_mechanism("shuffled-binomial", epsilon, batch, "paper")
            except BadParameter:
                runs = "refused"
            else:
                assert isinstance(sent, ShuffledBinomial)
                runs = figure(sent.coins)
            rows.append([str(batch), f"{epsilon:g}", *map(figure, numbers[:2]), runs, *map(figure, numbers[2:])])
    return rows


def table(head: str, page: str = "contextual.md") -> list[list[str]]:
    lines = (DOCS / page).read_text("utf-8").split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(head))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize(
    ("head", "computed"), [("| noise |", gaussian_rows), ("| B |", bit_rows)], ids=["gaussian", "bits"]
)
def test_the_page_has_the_printed_noise_beside_the_exact(head: str, computed: Callable[[], list[list[str]]]) -> None:
    assert table(head) == computed()


def test_the_page_has_the_weights_of_returning_clients() -> None:
    for batches, times, weight, printed in (map(int, row) for row in table("| batches M |", "privacy/returning.md")):
        assert weight == Visits(Grid(1, 1, "linf"), batches, times).weight
        assert printed == times**2 * batches.bit_length()


def test_the_page_s_tree_is_the_mechanism_s() -> None:
    mechanism = planned_mechanism("tree", 1.0, 1, "exact", batches=ROUNDS, precision=20_000)
    assert isinstance(mechanism, Tree)
    least = float(next(row for row in table("| noise |") if row[:2] == ["JDP, a node", "1"])[4])
    assert entry(mechanism) == pytest.approx(least, rel=0.01)
