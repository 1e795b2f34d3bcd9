"""Tests that `paper` noise of the contextual policies has the numbers that its source prints."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from distrust.client.checks.agreement import _check_mechanism
from distrust.common.bandit.contextual_sum import ContextualSum, NoiseSource
from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, largest_ratio
from distrust.common.dp.mechanisms.central.tree import Tree
from distrust.common.dp.mechanisms.families.gaussian import textbook
from distrust.common.dp.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.errors import BadParameter, Refused
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.play import in_process
from distrust.lab.play.run_file import parse
from tests.support.printed import DELTA, SUM, entry, planned_mechanism

WIDEST = SUM.sensitivity  # √4.5


def delta_of(ratio: float, epsilon: float) -> float:
    """Return δ(ε) of Gaussian noise for a move of `ratio` deviations (Balle & Wang 2018, Theorem 8), by SciPy."""
    near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far))


BLOCKS = ContextualSum(features=5, blocks=3)
GRADIENT = ContextualSum(features=5, residual="logistic")


@pytest.mark.parametrize(
    ("source", "statistic", "epsilon", "logarithm", "factor"),
    [
        ("GLB", SUM, 0.5, 1.25, 4.0),
        ("GLB", SUM, 0.99, 1.25, 4.0),
        ("GLB", BLOCKS, 1.9, 2.5, 8.0),
        ("LDP-UCB", SUM, 0.5, 2.5, 6.0),
        ("LDP-UCB", BLOCKS, 1.9, 2.5, 6.0),
        ("LDP-GLOC", GRADIENT, 0.5, 3.75, 6.0),
        ("LDP-GLOC", GRADIENT, 2.9, 3.75, 6.0),
    ],
)
def test_other_sources_noise_is_the_printed_one_and_promises_at_least_its_epsilon(
    source: NoiseSource, statistic: ContextualSum, epsilon: float, logarithm: float, factor: float
) -> None:
    """σ = factor √(2 ln(logarithm/δ))/ε; GLB's is that of its matrix, 2σ_{ε,δ}, and for blocks 2σ_{ε/2,δ/2}."""
    sigma = factor * math.sqrt(2 * math.log(logarithm / 1e-5)) / epsilon
    mechanism = planned_mechanism("local-gaussian", epsilon, 20, "paper", statistic, printed=source, delta=1e-5)
    assert sigma <= entry(mechanism) <= 1.01 * sigma
    promise = mechanism.privacy().promise
    assert promise.epsilon is not None
    assert promise.claimed == epsilon
    own = brentq(lambda one: delta_of(statistic.sensitivity / sigma, one) - 1e-5, 1e-6, epsilon)
    assert 0.98 * own <= promise.epsilon <= own  # σ is half a hundredth larger than printed, for the worst rounding
    assert own < epsilon / 2


@pytest.mark.parametrize(
    ("source", "statistic", "epsilon", "refusal"),
    [
        ("GLB", SUM, 1.0, r"must lie in \(0, 1\) for the constants of GLB Proposition 3\.1"),
        ("GLB", BLOCKS, 2.0, r"must lie in \(0, 2\) for the constants of GLB Proposition 4\.1"),
        ("LDP-UCB", SUM, 2.0, r"must lie in \(0, 2\) for the constants of LDP-UCB"),
        ("LDP-GLOC", GRADIENT, 3.0, r"must lie in \(0, 3\) for the constants of LDP-GLOC"),
        ("LDP-UCB", ContextualSum(features=5, rewards=[0.0, 3.1]), 0.5, "move by 6 at most, .* move them by 6.2"),
    ],
)
def test_other_sources_are_refused_outside_their_ranges(
    source: NoiseSource, statistic: ContextualSum, epsilon: float, refusal: str
) -> None:
    with pytest.raises(BadParameter, match=refusal):
        planned_mechanism("local-gaussian", epsilon, 20, "paper", statistic, printed=source)


CONTEXTUAL = (Path(__file__).parents[2] / "docs/concepts/contextual.md").read_text("utf-8")
CODE = CONTEXTUAL.partition("| `batch` | ε asked for |")[2].partition("\n\n")[0].splitlines()[2:]
"""Rows about the noise of the authors' code."""


@pytest.mark.parametrize("row", CODE)
def test_the_published_codes_noise_is_as_drawn_and_its_guarantee_is_what_it_keeps(row: str) -> None:
    """Row: B, the ε asked for, σ, the printed σ (Proposition F.1, Theorem B.1) over it, the ε that is kept."""
    batch, epsilon, deviation, less, kept = (float(cell) for cell in row.strip("|").split("|"))
    sigma = math.sqrt(math.log(2.5 * batch / DELTA) / batch) / epsilon
    logarithms = math.log(2.5 * batch / DELTA) * (math.log(2 / DELTA) if batch > 1 else 1)
    printed = 4 * math.sqrt(2 * logarithms) / (epsilon * math.sqrt(batch))
    assert (f"{sigma:.4g}", f"{printed / sigma:.4g}") == (f"{deviation:.4g}", f"{less:.4g}")
    mechanism = planned_mechanism("local-gaussian", epsilon, int(batch), "paper", printed="CTX-code")
    assert sigma <= entry(mechanism) <= 1.01 * sigma
    promise = mechanism.privacy().promise
    assert promise.epsilon is not None
    assert promise.epsilon == pytest.approx(kept, rel=1e-3, abs=1e-6)
    assert promise.epsilon <= gaussian_epsilon(SUM.sensitivity / sigma, DELTA) or kept == 0
    assert (kept > epsilon) == (epsilon > 0.2 or batch > 1)


def test_the_document_has_the_published_codes_noise() -> None:
    assert len(CODE) == 6


@pytest.mark.parametrize("name", ["tree", "shuffled-gaussian", "central-gaussian", "shuffled-binomial"])
def test_the_published_codes_noise_is_refused_of_other_mechanisms(name: str) -> None:
    words = {"batches": 8} if name == "tree" else {}
    with pytest.raises(BadParameter, match=r"^mechanism\.name = '.*': must be local-gaussian for policy\.constants"):
        planned_mechanism(name, 0.5, 20, "paper", printed="CTX-code", **words)


def test_one_size_of_noise_leaves_glbs_pair_with_0_53_of_its_move() -> None:
    """GLB's pair moves by ε/√(2 ln(1.25/δ)) of its noise, W 2σ and ξ σ. With 2σ on both parts it is 0.5303 of that."""
    cosines = np.linspace(-1, 1, 10_001)  # of the angle between rx and r'x': matrices move by √(2 - 2cos²)
    matrix, vector = 2 - 2 * cosines**2, 2 - 2 * cosines
    printed = np.sqrt(matrix / 4 + vector).max()  # in units of σ = 2√(2 ln(1.25/δ))/ε
    assert printed == pytest.approx(2.0)
    ours = np.sqrt((matrix + vector) / 4).max()
    assert ours == pytest.approx(WIDEST / 2, rel=1e-6)
    assert ours / printed == pytest.approx(0.5303, abs=5e-5)


@pytest.mark.parametrize(("epsilon", "delta", "batches"), [(1.0, 0.1, 20_000), (1.0, 1e-6, 8), (0.1, 0.49, 1)])
def test_a_node_of_the_tree_has_shariff_and_sheffets_noise_and_promises_at_least_its_epsilon(
    epsilon: float, delta: float, batches: int
) -> None:
    """√2σ on all numbers, σ = 8√k ln(4/δ)/ε: what their matrix of (φ; y) has on its diagonal, and √2 times its φy.

    Their whole matrix, weighted, moves by √8 in each of k nodes with √2σ: also within ε, with less room than ours.
    """
    levels = 1 + math.ceil(math.log2(batches))
    sigma = 8 * math.sqrt(levels) * math.log(4 / delta) / epsilon
    mechanism = planned_mechanism("tree", epsilon, 1, "paper", batches=batches, delta=delta)
    assert isinstance(mechanism, Tree)
    assert entry(mechanism) == pytest.approx(math.sqrt(2) * sigma, rel=1e-9)
    promise = mechanism.privacy().promise
    assert promise.epsilon is not None
    own, theirs = (
        gaussian_epsilon(moved / (math.sqrt(2) * sigma), delta)
        for moved in (WIDEST * math.sqrt(mechanism.depth), math.sqrt(8 * levels))
    )
    assert own <= theirs <= epsilon
    assert WIDEST / math.sqrt(8) == pytest.approx(0.75)  # of one node's move, as the page has it
    assert own - 1e-9 <= promise.epsilon <= 1.2 * own + 1e-9  # the rounding costs up to a tenth


def test_other_policies_and_vectors_keep_the_trees_classical_noise() -> None:
    for statistic, source in ((SUM, "GLB"), (BoundedVector(dimension=5, norm="l2"), None)):
        mechanism = planned_mechanism("tree", 0.5, 1, "paper", statistic, printed=source, batches=8)  # type: ignore[arg-type]
        assert isinstance(mechanism, Tree)
        assert mechanism.variance == pytest.approx(4 * mechanism.grid.squared_l2 * textbook(0.5, DELTA))


def printed_bits(epsilon: float, batch: int, steps: float, features: int = 5, delta: float = DELTA) -> float:
    """Return b of CTX Theorem C.1 at a g of `steps`."""
    return 24e4 * steps**2 * math.log(4 * (features**2 + 1) / delta) ** 2 / (epsilon**2 * batch)


@pytest.mark.parametrize(("epsilon", "batch", "features"), [(10.0, 20, 5), (2.0, 381, 5), (10.0, 3, 10)])
def test_linucbs_bits_are_theorem_c1s_with_its_noise_and_a_finer_grid(
    epsilon: float, batch: int, features: int
) -> None:
    """At most a step more a radius, and so many more bits that the noise of a sum is the printed one."""
    steps = math.ceil(max(2 * math.sqrt(batch), features, 4))
    mechanism = planned_mechanism("shuffled-binomial", epsilon, batch, "paper", ContextualSum(features=features))
    assert isinstance(mechanism, ShuffledBinomial)
    assert mechanism.chance == 0.25
    assert 2 * math.sqrt(2) * steps <= mechanism.precision < 2 * math.sqrt(2) * steps + 1
    finer = mechanism.precision / (2 * math.sqrt(2))
    assert mechanism.coins == math.ceil(printed_bits(epsilon, batch, finer, features))
    deviation = math.sqrt(batch * printed_bits(epsilon, batch, steps, features) * 3 / 16) / steps
    assert mechanism.error(batch).std == pytest.approx(deviation, rel=1e-5)
    promise = mechanism.privacy().promise
    assert promise.epsilon is not None
    assert (promise.kind, promise.claimed) == ("approximate", epsilon)
    assert promise.epsilon <= epsilon


def test_linucbs_ones_always_fit_under_a_label() -> None:
    """Algorithm 5 as printed has g + b bits a label and up to 2g + b ones; here a message has room for all of them."""
    steps = math.ceil(max(2 * math.sqrt(20), 5, 4))
    mechanism = planned_mechanism("shuffled-binomial", 10.0, 20, "paper")
    assert isinstance(mechanism, ShuffledBinomial)
    assert mechanism.width == mechanism.precision + mechanism.coins >= 2 * steps + mechanism.coins
    ends = np.full((1, 20), 1.0)
    law = mechanism.message_law(high=True)
    assert law is not None
    assert law.first + len(law.logs) - 1 <= mechanism.width
    rows = mechanism.randomize(np.concatenate([ends, -ends]), UnsafeSeededStream(1, "ends"))
    assert rows.max() <= mechanism.width


@pytest.mark.parametrize(("batch", "least"), [(20, 1.708), (381, 1.716)])
def test_theorem_c1s_bits_can_be_sent_from_this_epsilon_on(batch: int, least: float) -> None:
    """No batch can do with less than 1.66: g ≥ 2√B, so that b ≥ 96·10⁴ ln²(4(d² + 1)/δ)/ε²."""
    planned_mechanism("shuffled-binomial", least, batch, "paper")
    with pytest.raises(BadParameter, match="at most 16777216"):
        planned_mechanism("shuffled-binomial", least - 0.001, batch, "paper")
    assert printed_bits(1.66, batch, 2 * math.sqrt(batch)) > 2**24
    assert printed_bits(1.67, batch, 2 * math.sqrt(batch)) < 2**24


def test_linucbs_bits_scale_with_rewards_and_keep_a_precision_of_the_run_file() -> None:
    wide = planned_mechanism("shuffled-binomial", 5.0, 20, "paper", ContextualSum(features=5, rewards=[-3.0, 1.0]))
    assert wide.error(20).std == pytest.approx(3 * math.sqrt(20 * printed_bits(5.0, 20, 9) * 3 / 16) / 9, rel=1e-5)
    finer = planned_mechanism("shuffled-binomial", 10.0, 20, "paper", precision=40)
    assert finer.precision == 40
    with pytest.raises(BadParameter, match="the theorem needs at least 26"):
        planned_mechanism("shuffled-binomial", 10.0, 20, "paper", precision=25)


RUNS: dict[str, tuple[str, str, float]] = {
    "vec": ('name = "linucb"\nbatch = 20', 'name = "shuffled-binomial"\nepsilon = 10.0', 147.37 / math.sqrt(20)),
    "jdp": ('name = "linucb"', 'name = "tree"\nbatches = 60\nepsilon = 0.9', 8 * math.sqrt(14) * math.log(40) / 0.9),
    "ols": ('name = "ldp-ols"', 'name = "local-gaussian"\nepsilon = 0.9', 4 * math.sqrt(2 * math.log(12.5)) / 0.9),
    "ucb": ('name = "ldp-ucb"', 'name = "local-gaussian"\nepsilon = 0.9', 6 * math.sqrt(2 * math.log(25)) / 0.9),
    "gloc": ('name = "ldp-gloc"', 'name = "local-gaussian"\nepsilon = 0.9', 6 * math.sqrt(2 * math.log(37.5)) / 0.9),
}


@pytest.mark.parametrize(("policy", "words", "sigma"), RUNS.values(), ids=RUNS)
def test_a_run_has_the_noise_of_its_policys_source_and_clients_compute_the_same(
    policy: str, words: str, sigma: float
) -> None:
    """60 clients in process. A client accepts the mechanism, and refuses that of another source."""
    text = f"""
run = "printed"
horizon = 60
[policy]
{policy}
[mechanism]
{words}
delta = {DELTA}
calibration = "paper"
[environment]
name = "contextual-synthetic"
seed = 11
arms = 20
dimension = 5
[intermediary]
dropout = 0.0
corrupt = 0.0
minimum = 1
"""
    learner = in_process.play_learner(parse(text))
    record, clients = learner.rounds[-1], learner.config.policy.batch  # type: ignore[union-attr]
    assert record.number == 60 // clients
    mechanism = record.mechanism
    deviation = mechanism.error(clients).std / math.sqrt(clients)
    assert deviation == pytest.approx(sigma, rel=0.01)
    round_ = SimpleNamespace(decision=record.ask.decision, statistic=record.ask.statistic, number=record.number)
    _check_mechanism(learner.config, round_, clients, mechanism)  # type: ignore[arg-type]  # only what is read
    other: NoiseSource = "GLB" if learner.config.policy.PRINTED == "CTX" else "CTX"
    spec = learner.config.mechanism
    rest = spec.model_dump(include={"batches"}, exclude_none=True)
    lie = planned_mechanism(
        spec.name, spec.epsilon or 0.0, clients, "paper", record.ask.statistic, printed=other, **rest
    )
    lie = lie.model_copy(update={"wrap": mechanism.wrap})
    with pytest.raises(Refused):
        _check_mechanism(learner.config, round_, clients, lie)  # type: ignore[arg-type]


def test_the_page_has_the_printed_noise_of_glbs_policies() -> None:
    """At δ = 1e-5 and ε = 0.5: σ as the run has it, without its rounding, and the ε that it promises."""
    rows = {
        "`ldp-ols`": (SUM, "GLB", 4 * math.sqrt(2 * math.log(1.25e5))),
        "`ldp-ols`, all arms' blocks": (BLOCKS, "GLB", 8 * math.sqrt(2 * math.log(2.5e5))),
        "`ldp-ucb`": (SUM, "LDP-UCB", 6 * math.sqrt(2 * math.log(2.5e5))),
        "`ldp-gloc`, logistic link": (GRADIENT, "LDP-GLOC", 6 * math.sqrt(2 * math.log(3.75e5))),
    }
    page = (Path(__file__).parents[2] / "docs/concepts/generalized-linear.md").read_text("utf-8")
    for name, (statistic, source, factor) in rows.items():
        mechanism = planned_mechanism("local-gaussian", 0.5, 1, "paper", statistic, printed=source, delta=1e-5)  # type: ignore[arg-type]
        assert entry(mechanism) == pytest.approx(2 * factor, rel=0.01)
        spent = gaussian_epsilon(statistic.sensitivity / (2 * factor), 1e-5)
        least = statistic.sensitivity / largest_ratio(0.5, 1e-5)
        figures = " | ".join(f"{one:.4g}" for one in (2 * factor, spent, least, 2 * factor / least))
        assert f"| {name} | " in page
        assert f" | {figures} |" in next(line for line in page.split("\n") if line.startswith(f"| {name} |"))


def test_the_page_says_how_many_bits_linucb_sends() -> None:
    mechanism = planned_mechanism("shuffled-binomial", 10.0, 20, "paper")
    assert isinstance(mechanism, ShuffledBinomial)
    page = " ".join(CONTEXTUAL.split())
    assert f"that is {mechanism.coins:,} bits a label and {mechanism.bits:,} a client" in page
