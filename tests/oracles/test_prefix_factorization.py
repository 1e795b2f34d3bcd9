"""Tests `prefix-factorization`: B C sums up, norms are right to the last digit, and all that is released is private.

The oracle inverts power series in 50 digits. The code under test has closed forms from partial fractions.
"""

import itertools
import math
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.factorization import SETS, Factorization, factorization
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, largest_ratio
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.central.prefix_factorization import Prefixes, PrefixFactorization, misses
from distrust.common.dp.mechanisms.families.streams import StoredBatch, StreamRelease
from distrust.common.dp.noise.discrete_gaussian import COARSE, FineGaussian
from distrust.common.dp.noise.law import symmetric_quantile
from distrust.common.errors import BadParameter, TooSmall
from distrust.common.modular import sum_rows
from distrust.common.randomness import UnsafeSeededStream
from tests.support.laws import chi_square
from tests.support.planned import planned

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "privacy" / "prefix-sums.md"

LENGTHS = (1, 2, 3, 4, 6, 13, 40, 141)


def planned_mechanism(batches: int = 13, dimension: int | None = None, **fields: object) -> PrefixFactorization:
    spec = {"name": "prefix-factorization", "epsilon": 0.9, "delta": 1e-6, "batches": batches, **fields}
    statistic = Reward() if dimension is None else BoundedVector(dimension=dimension, bound=1.5)
    mechanism = planned(MechanismSpec.model_validate(spec), 60, 50, statistic)
    assert isinstance(mechanism, PrefixFactorization)
    return mechanism


@cache
def series(own: Factorization) -> tuple[list[Any], list[Any]]:
    """Return b and c in 50 digits: b by its definition, c as the power series 1/((1-x) b(x))."""
    with mpmath.workdps(50):
        shares = [mpmath.mpf(share) for share in own.weights]
        thetas = [mpmath.mpf(theta) for theta in own.factors[1:]]
        rest = 1 - mpmath.fsum(shares)
        terms = [[share * theta**i for share, theta in zip(shares, thetas, strict=True)] for i in range(own.batches)]
        b = [rest + mpmath.fsum(row) for row in terms]
        r = [b[0], *(b[i] - b[i - 1] for i in range(1, own.batches))]
        c: list[Any] = []
        for i in range(own.batches):
            c.append((mpmath.mpf(i == 0) - mpmath.fsum(r[j] * c[i - j] for j in range(1, i + 1))) / r[0])
        return b, c


@pytest.mark.parametrize("batches", LENGTHS)
def test_the_two_factors_are_prefix_sums_to_forty_digits_and_c_is_positive_and_falls(batches: int) -> None:
    own = factorization(batches)
    b, c = series(own)
    with mpmath.workdps(50):
        for i in range(batches):
            assert abs(mpmath.fsum(b[j] * c[i - j] for j in range(i + 1)) - 1) < mpmath.mpf(10) ** -40
    assert all(one > other > 0 for one, other in itertools.pairwise(c))
    assert own.column() == pytest.approx([float(one) for one in c], rel=1e-12)
    assert sum(own.shares) == pytest.approx(1, rel=1e-15)


def upwards(got: float, want: Any) -> bool:
    """Return whether a double is the number rounded up, by less than 10⁻¹⁴ of it."""
    with mpmath.workdps(50):
        return bool(want <= mpmath.mpf(got) <= want * (1 + mpmath.mpf(10) ** -14))


@pytest.mark.parametrize("batches", LENGTHS)
def test_norms_are_those_of_the_series_rounded_up(batches: int) -> None:
    own = factorization(batches)
    b, c = series(own)
    with mpmath.workdps(50):
        squares = list(itertools.accumulate(one * one for one in b))
        assert all(upwards(own.row(m), squares[m - 1]) for m in range(1, batches + 1, max(1, batches // 10)))
        assert upwards(own.weight(1), mpmath.fsum(one * one for one in c))
        assert upwards(own.step, 1 + mpmath.fsum((b[i] - b[i - 1]) ** 2 for i in range(1, batches)))


@pytest.mark.parametrize("batches", range(1, 10))
def test_the_weight_is_that_of_the_worst_batches_by_brute_force(batches: int) -> None:
    """Of all sets of `times` batches none has a longer sum of columns, and the first ones reach it."""
    own = factorization(batches)
    _, c = series(own)
    with mpmath.workdps(50):
        columns = [[mpmath.mpf(0)] * start + c[: batches - start] for start in range(batches)]
        for times in range(1, batches + 1):
            lengths = {
                chosen: mpmath.fsum(mpmath.fsum(row) ** 2 for row in zip(*(columns[j] for j in chosen), strict=True))
                for chosen in itertools.combinations(range(batches), times)
            }
            assert upwards(own.weight(times), max(lengths.values()))
            assert upwards(own.weight(times), lengths[tuple(range(times))])


def bound(batches: int) -> float:
    """Return the sum of the singular values of A over M, which no factorization's worst prefix is below."""
    places = 2 * np.arange(1, batches + 1) - 1
    return float((0.5 / np.sin(places * math.pi / (4 * batches + 2))).mean())


def test_the_singular_values_are_those_of_prefix_sums() -> None:
    values = np.linalg.svd(np.tril(np.ones((30, 30))), compute_uv=False)
    assert values.mean() == pytest.approx(bound(30), rel=1e-12)


def test_the_documented_tables_are_those_of_the_factorizations() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    for batches in (8, 64, 141, 1000, 20_000, 10**6):
        own = factorization(batches)
        shares = [2**level / (2 ** (level + 1) - 1) for level in range(21)]
        ends = [batches, *((batches >> level << level) - 1 for level in range(20) if batches >> level & 1)]
        noise = max(sum(share for level, share in enumerate(shares) if end >> level & 1) for end in ends)
        tree = math.sqrt(batches.bit_length() * noise)
        ours = math.sqrt(own.row(batches) * own.weight(1))
        assert f"| {batches:,} | {tree:.2f} | {ours:.3f} | {bound(batches):.3f} |" in lines
    for batches, times in ((8, 2), (8, 8), (141, 2), (141, 12), (141, 141), (20_000, 2)):
        own = factorization(batches)
        assert f"| {batches:,} | {times} | {own.weight(times):.2f} | {own.weight(1):.2f} |" in lines


@pytest.mark.parametrize("length", SETS)
def test_every_set_is_a_factorization_of_its_own_length_and_nearly_as_good_as_can_be(length: int) -> None:
    """θ in order and shares above 0 are what the proof asks for. No factorization has less noise than A's norm says."""
    own = Factorization(length, *SETS[length])
    assert list(own.factors) == sorted(own.factors, reverse=True)
    assert own.factors[-1] > 0
    assert min(own.shares) > 0
    worst = math.sqrt(own.row(length) * own.weight(1))
    below = bound(min(length, 2**20))  # it grows with the length
    assert below < worst < (1.21 if length <= 2**20 else 1.3) * below


@pytest.mark.parametrize(("batches", "most"), [(2, 1.2501), (141, 2.641), (20_000, 4.226), (10**6, 5.5)])
def test_the_worst_prefix_has_the_stated_noise_at_one_batchs_mu(batches: int, most: float) -> None:
    own = factorization(batches)
    assert math.sqrt(own.row(batches) * own.weight(1)) <= most


@pytest.mark.parametrize("batches", [1, 13, 1000])
def test_exact_noise_is_the_least_for_the_whole_stream(batches: int) -> None:
    """Discrete noise, its rounding and the slack cost less than 10⁻⁶ beside the analytic Gaussian mechanism."""
    mechanism = planned_mechanism(batches)
    stretched = math.sqrt(mechanism.factors.weight(1)) * mechanism.precision
    least = stretched / largest_ratio(0.9, 1e-6)
    slack = 2 * math.sqrt(batches - 1) / mechanism.server_law().per_step / largest_ratio(0.9, 1e-6)
    assert least + slack < math.sqrt(mechanism.variance) < least * (1 + 1e-6) + slack
    promise = mechanism.privacy().promise
    assert gaussian_epsilon(stretched / math.sqrt(mechanism.variance), 1e-6) < (promise.epsilon or 0) <= 0.9


@pytest.mark.parametrize("times", [2, 5, 13])
def test_a_client_of_several_batches_pays_for_one_release_of_the_longest_move(times: int) -> None:
    mechanism = planned_mechanism(13)
    stream = mechanism.privacy().stream
    assert stream is not None
    _, c = series(mechanism.factors)
    sums = [sum(float(c[i - j]) for j in range(times) if j <= i) for i in range(13)]
    ratio = math.sqrt(sum(total * total for total in sums) / mechanism.variance) * mechanism.precision
    spent = stream.joint(times).promise
    assert spent.epsilon == pytest.approx(gaussian_epsilon(ratio, 1e-6), rel=1e-5)
    assert (spent.epsilon or 0) > gaussian_epsilon(ratio, 1e-6)
    assert (spent.claimed, stream.joint(14).promise.kind) == (None, "none")


def test_draws_of_three_tables_have_the_law_of_one_discrete_gaussian() -> None:
    """Two levels with a = 5 in 60 digits: every probability is within the stated 2 e^(-2π²w), twice for two sums."""
    a, by_place = 5, {}
    with mpmath.workdps(60):

        def law(variance: int) -> dict[int, Any]:
            reach = math.ceil(15 * math.sqrt(variance))
            masses = {k: mpmath.exp(-mpmath.mpf(k * k) / (2 * variance)) for k in range(-reach, reach + 1)}
            whole = mpmath.fsum(masses.values())
            return {k: mass / whole for k, mass in masses.items()}

        low, high = law(4 * a * a), law(4 * a * a - 4)
        for x in range(12):
            by_place[x] = mpmath.fsum(mass * low[x - a * y] for y, mass in high.items() if x - a * y in low)
        want, w = law(4 * a**4), 4 - mpmath.mpf(4) / a**2
        off = max(abs(by_place[x] / want[x] - 1) for x in by_place)
        assert off < 4 * mpmath.exp(-2 * mpmath.pi**2 * w)
    assert 2 * math.exp(-2 * math.pi**2 * 3.9997) < 2**-112
    for variance in (1e-3, 0.7, 1e3, 1e9, 2.0**54 - 1):
        fine = FineGaussian(variance)
        assert fine.per_step * math.sqrt(variance) >= 2**26
        assert fine.per_step % 2 == 1
        assert fine.variance * fine.per_step**2 / COARSE**4 - 4 > 60_000


@pytest.mark.parametrize("variance", [0.05, 0.6, 3.0, 50.0])
def test_one_draw_has_its_stated_law_in_steps(variance: float) -> None:
    law = FineGaussian(variance)
    assert chi_square(law, law.sample(UnsafeSeededStream(3, "fine"), 200_000)) > 1e-7
    pmf = law.pmf()
    assert math.sqrt(pmf.masses @ pmf.support**2.0) == pytest.approx(law.std, rel=1e-7)
    for p in (0.3, 1e-3, 1e-9):
        assert law.quantile(p) == symmetric_quantile(pmf.logs[pmf.logs.size // 2 :], pmf.lost, p)


def run(mechanism: PrefixFactorization, count: int, seed: int = 0) -> tuple[list[StreamRelease], list[np.ndarray]]:
    counter, released, truth = Prefixes(mechanism), [], []
    for number in range(count):
        steps = np.random.default_rng(number).integers(0, 55 * mechanism.precision, mechanism.dimension)
        counter, out = counter.add(steps.astype(np.uint64), 55, UnsafeSeededStream(seed, number))
        released.append(out)
        truth.append(steps * mechanism.step + 55 * mechanism.low)
    return released, truth


@pytest.mark.parametrize("dimension", [None, 3])
def test_prefix_sums_are_right_up_to_their_stated_noise(dimension: int | None) -> None:
    """Each of 13 prefixes is within a 1e-9 quantile: false alarm 1e-7. A batch is what the prefix grew by."""
    mechanism = planned_mechanism(13, dimension)
    released, truth = run(mechanism, 13)
    most = mechanism.error(55).std * math.sqrt(2 * math.log(2e9) * mechanism.nodes)  # such noise is sub-Gaussian
    before = np.zeros(mechanism.dimension)
    for t, out in enumerate(released, 1):
        assert np.abs(out.prefix - np.sum(truth[:t], axis=0)).max() <= most + mechanism.step
        assert out.batch == pytest.approx(out.prefix - before)
        before = out.prefix


def test_the_noise_of_all_prefixes_is_b_times_independent_draws() -> None:
    """40,000 streams of four batches side by side: variances and covariances are those of B Bᵀ; false alarm 1e-7."""
    mechanism, streams = planned_mechanism(4), 40_000
    wide, counter, rows = UnsafeSeededStream(4, "wide"), Prefixes(mechanism), []
    totals = np.full((streams, 1), 20 * mechanism.precision, dtype=np.uint64)
    for number in range(1, 5):
        counter, out = counter.add_with(totals, 55, lambda: mechanism.stream_noise(wide, streams))
        rows.append((out.prefix[:, 0] - 20 * number) / mechanism.step)
    b = [float(one) for one in series(mechanism.factors)[0]]
    matrix = np.array([[b[i - j] if i >= j else 0 for j in range(4)] for i in range(4)])
    want = mechanism.variance * matrix @ matrix.T
    got = np.cov(np.array(rows))
    assert np.abs(got / want - 1).max() < 5.7 * math.sqrt(2 / streams) * 1.5
    law = FineGaussian(mechanism.factors.row(4) * mechanism.variance)
    assert chi_square(law, np.rint(rows[3]).astype(np.int64)) > 1e-7


class Fixed:
    """A counter's noise that is given, and what the counter makes of it in fine units."""

    def __init__(self, mechanism: PrefixFactorization) -> None:
        self.mechanism, self.counter = mechanism, Prefixes(mechanism)

    def earlier(self) -> int:
        """Return G: what draws of earlier batches add to the next one's fine sum, by the counter's own buffers."""
        shares, buffers = self.mechanism.factors.shares, self.counter.buffers
        return int(np.rint(sum(share * one[0] for share, one in zip(shares, buffers, strict=False))))

    def add(self, total: int, drawn: int) -> StreamRelease:
        totals = np.array([total % self.mechanism.modulus], dtype=np.uint64)
        self.counter, out = self.counter.add_with(totals, 60, lambda: np.array([drawn]))
        return out


def exact_sums(mechanism: PrefixFactorization, drawn: list[int]) -> Fraction:
    """Return Σ b_i z_(t-i) over i ≥ 1 of the next batch, without rounding."""
    own = mechanism.factors
    thetas, shares = [Fraction(theta) for theta in own.factors], [Fraction(share) for share in own.weights]
    shares = [1 - sum(shares), *shares]
    return sum(
        (sum((s * th**i for s, th in zip(shares, thetas, strict=True)), Fraction(0)) * z)
        for i, z in enumerate(reversed(drawn), start=1)
    ) + Fraction(0)


def test_floating_point_misses_the_sum_of_draws_by_no_more_than_is_counted() -> None:
    mechanism = planned_mechanism(24)
    law, own = mechanism.server_law(), Fixed(mechanism)
    fine = law.draw(UnsafeSeededStream(5, "draws"), 24).tolist()
    most = misses(mechanism.factors) * math.sqrt(mechanism.variance) * law.per_step
    assert most < 0.01
    for number, drawn in enumerate(fine):
        assert abs(own.earlier() - exact_sums(mechanism, fine[:number])) <= Fraction(1, 2) + Fraction(most)
        own.add(0, drawn)


@pytest.mark.parametrize("changed", [0, 7, 23])
def test_a_neighbour_has_the_same_releases_with_noise_that_is_moved_by_the_counted_length(changed: int) -> None:
    """One batch moves by g modulo m. The moved noise is found batch by batch, and all is released alike.

    The length of the move is ‖c‖ g to within the slack, from below too: no shorter move would do.
    """
    mechanism = planned_mechanism(24)
    law, g = mechanism.server_law(), mechanism.precision
    q, chance = law.per_step, np.random.default_rng(6)
    slack = 2 * math.sqrt(23) * (1 + 2 * misses(mechanism.factors) * math.sqrt(mechanism.variance) * q)
    c = mechanism.factors.column()[: 24 - changed]
    for _ in range(3):
        one, other, moves = Fixed(mechanism), Fixed(mechanism), []
        for number, drawn in enumerate(law.draw(UnsafeSeededStream(7, changed), 24).tolist()):
            total = int(chance.integers(0, mechanism.modulus))
            moved = g if number == changed else 0
            move = one.earlier() - other.earlier() - (q * g if number >= changed else 0)
            moves.append(move)
            first, second = one.add(total, drawn), other.add(total + moved, drawn + move)
            assert np.array_equal(first.prefix, second.prefix)
            assert np.array_equal(first.batch, second.batch)
        length, stretched = math.sqrt(sum(move**2 for move in moves)), q * g * math.sqrt(c @ c)
        assert abs(length - stretched) <= slack
        assert length < q * g * math.sqrt(mechanism.factors.weight(1)) + slack


def test_a_counter_restored_from_what_is_stored_goes_on_as_if_it_had_never_stopped() -> None:
    """Each stored batch brings the stream of its own noise. Another stream, as of other keys, is refused."""
    mechanism = planned_mechanism(12, 3, epsilon=1.0, delta=1e-3)
    counter, stored = Prefixes(mechanism), []
    for number in range(12):
        survivors = 50 + number % 2
        rows = mechanism.randomize(np.full((survivors, 3), 0.3), UnsafeSeededStream(8, number))
        total = sum_rows(rows, mechanism.modulus)
        counter, released = counter.add(total, survivors, UnsafeSeededStream(9, number))
        stored.append((total, survivors, released.prefix))
        again = mechanism.counter().restored(
            [StoredBatch(*one, UnsafeSeededStream(9, place)) for place, one in enumerate(stored)]
        )
        assert (again.time, again.survivors) == (counter.time, counter.survivors)
        assert np.array_equal(again.prefix, counter.prefix)
        assert np.array_equal(again.noise, counter.noise)
        assert all(np.array_equal(a, b) for a, b in zip(again.buffers, counter.buffers, strict=True))
    with pytest.raises(BadParameter, match="batches = 4: was released with noise"):
        mechanism.counter().restored(
            [StoredBatch(*one, UnsafeSeededStream(9 + (place == 3), place)) for place, one in enumerate(stored)]
        )


def test_adding_is_pure_and_ends_where_the_calibration_does_and_small_batches_never_enter() -> None:
    mechanism, total = planned_mechanism(2), np.array([100], dtype=np.uint64)
    start = Prefixes(mechanism)
    (first, out), (_, same) = (start.add(total, 55, UnsafeSeededStream(1)) for _ in range(2))
    assert (start.time, first.time) == (0, 1)
    assert np.array_equal(out.prefix, same.prefix)
    last, _ = first.add(total, 55, UnsafeSeededStream(2))
    with pytest.raises(BadParameter, match="calibrated for 2"):
        last.add(total, 55, UnsafeSeededStream(3))
    with pytest.raises(TooSmall):
        start.add(total, 49, UnsafeSeededStream(1))
    with pytest.raises(BadParameter, match="shape must be"):
        start.add_with(total, 55, lambda: np.zeros(2, dtype=np.int64))
