"""Tests the exact law of what central mechanisms release, for every residue that lying clients can bring a sum to.

The server adds its noise modulo m and decodes afterwards. The oracle draws nothing: it sends every value of the noise
through the mechanism's own release, and adds up the probabilities of equal releases.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.central.prefix_factorization import Prefixes, PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Counter, Tree
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from tests.support.planned import planned

N, LEFT = 6, 4
"""Clients of a cohort, and its least survivors."""

DELTA = 1e-3
GRID: dict[str, dict[str, Any]] = {
    "central-laplace-discrete": {},
    "central-laplace-discrete, paper": {"calibration": "paper"},
    "central-laplace": {"precision": 4},
    "central-gaussian": {"delta": DELTA, "precision": 4},
    "tree": {"delta": DELTA, "batches": 1},
    "prefix-factorization": {"delta": DELTA, "batches": 1, "precision": 2},
}
Masses = NDArray[np.float64]


def mechanism_of(name: str, clients: int = N, honest: int = LEFT, **fields: object) -> GridMechanism:
    spec = {"name": name.partition(",")[0], "epsilon": 1.0, **fields}
    result = planned(MechanismSpec.model_validate(spec), clients, honest)
    assert isinstance(result, GridMechanism)
    return result


def steps(mechanism: GridMechanism, estimates: NDArray[np.float64], survivors: int) -> NDArray[np.int64]:
    """Return published sums of rewards in [0, 1] as whole grid steps."""
    whole = np.rint(estimates / mechanism.step)
    assert estimates == pytest.approx(whole * mechanism.step)
    return whole.astype(np.int64)


def release(mechanism: GridMechanism, residue: int, survivors: int, noise: NDArray[Any]) -> NDArray[np.float64]:
    """Return what is published of one sum for each value of the noise."""
    totals = np.full((len(noise), 1), residue % mechanism.modulus, dtype=np.uint64)
    return mechanism.estimate_with(totals, survivors, noise[:, np.newaxis])[:, 0]


def law_of(mechanism: GridMechanism, residue: int, survivors: int) -> Masses:
    """Return the law of what is published, from the least decoded number on: m probabilities."""
    law = mechanism.server_law()
    assert law is not None
    pmf, start = law.pmf(), mechanism.window_start(survivors)
    places = steps(mechanism, release(mechanism, residue, survivors, pmf.support), survivors) - start
    assert places.min() >= 0
    return np.bincount(places, pmf.masses, mechanism.modulus)


def largest_ratio(p: Masses, q: Masses) -> float:
    return float(np.abs(np.log(p) - np.log(q)).max())


def excess(p: Masses, q: Masses, epsilon: float) -> float:
    """Return the δ(ε) of two laws, the larger of both directions."""
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize("survivors", [LEFT, N])
@pytest.mark.parametrize("name", GRID)
def test_no_residue_of_other_clients_makes_the_release_tell_more_of_one_reward(name: str, survivors: int) -> None:
    """The other clients' sum is each residue of Z_m in turn; the victim's reward is 0 or 1."""
    mechanism = mechanism_of(name, **GRID[name])
    promise = mechanism.privacy().promise
    assert promise.epsilon is not None
    laws = np.stack([law_of(mechanism, residue, survivors) for residue in range(mechanism.modulus)])
    pairs = [(laws[residue], laws[(residue + mechanism.precision) % mechanism.modulus]) for residue in range(len(laws))]
    if promise.delta:
        assert max(excess(p, q, promise.epsilon) for p, q in pairs) <= promise.delta * (1 + 1e-9)
    else:
        assert max(largest_ratio(p, q) for p, q in pairs) <= promise.epsilon * (1 + 1e-9)


def test_noise_after_decoding_published_a_mean_of_1000_or_of_0_by_the_victims_reward() -> None:
    """The attack: 1,000 clients, ε = 1, and one client that lies brings the sum to the last number that is decoded.

    The law with noise after decoding is written down here: m = ng + 1, decode, add. Its two worlds are told apart at
    sight, at ε = 7.88 and far above. The project's order publishes that sum, and any at an end of its own window, with
    the printed ε.
    """
    mechanism = mechanism_of("central-laplace-discrete", 1000, 900)
    g, law = mechanism.precision, mechanism.server_law()
    assert law is not None
    noise, edge = law.pmf(), 1000 * g
    assert mechanism.error(1000).std == pytest.approx(1.414, abs=1e-3)
    published = [(total % (edge + 1) + noise.support + edge) for total in (edge, edge + g)]
    before = [np.bincount(values, noise.masses, 3 * edge) for values in published]
    means = [float(masses @ np.arange(3 * edge)) / g - 1000 for masses in before]
    assert means == pytest.approx([1000, 1], abs=0.1)
    assert excess(before[0], before[1], 7.88) > 0.999
    top = mechanism.window_start(1000) + mechanism.modulus - 1
    for sent in (edge, top, top - g // 2, 0, -1):
        p, q = law_of(mechanism, sent, 1000), law_of(mechanism, sent + g, 1000)
        seen = (p > 1e-15) & (q > 1e-15)  # what is cut off of the law, 10⁻²² of it, has no ratio
        assert 0.999 < largest_ratio(p[seen], q[seen]) <= 1 + 1e-9
        assert excess(p, q, 1.0) <= 1e-12


def test_what_is_released_follows_from_sum_plus_noise_modulo_m_alone() -> None:
    """Of vectors, in reals too: moving steps from the sum to the noise changes nothing, whatever the residues are."""
    chance = np.random.default_rng(1)
    for name, words in (*GRID.items(), ("central-laplace", {"noise": "continuous"}), (CONTINUOUS_GAUSSIAN)):
        spec = MechanismSpec.model_validate({"name": name.partition(",")[0], "epsilon": 1.0, **words})
        mechanism = planned(spec, N, LEFT, BoundedVector(dimension=3))
        assert isinstance(mechanism, GridMechanism)
        totals = chance.integers(0, mechanism.modulus, (500, 3)).astype(np.uint64)
        noise = mechanism.server_randomness(UnsafeSeededStream(1, name), 500)
        assert noise is not None
        moved = chance.integers(-mechanism.modulus, mechanism.modulus, (500, 3))
        others = np.mod(totals.astype(np.int64) + moved, mechanism.modulus).astype(np.uint64)
        ways = [mechanism.estimate_with(a, N, b) for a, b in ((totals, noise), (others, noise - moved))]
        if noise.dtype.kind == "f":
            assert ways[0] == pytest.approx(ways[1])
        else:
            assert np.array_equal(*ways)


def test_each_part_of_a_batch_has_its_noise_before_it_is_decoded() -> None:
    """Assigned actions: a liar of each action brings its sum to an end of the window of its own survivors."""
    mechanism = mechanism_of("central-laplace-discrete")
    counts = np.array([3, 2, 0, 1])
    starts = np.array([mechanism.window_start(int(count)) for count in counts])
    wrapped = 0
    for seed in range(20):
        for edges in (starts, starts + mechanism.modulus - 1):
            totals = np.mod(edges, mechanism.modulus).astype(np.uint64)[:, np.newaxis]
            shown = mechanism.estimate_parts(totals, counts, UnsafeSeededStream(seed))[:, 0]
            noise = mechanism.server_randomness(UnsafeSeededStream(seed), len(counts))
            assert noise is not None
            expected = [
                next(k for k in range(start, start + mechanism.modulus) if (k - edge - own) % mechanism.modulus == 0)
                for start, edge, own in zip(starts.tolist(), edges.tolist(), noise[:, 0].tolist(), strict=True)
            ]
            assert steps(mechanism, shown, N).tolist() == expected
            wrapped += int(np.count_nonzero(np.abs(expected - edges) > mechanism.modulus // 2))
    assert wrapped > 20


CONTINUOUS_GAUSSIAN = ("central-gaussian", {"noise": "continuous", "delta": 0.05})


class EvenlySpaced:
    """Words that a uniform variable's quantiles are, so that a law drawn by inversion is drawn without chance."""

    def words(self, count: int) -> NDArray[np.uint64]:
        return ((np.arange(count) + 0.5) / count * 2.0**64).astype(np.uint64)

    def bytes(self, count: int) -> bytes:
        raise NotImplementedError(count)


DRAWS = 1 << 16


def binned(mechanism: GridMechanism, residue: int, bins: int) -> Masses:
    """Return the law of what is published in equal bins of the window, from DRAWS quantiles of the noise."""
    noise = mechanism.server_randomness(EvenlySpaced(), DRAWS)
    assert noise is not None
    start = mechanism.window_start(N)
    values = release(mechanism, residue, N, noise[:, 0]) / mechanism.step
    counts, _ = np.histogram(values, bins, (float(start), float(start + mechanism.modulus)))
    assert counts.sum() == DRAWS
    return np.asarray(counts / DRAWS, dtype=np.float64)


@pytest.mark.parametrize("name", ["central-laplace", "central-gaussian"])
def test_continuous_noise_keeps_its_promise_around_the_ring(name: str) -> None:
    """In 60 bins of ℝ/mℤ. A bin's probability is off by 2/DRAWS: 2 % where ratios are looked at, 0.01 of δ in all."""
    fields = {"noise": "continuous", **({"delta": 0.05} if name == "central-gaussian" else {})}
    mechanism = mechanism_of(name, **fields)
    for residue in range(0, mechanism.modulus, 6):
        p, q = (binned(mechanism, residue + moved, 60) for moved in (0, mechanism.precision))
        if name == "central-gaussian":
            assert excess(p, q, 1.0) <= 0.05 + 0.01
        else:
            seen = (p > 100 / DRAWS) & (q > 100 / DRAWS)
            assert np.count_nonzero(seen) > 10
            assert largest_ratio(p[seen], q[seen]) <= 1 + 0.05


def tree_of(batches: int) -> Tree:
    mechanism = mechanism_of("tree", 3, 3, epsilon=2.0, delta=0.02, precision=1, batches=batches)
    assert isinstance(mechanism, Tree)
    return mechanism


@pytest.mark.parametrize("second", [0.0, 0.3, 0.5, 0.999])
def test_all_nodes_of_a_tree_together_keep_its_promise_at_every_residue_of_every_batch(second: float) -> None:
    """Two batches: two leaves and the node above them, which is decoded by the number next to the leaves.

    The victim is in the first batch. All pairs of its two nodes' noises are sent through the counter; the other leaf's
    noise, which does not hang on the victim, is small and then far out. Both batches have liars of their own.
    """
    tree = tree_of(2)
    assert tree.depth == 2
    pmf = tree.server_law().pmf(lost=1e-9)
    pairs = np.stack(np.meshgrid(pmf.support, pmf.support), axis=-1).reshape(-1, 2)
    masses = np.outer(pmf.masses, pmf.masses).ravel()

    def published(first: int, other: int) -> NDArray[np.float64]:
        """Return the first prefix, the second batch and the second prefix, for all pairs of noises."""
        drawn = iter([pairs[:, :1], np.full((len(pairs), 1), other), pairs[:, 1:]])
        totals = [np.full((len(pairs), 1), one % tree.modulus, dtype=np.uint64) for one in (first, residue)]
        counter, one = Counter(tree).add_with(totals[0], 3, lambda: next(drawn))
        _, two = counter.add_with(totals[1], 3, lambda: next(drawn))
        return np.hstack([one.prefix, two.batch, two.prefix])

    residue = int(second * tree.modulus)
    for other in (0, int(pmf.support[-1])):
        for first in range(tree.modulus):
            both = np.vstack([published(first, other), published(first + tree.precision, other)])
            _, places = np.unique(both, axis=0, return_inverse=True)
            places = places.reshape(2, -1)
            p, q = (np.bincount(place, masses, int(places.max()) + 1) for place in places)
            assert excess(p, q, 2.0) <= 0.02 * (1 + 1e-6)


Stream = Tree | PrefixFactorization
streams = pytest.mark.parametrize("name", ["tree", "prefix-factorization"])


def stream_of(name: str, batches: int) -> Stream:
    mechanism = mechanism_of(name, 60, 50, epsilon=0.9, delta=1e-6, batches=batches)
    assert isinstance(mechanism, Stream)
    return mechanism


def rectangles(mechanism: PrefixFactorization, edges: NDArray[np.int64]) -> Masses:
    """Return the law of both prefixes' noise N₁, N₂ in steps: N₁ = z₁ and N₂ = z₂ + b₁z₁, rounded, z normal."""
    own, sigma = mechanism.factors, math.sqrt(mechanism.variance)
    second = sum(share * theta for share, theta in zip(own.shares, own.factors, strict=True))
    points, weights = np.polynomial.legendre.leggauss(20)
    law = np.zeros((edges.size, edges.size))
    for place, first in enumerate(edges):
        z = first + points / 2
        density = weights / 2 * stats.norm.pdf(z, scale=sigma)
        tails = stats.norm.sf(np.append(edges, edges[-1] + 1)[:, np.newaxis] - 0.5 - second * z, scale=sigma)
        law[place] = -np.diff(tails, axis=0) @ density
    return law


@pytest.mark.parametrize("second", [0.0, 0.3, 0.5, 0.999])
def test_all_prefixes_of_a_factorization_together_keep_its_promise_at_every_residue(second: float) -> None:
    """Two batches. The victim is in the first, whose other clients send each residue; the second batch has liars too.

    All pairs of the two prefixes' noises go through the counter. Their law is computed here, cell by cell.
    """
    mechanism = mechanism_of("prefix-factorization", 3, 3, epsilon=2.0, delta=0.02, precision=1, batches=2)
    assert isinstance(mechanism, PrefixFactorization)
    reach, q, own = int(9 * math.sqrt(mechanism.variance)) + 2, mechanism.server_law().per_step, mechanism.factors
    edges = np.arange(-reach, reach + 1)
    masses = rectangles(mechanism, edges).ravel()
    assert masses.sum() == pytest.approx(1, abs=1e-9)
    pairs = np.stack(np.meshgrid(edges, edges, indexing="ij"), axis=-1).reshape(-1, 2) * q
    second_share = sum(share * theta for share, theta in zip(own.shares, own.factors, strict=True))
    draws = [pairs[:, :1], pairs[:, 1:] - np.rint(second_share * pairs[:, :1]).astype(np.int64)]

    def published(first: int) -> NDArray[np.float64]:
        """Return both prefixes and the second batch, for all pairs of noises."""
        counter, shown = Prefixes(mechanism), []
        for total, drawn in zip((first, int(second * mechanism.modulus)), draws, strict=True):
            totals = np.full((len(pairs), 1), total % mechanism.modulus, dtype=np.uint64)
            counter, out = counter.add_with(totals, 3, lambda drawn=drawn: drawn)  # type: ignore[misc]
            shown += [out.prefix, out.batch]
        return np.hstack(shown)

    for first in range(mechanism.modulus):
        both = np.vstack([published(first), published(first + mechanism.precision)])
        _, places = np.unique(both, axis=0, return_inverse=True)
        places = places.reshape(2, -1)
        p, r = (np.bincount(place, masses, int(places.max()) + 1) for place in places)
        assert excess(p, r, 2.0) <= 0.02 * (1 + 1e-6)


@streams
def test_a_long_stream_is_counted_in_a_ring_for_one_batch(name: str) -> None:
    """Honest clients: 1,000 batches add up to 400 times m, and every prefix is off by its noise alone."""
    tree = stream_of(name, 1000)
    chance, stream = np.random.default_rng(2), UnsafeSeededStream(3, "long stream")
    counter: Any = tree.counter()
    most = tree.error(60).std * math.sqrt(2 * math.log(2e12) * tree.nodes)  # passed with probability 1e-12
    whole = 0
    for _ in range(1000):
        total = int(chance.integers(40 * tree.precision, 60 * tree.precision))
        whole += total
        counter, out = counter.add(np.array([total], dtype=np.uint64), 60, stream)
        off = abs(float(out.prefix[0]) - whole * tree.step)
        assert off <= most + tree.step
    assert whole > 100 * tree.modulus


@streams
def test_a_liar_in_a_stream_moves_no_sum_by_more_than_one_ring(name: str) -> None:
    tree, chance = stream_of(name, 100), np.random.default_rng(4)
    honest: Any = tree.counter()
    lied: Any = tree.counter()
    for number in range(1, 101):
        total = int(chance.integers(0, 60 * tree.precision))
        lie = int(chance.integers(0, tree.modulus)) if number == 17 else 0
        streams = [UnsafeSeededStream(5, number) for _ in range(2)]
        honest, fair = honest.add(np.array([total], dtype=np.uint64), 60, streams[0])
        moved = np.array([(total + lie) % tree.modulus], dtype=np.uint64)
        lied, out = lied.add(moved, 60, streams[1])
        assert abs(out.prefix - fair.prefix)[0] <= tree.modulus * tree.step
        assert (number < 17) == bool(np.array_equal(out.prefix, fair.prefix))


@streams
def test_a_stream_whose_sums_would_leave_a_word_is_refused(name: str) -> None:
    with pytest.raises(BadParameter, match=r"batches \* modulus"):
        mechanism_of(name, 1000, 900, delta=1e-6, batches=2**30, precision=2**31)


@pytest.mark.parametrize("name", GRID)
def test_honest_clients_noise_has_room_on_both_sides(name: str) -> None:
    """Noise at its 10⁻⁶ quantile, the `wrap` here, is decoded as it was drawn, whatever the honest sum is."""
    mechanism = mechanism_of(name, **GRID[name])
    law = mechanism.server_law()
    assert law is not None
    room = int(law.quantile(mechanism.wrap))
    noise = np.array([-room, 0, room])
    for survivors in (LEFT, N):
        for total in (0, survivors * mechanism.precision):
            assert steps(mechanism, release(mechanism, total, survivors, noise), survivors).tolist() == [
                total - room,
                total,
                total + room,
            ]


PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "privacy" / "mechanisms.md"
DOCUMENTED: dict[str, dict[str, Any]] = {
    "`central-laplace-discrete`": {},
    "`central-laplace`": {},
    "`central-gaussian`": {"delta": 1e-6},
    "`tree`, 8 batches": {"delta": 1e-6, "batches": 8},
    "`tree`, 1,024 batches": {"delta": 1e-6, "batches": 1024},
    "`prefix-factorization`, 8 batches": {"delta": 1e-6, "batches": 8},
    "`prefix-factorization`, 1,024 batches": {"delta": 1e-6, "batches": 1024},
}


@pytest.mark.parametrize("label", DOCUMENTED)
def test_the_documented_bits_are_those_of_the_plans(label: str) -> None:
    cells = []
    for clients in (1, 10, 100, 1000, 10_000, 100_000):
        mechanism = mechanism_of(label.split("`")[1], clients, clients - clients // 10, **DOCUMENTED[label])
        without = clients * mechanism.precision  # m - 1 of m = ng + 1
        cells.append(f"{without.bit_length()} → {mechanism.bits}")
    assert f"| {label} | {' | '.join(cells)} |" in PAGE.read_text("utf-8").splitlines()
