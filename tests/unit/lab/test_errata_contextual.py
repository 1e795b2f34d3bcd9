"""Tests the errata of CTX and GLB against searches, simulations, many digits and closed forms."""

import itertools
import math
import re
from functools import cache

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize

from distrust.lab.papers import glb
from distrust.lab.papers.ctx_linucb import joint_sensitivity
from distrust.lab.papers.errata import checked_errata
from distrust.lab.papers.erratum import CheckedErratum, gaussian_failure

pytestmark = pytest.mark.slow

Array = NDArray[np.float64]
DELTA = 0.1


@cache
def errata_by_key() -> dict[str, CheckedErratum]:
    return {erratum.key: erratum for erratum in checked_errata()}


def fact(key: str, *words: str) -> float:
    """Return the one fact in whose label all of the patterns are found."""
    (value,) = [value for label, value in errata_by_key()[key].facts if all(re.search(word, label) for word in words)]
    return value


def gaussian(ratio: float | mpf, epsilon: float | mpf) -> mpf:
    """Return δ(ε) of Gaussian noise with Δ/σ = ratio, to 30 digits."""
    with mpmath.workdps(30):
        r, e = mpf(ratio), mpf(epsilon)
        return mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)


def is_epsilon_of(epsilon: float, ratio: float, delta: float) -> bool:
    return gaussian(ratio, epsilon * (1 - 1e-8)) > delta >= gaussian(ratio, epsilon * (1 + 1e-8))


# The range of Lemma B.4 under Theorem 3.2.


def in_range(epsilon: float, batch: int, *, small: bool) -> bool:
    """Return whether Lemma B.4 with δ' = δ/2 says anything; small: ε₀ ≤ 1 as well."""
    local = epsilon * math.sqrt(batch / math.log(2 / DELTA))
    return batch >= 16 * math.exp(local) * math.log(4 / DELTA) and not (small and local > 1)


@pytest.mark.parametrize(("label", "small"), [("some B serves", False), ("with ε₀ ≤ 1", True)])
def test_no_batch_size_serves_above_the_largest_epsilon(label: str, *, small: bool) -> None:
    largest = fact("ctx-theorem-3.2-range", label)
    assert any(in_range(largest * (1 - 1e-9), batch, small=small) for batch in range(1, 20_000))
    assert not any(in_range(largest * (1 + 1e-9), batch, small=small) for batch in range(1, 20_000))


def test_the_largest_epsilons_of_lemma_b4_are_what_theorem_3_2_does_not_say() -> None:
    assert fact("ctx-theorem-3.2-range", "some B serves") == pytest.approx(0.1658, abs=5e-5)
    assert fact("ctx-theorem-3.2-range", "with ε₀ ≤ 1") == pytest.approx(0.1365, abs=5e-5)
    assert not any(in_range(epsilon, 20, small=False) for epsilon in np.geomspace(1e-9, 0.387, 50))
    ratios = [16 * math.exp(0.2 * math.sqrt(b / math.log(20))) * math.log(40) / b for b in range(1, 20_000)]
    assert min(ratios) == pytest.approx(errata_by_key()["ctx-theorem-3.2-range"].computed, rel=1e-5)
    assert min(ratios) >= errata_by_key()["ctx-theorem-3.2-range"].computed > 1


def test_the_factors_of_theorem_b1_lie_between_the_stated_ends() -> None:
    """Draw ε₀ ≤ 1 and batches of the lemma's range, to 10⁸ times the least; the ends are approached."""
    draws = np.random.default_rng(1)
    local = np.concatenate((draws.uniform(1e-6, 1, 20_000), [1e-6, 1.0, 1.0]))
    least = 16 * np.exp(local) * math.log(4 / DELTA)
    batch = least * np.concatenate((10 ** draws.uniform(0, 8, 20_000), [1e12, 1e12, 1.0]))
    root = 8 * np.sqrt(np.exp(local) * math.log(8 / DELTA) / batch) + 8 * np.exp(local) / batch
    given = np.log1p(np.expm1(local) / (np.exp(local) + 1) * root)
    epsilons = given / (local * np.sqrt(math.log(2 / DELTA) / batch))
    deltas = 0.5 + (np.exp(given) + 1) * (1 + np.exp(-local) / 2)
    for factors, key in ((epsilons, "ctx-theorem-b1-epsilon"), (deltas, "ctx-theorem-b1-delta")):
        low, high = fact(key, "least factor"), fact(key, "largest")
        assert low * (1 - 1e-9) <= factors.min() <= low * 1.0001
        assert high * 0.9999 <= factors.max() <= high * (1 + 1e-9)


def test_the_noise_of_theorem_b1_alone_has_the_stated_epsilon_at_twenty_clients() -> None:
    for epsilon in (0.2, 1.0, 10.0):
        sigma = 4 * math.sqrt(2 * math.log(2.5 * 20 / DELTA) * math.log(2 / DELTA)) / (epsilon * math.sqrt(20))
        exact = fact("ctx-theorem-3.2-range", f"ε = {epsilon:g},")
        if exact == 0:
            assert gaussian(math.sqrt(4.5) / sigma, 0) <= DELTA
        else:
            assert is_epsilon_of(exact, math.sqrt(4.5) / sigma, DELTA)


# The bits of Theorem C.1.


def printed_bits(epsilon: float) -> float:
    return 24e4 * 81 * math.log(4 * 26 / DELTA) ** 2 / (epsilon**2 * 20)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 10.0])
def test_the_fewest_bits_of_one_label_by_the_binomial_distribution(epsilon: float) -> None:
    bits = round(printed_bits(epsilon) / fact("ctx-theorem-c1-bits", "one label", f"ε = {epsilon:g}$"))

    def delta(bits: int) -> float:
        law = stats.binom(20 * bits, 0.25)
        k = np.arange(-18, 20 * bits + 19)
        ways = (law.pmf(k - s) - math.exp(epsilon) * law.pmf(k) for s in (18, -18))
        return max(float(np.maximum(way, 0).sum()) for way in ways)

    assert delta(bits) <= DELTA < delta(bits - 1)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 10.0])
def test_the_bits_that_are_proven_enough_hide_the_largest_moves(epsilon: float) -> None:
    """Sample δ of the twenty labels for pairs of data near the worst, rounded at random; its error is below 0.004."""
    bits = round(printed_bits(epsilon) / fact("ctx-theorem-c1-bits", "over that b", f"ε = {epsilon:g}$"))
    assert bits >= round(printed_bits(epsilon) / fact("ctx-theorem-c1-bits", "one label", f"ε = {epsilon:g}$"))
    draws, law = np.random.default_rng(2), stats.binom(20 * bits, 0.25)
    axes = np.eye(5)
    turned = -axes[0] / 2 + axes[1] * math.sqrt(0.75)
    for one, other in ((axes[0], turned), (axes[0], -axes[0])):
        steps = [9 * np.concatenate((x, np.outer(x, x)[np.triu_indices(5)])) for x in (one, other)]
        own, moved = (np.floor(s).astype(int) + (draws.random(20) < s - np.floor(s)) for s in steps)
        noise = law.rvs(size=(100_000, 20), random_state=draws)
        with np.errstate(divide="ignore"):
            loss = (law.logpmf(noise) - law.logpmf(noise + own - moved)).sum(axis=1)
        assert np.maximum(-np.expm1(epsilon - loss), 0).mean() <= DELTA


# One joint release.


def moved(words: Array, length: float, reward: float, dimension: int) -> float:
    """Return ‖(yφ, φφᵀ) - (y'φ', φ'φ'ᵀ)‖, the data squeezed into their bounds."""
    one, other = words[:dimension], words[dimension : 2 * dimension]
    one, other = (v * min(1.0, length / max(float(np.linalg.norm(v)), 1e-12)) for v in (one, other))
    y, z = np.clip(words[2 * dimension :], -reward, reward)
    vector, matrix = y * one - z * other, np.outer(one, one) - np.outer(other, other)
    return math.hypot(float(np.linalg.norm(vector)), float(np.linalg.norm(matrix)))


@pytest.mark.parametrize(("length", "reward"), [(1.0, 1.0), (1.0, 0.3), (2.0, 1.0), (1.0, 1.4), (1.0, 1.5), (0.5, 2.0)])
@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.few(5)
def test_the_joint_sensitivity_by_optimization(length: float, reward: float, dimension: int) -> None:
    draws, best, formula = np.random.default_rng(3), 0.0, joint_sensitivity(length, reward)
    for _ in range(20):
        start = 2 * draws.standard_normal(2 * dimension + 2)
        words = minimize(lambda w: -moved(w, length, reward, dimension), start, method="Nelder-Mead").x
        best = max(best, moved(words, length, reward, dimension))
        assert best <= formula * (1 + 1e-12)
    assert best == pytest.approx(formula, rel=1e-3)


def test_the_upper_triangle_alone_and_rewards_above_zero_reach_the_joint_sensitivity() -> None:
    assert joint_sensitivity(1.0, 1.0) ** 2 == pytest.approx(4.5)
    x, z = (np.array([math.cos(t), math.sin(t)]) for t in (math.pi / 4 + math.pi / 3, math.pi / 4 - math.pi / 3))
    upper = (np.outer(x, x) - np.outer(z, z))[np.triu_indices(2)]
    assert math.hypot(np.linalg.norm(upper), np.linalg.norm(x - z)) == pytest.approx(math.sqrt(1.5 + 3))


def test_two_releases_by_the_gaussian_distribution() -> None:
    row, sigma = errata_by_key()["ctx-two-releases"], 4 * math.sqrt(2 * math.log(25))
    assert fact(row.key, "^noise as printed") == pytest.approx(sigma)
    least = fact(row.key, "least noise")
    assert is_epsilon_of(1.0, math.sqrt(4.5) / least, DELTA)
    assert row.computed == pytest.approx(sigma / least, rel=1e-9)
    fails = fact(row.key, "fails")
    assert is_epsilon_of(fails, math.sqrt(4.5) * fails / sigma, DELTA)


# The classical constant.


@pytest.mark.parametrize("delta", [0.9, 0.5, 0.1, 0.05, 0.01, 1e-5])
def test_the_classical_constant_fails_once_and_first_between_three_and_nine(delta: float) -> None:
    """The exact δ of σ = cΔ/ε rises with ε on a grid, and passes δ at the computed place."""
    constant = math.sqrt(2 * math.log(1.25 / delta))
    grid = [gaussian(epsilon / constant, epsilon) for epsilon in np.linspace(0.05, 12, 240)]
    assert all(a < b for a, b in itertools.pairwise(grid))
    fails = gaussian_failure(constant, delta)
    assert is_epsilon_of(fails, fails / constant, delta)
    assert 3.78 < fails < 9


def test_the_rows_on_the_classical_constant_show_where_it_fails() -> None:
    for key, delta in (("dlb-theorem-a1-gaussian", 0.25), ("glb-lemma-2.1-gaussian", 0.05)):
        fails = fact(key, "at this δ")
        assert is_epsilon_of(fails, fails / math.sqrt(2 * math.log(1.25 / delta)), delta)
    assert fact("glb-lemma-2.1-gaussian", "1e-5") > fact("glb-lemma-2.1-gaussian", "0.9") > 3.78


# The radius of Lemma A.4 and the noise of Theorem E.3.


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_no_noise_within_its_bounds_needs_more_than_the_derived_radius(share: float) -> None:
    """Spectra of H in [q, 3q], ‖h‖ ≤ share · q, ‖θ*‖ = 1: ‖Hθ* - h‖ in the norm of H⁻¹, over √(2q)."""
    draws, worst, q = np.random.default_rng(4), 0.0, 7.0
    for _ in range(3000):
        basis = np.linalg.qr(draws.standard_normal((3, 3)))[0]
        spectrum = q * draws.choice([1.0, 3.0, draws.uniform(1, 3)], 3)
        theta, h = (v / np.linalg.norm(v) for v in draws.standard_normal((2, 3)))
        if draws.random() < 0.5:  # the worst noise and parameter are along one axis of H
            theta, h = basis[:, 0], -basis[:, 0]
        h = h * share * q
        error = basis.T @ (basis * spectrum @ basis.T @ theta - h)
        worst = max(worst, float(np.sqrt((error**2 / spectrum).sum())) / math.sqrt(2 * q))
    assert worst <= (math.sqrt(3) + share) / math.sqrt(2) * (1 + 1e-12)
    assert worst == pytest.approx((3 + share) / math.sqrt(6), rel=1e-9)
    reached, free = fact("ctx-lemma-a4-radius", "reached"), fact("ctx-lemma-a4-radius", "q_h = 0")
    assert {0.0: free, 1.0: reached}.get(share, worst) == pytest.approx(worst, rel=1e-9)
    assert errata_by_key()["ctx-lemma-a4-radius"].computed == pytest.approx((math.sqrt(3) + 1) / math.sqrt(2))


def test_theorem_e3_from_theorem_b1_at_the_composed_parameters() -> None:
    rounds, batch = 20_000, 20
    many = rounds // batch
    each, delta = 1 / (2 * math.sqrt(2 * many * math.log(2 / DELTA))), DELTA / (2 * many)
    needed = 4 * math.sqrt(2 * math.log(2.5 * batch / delta) * math.log(2 / delta)) / (each * math.sqrt(batch))
    printed = 16 * math.log(2 / DELTA) * math.sqrt(rounds * math.log(5 * rounds / DELTA)) / batch
    assert errata_by_key()["ctx-theorem-e3-logarithm"].computed == pytest.approx(needed / printed)
    assert needed / printed == pytest.approx(1.88, abs=0.005)


# GLB, Propositions 3.1 and 3.2.


def test_the_halves_of_proposition_3_1_by_the_gaussian_distribution() -> None:
    row, sigma = errata_by_key()["glb-proposition-3.1-halves"], 2 * math.sqrt(2 * math.log(1.25e5))
    assert row.computed == pytest.approx(float(gaussian(2 / sigma, 0.5)), rel=1e-9)
    assert fact(row.key, "over ξ") == pytest.approx(4 * math.sqrt(2 * math.log(2.5e5)) / sigma)
    assert fact(row.key, "exact δ") == pytest.approx(float(gaussian(2 / sigma, 1)), rel=1e-9)


def test_the_pair_of_proposition_3_1_moves_by_two_over_sigma() -> None:
    """Search contexts and rewards in their bounds: ‖ΔM‖²/4 + ‖Δu‖², upper triangle without weights, is at most 4."""
    draws, best = np.random.default_rng(5), 0.0
    for _ in range(20_000):
        x, z = (v / max(1.0, float(np.linalg.norm(v))) for v in 3 * draws.standard_normal((2, 2)))
        r, s = draws.choice([-1.0, 1.0, draws.uniform(-1, 1)], 2)
        upper = (np.outer(x, x) - np.outer(z, z))[np.triu_indices(2)]
        best = max(best, math.sqrt((upper @ upper) / 4 + ((r * x - s * z) ** 2).sum()))
    assert 1.99 < best <= 2 + 1e-12
    assert fact("glb-proposition-3.1-halves", "over 2/σ") == pytest.approx(1)


def test_the_second_gradient_after_a_first_step_that_is_played() -> None:
    """Draw Lemma 2.2's answer to a first gradient: θ̂₁ has one length, and the second gradient is longer than R = 2."""
    draws, row = np.random.default_rng(6), errata_by_key()["glb-proposition-3.2-radius"]
    length = 2 * math.sqrt(math.pi) / 2 * (math.e + 1) / (math.e - 1) * 2 * math.gamma(1.5) / math.gamma(2)
    x = np.array([1.0, 0.0])
    for reward in (-1.0, 0.5, 1.0):
        gradient = (0 - reward) * x
        sign = 1 if draws.random() < 0.5 + np.linalg.norm(gradient) / 4 else -1
        ahead = draws.random() < math.e / (1 + math.e)
        z = draws.standard_normal(2)
        z *= length / np.linalg.norm(z)
        z = z if (z @ (sign * gradient) > 0) == ahead else -z
        theta = -2 * z  # η₁ = c'd/(κ_l ζ p_*), at least 2
        assert np.linalg.norm(theta) == pytest.approx(fact(row.key, "length of θ̂₁"))
        along = theta / np.linalg.norm(theta)
        second = (along @ theta + 1) * along
        assert np.linalg.norm(second) / 2 == pytest.approx(row.computed)
        assert 0.5 + np.linalg.norm(second) / 4 == pytest.approx(fact(row.key, "chance"))
        projected = theta / np.linalg.norm(theta)
        assert abs(along @ projected + 1) / 2 <= row.ours * (1 + 1e-12)


# GLB, Section 4.


def test_the_steps_of_theorem_4_1_by_running_the_recursion() -> None:
    row, curvature = errata_by_key()["glb-theorem-4.1-step"], mpf(1) / 20
    kept, proof = mpf(1), mpf(1)
    for t in range(1001, 91_001):
        kept *= 1 - 2 * curvature * (curvature / t)
        proof *= 1 - 2 * curvature * (1 / (curvature * t))
    assert row.computed == pytest.approx(float(kept), rel=1e-9)
    assert row.ours == pytest.approx(float(proof), rel=1e-9)
    assert row.claimed == pytest.approx(1000 * 999 / (91_000 * 90_999))
    assert fact(row.key, "arm 1") == pytest.approx((0.05 / 1) / (1 / (0.5 * 1000)))


def test_a_curvature_of_the_arms_is_at_most_its_share() -> None:
    """The least eigenvalue of E XXᵀ 1{X ∈ U_i} on the circle, ten arms: at most 1/20, whatever the arms."""
    draws = np.random.default_rng(7)
    contexts = draws.standard_normal((50_000, 2))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    for _ in range(5):
        best = np.argmax(contexts @ draws.standard_normal((2, 10)), axis=1)
        each = [contexts[best == arm].T @ contexts[best == arm] / len(contexts) for arm in range(10)]
        assert min(float(np.linalg.eigvalsh(one)[0]) for one in each) <= 1 / 20


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_blocks_of_two_arms_have_the_ratio_of_one(epsilon: float) -> None:
    """Densities of Lemma 2.2 from its two coins, on every pair of half-spheres, for all lengths of both gradients."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))

    def density(share: float, side: int) -> float:
        along = (0.5 + share / 2) * p + (0.5 - share / 2) * (1 - p)
        return 2 * (along if side > 0 else 1 - along)

    lengths, sides = np.linspace(0, 1, 11), (-1, 1)
    all_of = list(itertools.product(lengths, lengths, sides, sides))
    apart = max(density(a, s) * density(0, t) / (density(0, s) * density(b, t)) for a, b, s, t in all_of)
    same = max(density(a, s) / density(b, t) for a, b, s, t in all_of)
    assert math.log(apart) == pytest.approx(epsilon)
    assert math.log(same) == pytest.approx(epsilon)
    assert glb._blocks_epsilon(epsilon) == pytest.approx(epsilon)
    row = errata_by_key()["glb-propositions-4-composition"]
    assert row.computed == pytest.approx(2)
    assert row.ours == pytest.approx(1)


def test_product_sets_tell_two_arms_apart_less_than_all_sets() -> None:
    """Masses of cells of a grid: the best set takes the cells that gain; the best A₁ × A₂ is climbed to in turns."""
    row, edges = errata_by_key()["glb-equation-b1-sets"], np.linspace(-7, 8, 301)
    zero, one = (np.diff(stats.norm(mean).cdf(edges)) for mean in (0, 1))
    gain = np.outer(one, zero) - math.e * np.outer(zero, one)
    assert row.computed == pytest.approx(np.maximum(gain, 0).sum(), rel=1e-3)
    draws, best = np.random.default_rng(10), 0.0
    for _ in range(50):
        columns = draws.random(300) < 0.5
        for _ in range(100):
            rows = gain[:, columns].sum(axis=1) > 0
            columns = gain[rows].sum(axis=0) > 0
        best = max(best, float(gain[np.ix_(rows, columns)].sum()))
    assert row.claimed == pytest.approx(best, rel=1e-3)
    assert row.claimed < row.computed


def test_the_gaussian_blocks_of_two_arms_move_by_two_and_those_of_one_by_more() -> None:
    """Contexts and rewards of two clients that pull different arms: each arm's block appears or vanishes."""
    draws, best = np.random.default_rng(8), 0.0
    for _ in range(5000):
        blocks = np.zeros((2, 2, 3, 4))
        for client in range(2):
            x = draws.standard_normal(3)
            x /= max(1.0, float(np.linalg.norm(x)))
            x = x / np.linalg.norm(x) if draws.random() < 0.5 else x
            reward = draws.choice([-1.0, 1.0, draws.uniform(-1, 1)])
            blocks[client, client] = np.column_stack((np.outer(x, x), reward * x))
        best = max(best, float(np.linalg.norm(blocks[0] - blocks[1])))
    key = "glb-section-4.1-halved"
    assert best == pytest.approx(fact(key, "different arms"))
    assert best < fact(key, "same arm") == pytest.approx(math.sqrt(4.5))


def test_the_ols_blocks_as_printed_by_the_gaussian_distribution() -> None:
    key, sigma = "glb-propositions-4-composition", 2 * math.sqrt(2 * math.log(1.25e5))
    assert is_epsilon_of(fact(key, "different arms"), math.sqrt(2.5) / sigma, 1e-5)
    assert is_epsilon_of(fact(key, "same arm"), 2 / sigma, 1e-5)


def test_what_halving_costs_by_the_gaussian_distribution_and_the_sphere() -> None:
    key = "glb-section-4.1-halved"
    with mpmath.workdps(30):
        whole, half = (
            mpmath.findroot(lambda r, e=e, d=d: gaussian(r, e) - d, e / 4) for e, d in ((1, 1e-5), (0.5, 5e-6))
        )
    assert errata_by_key()[key].computed == pytest.approx(float(whole / half), rel=1e-8)
    odds = [(math.exp(e) + 1) / (math.exp(e) - 1) for e in (0.5, 1.0)]
    assert fact(key, "SGD") == pytest.approx(odds[0] / odds[1])


# GLB, the published code.


def test_the_baselines_have_a_tenth_of_their_epsilon() -> None:
    row, sigma = errata_by_key()["glb-section-5-baselines"], 6 * math.sqrt(2 * math.log(250))
    assert is_epsilon_of(fact(row.key, "exact ε"), math.sqrt(4.5) / sigma, 0.01)
    assert fact(row.key, "exact ε") == pytest.approx(0.10, abs=0.005)
    assert is_epsilon_of(1.0, math.sqrt(4.5) * row.computed / sigma, 0.01)


def test_the_three_releases_of_gloc_move_by_no_more_than_the_bound() -> None:
    """Search contexts, parameters and labels: (xxᵀ, zx, (μ(z) - r)x), z = xᵀθ, logistic μ."""
    draws, best = np.random.default_rng(9), 0.0
    for _ in range(20_000):
        theta = draws.standard_normal(2)
        theta /= max(1.0, float(np.linalg.norm(theta)))
        parts = []
        for _ in range(2):
            x = draws.standard_normal(2)
            x /= np.linalg.norm(x)
            z, label = float(x @ theta), draws.choice([0.0, 1.0])
            parts.append(np.column_stack((np.outer(x, x), z * x, (1 / (1 + math.exp(-z)) - label) * x)))
        best = max(best, float(np.linalg.norm(parts[0] - parts[1])))
    assert 1 < best <= joint_sensitivity(1.0, math.sqrt(2))
    sigma = 6 * math.sqrt(2 * math.log(250))
    assert is_epsilon_of(fact("glb-section-5-baselines", "GLOC"), math.sqrt(8) / sigma, 0.01)
