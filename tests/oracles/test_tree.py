"""Tests the binary tree: every node's noise is drawn once, prefix sums are right, all nodes together are private."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon
from distrust.common.dp.accounting.techniques.hockey_stick import hockey_stick
from distrust.common.dp.mechanisms import MechanismSpec, plan
from distrust.common.dp.mechanisms.central.tree import Counter, Tree
from distrust.common.dp.mechanisms.families.streams import StoredBatch, StreamRelease
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.errors import BadParameter, TooSmall
from distrust.common.modular import sum_rows
from distrust.common.randomness import UnsafeSeededStream
from tests.support.laws import chi_square
from tests.support.planned import planned


def planned_mechanism(batches: int = 13, dimension: int | None = None, **fields: object) -> Tree:
    spec = MechanismSpec.model_validate({"name": "tree", "epsilon": 0.9, "delta": 1e-6, "batches": batches, **fields})
    statistic = Reward() if dimension is None else BoundedVector(dimension=dimension, bound=1.5)
    mechanism = planned(spec, 60, 50, statistic)
    assert isinstance(mechanism, Tree)
    return mechanism


def run(mechanism: Tree, batches: int, seed: int = 0) -> tuple[Counter, list[StreamRelease], list[np.ndarray]]:
    counter, released, truth = Counter(mechanism), [], []
    stream = UnsafeSeededStream(seed, "tree")
    for batch in range(batches):
        steps = np.random.default_rng(batch).integers(0, 55 * mechanism.precision, mechanism.dimension)
        counter, out = counter.add(steps.astype(np.uint64), 55, stream)
        released.append(out)
        truth.append(steps * mechanism.step + 55 * mechanism.low)
    return counter, released, truth


def test_the_sum_of_nodes_decides_exactly_as_the_product_does() -> None:
    """For three nodes with fifty digits: δ of the product law by brute force equals that of the sum shifted by 3g."""
    variance, g, epsilon = 3.0, 2, 1.5
    with mpmath.workdps(50):
        v = mpmath.mpf(variance)
        whole = mpmath.fsum(mpmath.exp(-mpmath.mpf(x * x) / (2 * v)) for x in range(-40, 41))
        by_square: dict[tuple[int, int], int] = {}
        for triple in itertools.product(range(-22, 23), repeat=3):
            key = (sum(x * x for x in triple), sum((x - g) ** 2 for x in triple))
            by_square[key] = by_square.get(key, 0) + 1
        want = mpmath.fsum(
            count * max(mpmath.exp(-mpmath.mpf(a) / (2 * v)) - mpmath.exp(epsilon - mpmath.mpf(b) / (2 * v)), 0)
            for (a, b), count in by_square.items()
        )
        want = float(want / whole**3)
    assert hockey_stick(DiscreteGaussianSum(variance, 3).pmf(), 3 * g, epsilon) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(("batches", "depth"), [(1, 1), (2, 2), (3, 2), (4, 3), (13, 4), (1024, 11)])
def test_a_batch_is_in_as_many_nodes_as_the_depth_says(batches: int, depth: int) -> None:
    """The oracle counts the complete dyadic intervals of 1 … M around each batch."""
    assert planned_mechanism(batches).depth == depth
    most = max(
        sum(1 for level in range(20) if ((t >> level) + 1) << level <= batches) for t in range(min(batches, 1024))
    )
    assert most == depth


def least_noise(batches: int) -> float:
    """Return the variance of the best linear unbiased estimate of a prefix from all its nodes, each of variance 1."""
    rows = [
        [float(start <= leaf < start + size) for leaf in range(batches)]
        for size in (1 << level for level in range(batches.bit_length()))
        for start in range(0, batches - size + 1, size)
    ]
    matrix = np.array(rows)
    return float(np.linalg.inv(matrix.T @ matrix).sum())


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 6, 7, 8, 21, 40])
def test_prefix_sums_are_the_best_linear_estimates_and_none_has_more_noise_than_the_tree_says(batches: int) -> None:
    """The widths of policies count on it. The estimates of a stream without data are B z: their variance is B Bᵀ's."""
    mechanism, draws = planned_mechanism(batches), planned_mechanism(batches).draws(batches)
    unit = iter(2**30 * np.eye(draws, dtype=np.int64))
    counter: Counter = Counter(mechanism.model_copy(update={"modulus": 2**50, "floor": 1}))
    variances = []
    for _ in range(batches):
        counter, out = counter.add_with(np.zeros((draws, 1), dtype=np.uint64), 1, lambda: next(unit)[:, np.newaxis])
        variances.append(float(((out.prefix / mechanism.step / 2**30) ** 2).sum()))
    assert variances == pytest.approx([least_noise(m) for m in range(1, batches + 1)])
    assert mechanism.nodes == pytest.approx(max(variances))
    assert planned_mechanism(batches, calibration="paper").nodes == batches.bit_length()


@pytest.mark.parametrize("batches", [1, 13, 1000])
def test_exact_noise_is_the_least_for_the_whole_stream(batches: int) -> None:
    mechanism = planned_mechanism(batches)
    shift = mechanism.depth * mechanism.precision
    assert hockey_stick(DiscreteGaussianSum(mechanism.variance, mechanism.depth).pmf(), shift, 0.9) <= 1e-6
    less = mechanism.variance * (1 - 1e-6)
    assert hockey_stick(DiscreteGaussianSum(less, mechanism.depth).pmf(), shift, 0.9) > 1e-6
    promise = mechanism.privacy().promise
    assert promise.epsilon == pytest.approx(0.9, rel=1e-6)
    ratio = math.sqrt(mechanism.depth / mechanism.variance) * mechanism.precision
    assert promise.epsilon == pytest.approx(gaussian_epsilon(ratio, 1e-6), rel=1e-2)


def test_paper_noise_is_safe_and_larger_and_needs_epsilon_below_one() -> None:
    paper, exact = planned_mechanism(calibration="paper"), planned_mechanism()
    assert paper.privacy().promise.epsilon < exact.privacy().promise.epsilon
    assert paper.variance == pytest.approx(4 * paper.precision**2 * 2 * math.log(1.25e6) / 0.81)
    with pytest.raises(BadParameter, match=r"\(0, 1\)"):
        planned_mechanism(calibration="paper", epsilon=1.5)


@pytest.mark.parametrize("dimension", [None, 3])
def test_prefix_sums_are_right_up_to_their_stated_noise(dimension: int | None) -> None:
    """Each of 13 prefixes and leaves is within a 1e-9 quantile: false alarm 1e-7."""
    mechanism = planned_mechanism(13, dimension)
    counter, released, truth = run(mechanism, 13)
    assert [node.level for node in counter.nodes] == [3, 2, 0]
    most = mechanism.error(55).std * math.sqrt(2 * math.log(2e9) * mechanism.nodes)  # such noise is sub-Gaussian
    for t, out in enumerate(released, 1):
        off = np.abs(out.prefix - np.sum(truth[:t], axis=0)).max()
        assert off <= most
        assert np.abs(out.batch - truth[t - 1]).max() <= mechanism.error(55).quantile(1e-9) + 1e-6


def noises(mechanism: Tree, batches: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the noise in each leaf and in each prefix, in grid steps."""
    _, released, truth = run(mechanism, batches, seed)
    leaves = [(out.batch - x)[0] / mechanism.step for out, x in zip(released, truth, strict=True)]
    prefixes = [(out.prefix - np.sum(truth[:t], axis=0))[0] / mechanism.step for t, out in enumerate(released, 1)]
    return np.rint(leaves), np.rint(prefixes)


def test_a_node_s_noise_is_reused_by_every_prefix_that_needs_it() -> None:
    """In grid steps: prefix 3 is node [1,2] and leaf 3, and prefix 2 is this node alone. 5, 6 and 7 share [1,4]."""
    leaf, prefix = noises(planned_mechanism(13, calibration="paper"), 13, 4)
    assert prefix[0] == leaf[0]
    assert prefix[2] - prefix[1] == leaf[2]
    assert prefix[4] - prefix[3] == leaf[4]
    assert prefix[6] - prefix[5] == leaf[6]
    assert prefix[8] - prefix[7] == leaf[8]


def test_no_node_s_noise_is_used_for_another_node() -> None:
    """3000 trees: leaves 1 and 2, nodes [1,2] and [1,4] are uncorrelated and have the stated law; false alarm 1e-7."""
    mechanism = planned_mechanism(4, calibration="paper")
    law = DiscreteGaussian(mechanism.variance)
    rows = []
    for seed in range(3000):
        leaf, prefix = noises(mechanism, 4, seed)
        rows.append([leaf[0], leaf[1], prefix[1], prefix[3]])
    table = np.array(rows).astype(np.int64)
    correlation = np.corrcoef(table.T)[np.triu_indices(4, 1)]
    assert np.abs(correlation).max() <= 5.7 / math.sqrt(3000)
    for column in table.T:
        assert chi_square(law, column) > 1e-7
    assert chi_square(DiscreteGaussian(1.5 * mechanism.variance), table[:, 3]) < 1e-7


def test_adding_is_pure() -> None:
    mechanism = planned_mechanism(4)
    start = Counter(mechanism)
    total = np.array([100], dtype=np.uint64)
    first, out = start.add(total, 55, UnsafeSeededStream(1))
    again, same = start.add(total, 55, UnsafeSeededStream(1))
    assert start.time == 0
    assert first.time == again.time == 1
    assert np.array_equal(out.prefix, same.prefix)


def test_the_stream_ends_where_its_calibration_does_and_small_batches_never_enter() -> None:
    counter, _, _ = run(planned_mechanism(3), 3)
    total = np.array([100], dtype=np.uint64)
    with pytest.raises(BadParameter, match="calibrated for 3"):
        counter.add(total, 55, UnsafeSeededStream(1))
    with pytest.raises(TooSmall):
        Counter(planned_mechanism(3)).add(total, 49, UnsafeSeededStream(1))


def test_a_counter_restored_from_what_is_stored_goes_on_as_if_it_had_never_stopped() -> None:
    """Each stored batch brings the stream of its own noise. Another stream, as of other keys, is refused."""
    statistic = BoundedVector(dimension=3)
    words = MechanismSpec(name="tree", epsilon=1.0, delta=1e-3, batches=20)
    size = {"clients": 5, "min_survivors": 4, "min_honest": 4}
    mechanism = plan(words, **size, overflow_probability=1e-9, statistic=statistic)
    assert isinstance(mechanism, Tree)
    counter, stored = Counter(mechanism), []
    for number in range(20):
        survivors = 4 + number % 2
        rows = mechanism.randomize(np.full((survivors, 3), 0.3), UnsafeSeededStream(7, number))
        total = sum_rows(rows, mechanism.modulus)
        counter, released = counter.add(total, survivors, UnsafeSeededStream(8, number))
        stored.append((total, survivors, released.prefix))
        again = mechanism.counter().restored(
            [StoredBatch(*one, UnsafeSeededStream(8, place)) for place, one in enumerate(stored)]
        )
        assert again.time == counter.time
        assert [(one.level, one.survivors) for one in again.nodes] == [(n.level, n.survivors) for n in counter.nodes]
        for one, node in zip(again.nodes, counter.nodes, strict=True):
            assert (one.true == node.true).all()
            assert (one.noisy == node.noisy).all()
            assert (one.best == node.best).all()
    with pytest.raises(BadParameter, match="batches = 4: was released with noise"):
        mechanism.counter().restored(
            [StoredBatch(*one, UnsafeSeededStream(8 + (place == 3), place)) for place, one in enumerate(stored)]
        )
