"""Tests the counter-examples to the papers' errors against other libraries, many digits and closed forms."""

import math
from collections.abc import Callable
from functools import cache

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import stats
from scipy.special import ive

from distrust.lab.papers.errata import checked_errata
from distrust.lab.papers.erratum import CheckedErratum


@cache
def errata_by_key() -> dict[str, CheckedErratum]:
    return {erratum.key: erratum for erratum in checked_errata()}


def near(key: str, expected: float, rel: float = 1e-9) -> None:
    assert errata_by_key()[key].computed == pytest.approx(float(expected), rel=rel)


def test_survivors_by_summing_two_negative_binomials() -> None:
    r, beta, g = mpf("0.9"), mpmath.exp(mpf(-1) / 32), 32
    masses = [mpf(1)]
    for x in range(4000):
        masses.append(masses[-1] * beta * (x + r) / (x + 1))
    at_zero = mpmath.fsum(m * m for m in masses)
    at_g = mpmath.fsum(a * b for a, b in zip(masses, masses[g:], strict=False))
    near("mab-theorem-1-survivors", mpmath.log(at_zero / at_g))


def test_wrapped_sums_by_adding_masses() -> None:
    right = mpf(1)
    for b in range(1, 17):
        n = 2**b
        g = math.ceil(math.sqrt(n))
        tau = math.ceil(g * math.log(2e6))
        beta = mpmath.exp(mpf(-1) / g)
        wrong = mpmath.tanh(mpf(1) / (2 * g)) * (beta ** (tau + 1) + beta ** (n * g + tau + 1)) / (1 - beta)
        right *= (1 - wrong) ** 10
    near("mab-theorem-1-tau", (1 - right) * 10**6)


def test_skellam_without_g_by_bessel_functions() -> None:
    k = np.arange(-80, 81)
    p, q = ive(np.abs(k), 1.0), ive(np.abs(k - 10), 1.0)
    near("mab-theorem-2-noise", math.log(np.sum(p**2 / q)))


def test_the_lost_epsilon_of_theorem_2_leaves_the_law_below_both_bounds() -> None:
    one = errata_by_key()["mab-theorem-2-last-term"]
    with mpmath.workdps(60):
        bessel = [mpmath.besseli(k, 100) for k in range(401)]
        terms = (bessel[abs(k)] ** 64 * bessel[abs(k - 1)] ** -63 for k in range(-399, 400))
        exact = (mpmath.log(mpmath.fsum(terms)) - 100) / 63
    assert one.ours == pytest.approx(float(exact), rel=1e-8)
    assert one.claimed == pytest.approx(0.32 + min(127 * 0.01 / 400 + 0.3 / 2000, 0.03 / 20))
    near("mab-theorem-2-last-term", 0.32 + min((127 + 6) / 4 * 1e-4, 1.5 * 0.01))


def test_theorem_3_by_hand() -> None:
    near("mab-theorem-3-scale", 50 / 9 + 0.5)
    assert errata_by_key()["mab-theorem-3-scale"].facts[0][1] == pytest.approx(1.5)


def gaussian_sum(variance: float, terms: int) -> list[mpf]:
    one = [mpmath.exp(-(mpf(k) ** 2) / (2 * mpf(variance))) for k in range(-12, 13)]
    law = [mpf(1)]
    for _ in range(terms):
        law = [
            mpmath.fsum(law[i - j] * one[j] for j in range(len(one)) if 0 <= i - j < len(law))
            for i in range(len(law) + len(one) - 1)
        ]
    total = mpmath.fsum(law)
    return [mass / total for mass in law]


def test_a_sum_of_discrete_gaussians_hides_less_than_its_epsilon() -> None:
    with mpmath.workdps(40):
        law, order = gaussian_sum(1.0, 2), mpf(1.01)
        total = mpmath.fsum(p**order * q ** (1 - order) for p, q in zip(law[1:], law, strict=False))
        exact = mpmath.log(total) / (order - 1) / order / mpf("0.25")
    assert exact > 1
    assert errata_by_key()["mab-theorem-4-hat"].facts[0][1] == pytest.approx(float(exact - 1), rel=1e-4)


def test_lemma_4_by_convolution_in_doubles() -> None:
    one = np.exp(-(np.arange(-8, 9) ** 2) / 0.5)
    law = np.ones(1)
    for _ in range(100):
        law = np.convolve(law, one / one.sum())
    law = law[law > 1e-13]
    divergence = math.log(np.sum(law[1:] ** 1.01 * law[:-1] ** -0.01)) / 0.01 / 1.01
    xi = 10 * math.fsum(math.exp(-(math.pi**2) / 2 * k / (k + 1)) for k in range(1, 100))
    near("mab-lemma-4-slack", math.sqrt(0.04 + xi / 2) / math.sqrt(2 * divergence), rel=1e-3)


def test_a_thousand_laplace_variables_by_negative_binomials() -> None:
    n, g = 1024, 32
    tau = math.ceil(g * math.sqrt(2 * n * math.log(2000)))
    half = stats.nbinom(n, -math.expm1(-1 / g))
    j = np.arange(int(half.ppf(1e-16)), int(half.isf(1e-16)))
    near("mab-theorem-6-constant", 2 * np.sum(half.pmf(j) * half.sf(j + tau)), rel=1e-6)


def test_the_union_bound_term_by_term() -> None:
    per_arm = sum(mpf(1) / 2 / b**2 + mpf(2) / b**2 for b in range(1, 2000))
    rest = 2.5 / mpf(1999.5)  # Σ over b ≥ 2000, to 1e-7
    near("mab-lemma-2", per_arm + rest, rel=1e-6)


def test_a_rate_for_a_scale_by_integrating_the_mixture() -> None:
    beta = mpmath.exp(mpf(-1) / 32)
    rate = beta / (1 - beta)
    zero, one = (mpmath.quad(lambda x, k=k: rate * mpmath.exp(-(rate + 1) * x) * x**k, [0, 0.1, 1, 4]) for k in (0, 1))
    near("mab-footnote-3", 32 * mpmath.log(zero / one))


def delta_of(epsilon: mpf, ratio: mpf) -> mpf:
    near_side = mpmath.ncdf(ratio / 2 - epsilon / ratio)
    return near_side - mpmath.exp(epsilon) * mpmath.ncdf(-ratio / 2 - epsilon / ratio)


def bisected(rising: Callable[[mpf], mpf], low: mpf, high: mpf) -> mpf:
    assert rising(low) < 0 < rising(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return high


@pytest.mark.parametrize(
    ("key", "epsilon", "delta"), [("dlb-theorem-a1-gaussian", 10, "0.25"), ("glb-lemma-2.1-gaussian", 8, "0.05")]
)
def test_the_classical_sigma_beyond_one(key: str, epsilon: int, delta: str) -> None:
    sigma = mpmath.sqrt(2 * mpmath.log(mpf("1.25") / mpf(delta))) / epsilon
    near(key, delta_of(mpf(epsilon), 1 / sigma))


def test_the_contexts_of_ols_reach_the_shift_that_is_claimed() -> None:
    """The largest shift over all angles of two contexts of length 5, whose xxᵀ differ along the axes only."""
    sigma, worst = 2 * math.sqrt(2 * math.log(1.25e5)), 0.0
    for half in np.linspace(0, math.pi / 2, 2001):
        x = 5 * np.array([math.cos(math.pi / 4 + half / 2), math.sin(math.pi / 4 + half / 2)])
        y = 5 * np.array([math.cos(math.pi / 4 - half / 2), math.sin(math.pi / 4 - half / 2)])
        upper = np.triu(np.outer(x, x) - np.outer(y, y)) / (10 * sigma)
        worst = max(worst, math.hypot(np.linalg.norm(upper), np.linalg.norm(x + y) / (5 * sigma)))
    with mpmath.workdps(30):
        exact = bisected(lambda e: mpf("1e-5") - delta_of(e, mpf(worst)), mpf("1.4"), mpf("1.6"))
    near("glb-ols-scale", exact, rel=1e-5)


def test_the_variance_of_algorithm_2() -> None:
    hat, spread, n = 10 / (18 * math.sqrt(math.log(20))), math.log(40), 660_000
    g = math.ceil(hat * math.sqrt(n) / (6 * math.sqrt(5 * spread)))
    b = math.ceil(180 * g**2 * spread / (hat**2 * n))
    noise = n * stats.binom(b, 90 * g**2 * spread / (b * hat**2 * n)).var() + n * 0.25
    near("dlb-theorem-a2-variance", noise * (2 / (g * n)) ** 2 / (360 * spread / (n * hat) ** 2))


def test_the_grid_of_150_coordinates_is_no_integer() -> None:
    hat = 1 / (18 * math.sqrt(math.log(2e6)))
    g = max(hat * math.sqrt(1000) / (6 * math.sqrt(5 * math.log(600e6))), math.sqrt(150), 10)
    near("dlb-algorithm-2-grid", g - 12)


def test_the_other_constants_of_dlb_by_hand() -> None:
    near("dlb-lemma-c5-logarithm", math.log(5) / math.log(2.5) / 2)
    near("dlb-lemma-c5-grid", 0.5 * 3)
    near("dlb-definitions", 1.0)


def test_swapped_noise_by_the_gaussian_distribution() -> None:
    with mpmath.workdps(30):
        ratio = bisected(lambda r: delta_of(mpf(1), r) - mpf("1e-5"), mpf("0.1"), mpf("0.5"))
        wrong = ratio * mpmath.sqrt(2)
        exact = bisected(lambda e: mpf("1e-5") - delta_of(e, wrong), mpf(1), mpf(2))
    near("ctx-algorithm-2-swap", exact)


def test_theorem_b1_by_its_own_lemma() -> None:
    n, epsilon, delta = 1000, mpf("0.01"), mpf("0.1")
    local = epsilon * mpmath.sqrt(n / mpmath.log(2 / delta))
    assert local <= mpmath.log(n / (16 * mpmath.log(4 / delta)))
    power = mpmath.exp(local)
    root = 8 * mpmath.sqrt(power * mpmath.log(8 / delta)) / mpmath.sqrt(n)
    given = mpmath.log(1 + (power - 1) / (power + 1) * (root + 8 * power / n))
    near("ctx-theorem-b1-epsilon", given / epsilon)
    near("ctx-theorem-b1-delta", mpf("0.5") + (mpmath.exp(given) + 1) * (1 + 1 / power / 2))
    near("ctx-theorem-b1-range", 16 * mpmath.log(40))


def test_the_mis_shifted_bits_lose_their_epsilon() -> None:
    one = errata_by_key()["ctx-algorithm-5-shift"]
    law = stats.binom(20 * 290, 0.5)
    k = np.arange(-18, 5801)

    def delta(epsilon: float) -> float:
        return float(np.maximum(law.pmf(k) - math.exp(epsilon) * law.pmf(k - 18), 0).sum())

    assert delta(one.computed * (1 - 1e-6)) > 1e-6 >= delta(one.computed * (1 + 1e-6))
    assert "290 fair bits" in one.setting


def test_the_other_constants_of_ctx_by_hand() -> None:
    near("ctx-theorem-c1-constants", math.sqrt(24e4 * 3 / 16) * math.log(1040) / 0.2)
    near("ctx-theorem-e3-logarithm", math.sqrt(math.log(40_000) / math.log(20)))


def test_the_tail_of_a_hundred_laplace_variables_in_closed_form() -> None:
    """P(G - G' ≥ t) = Σ_k E[(t + G')ᵏ e^(-t-G')]/k! for Gamma(n) variables, with exact moments."""
    n, t = 100, mpf(60)
    with mpmath.workdps(60):
        moment = [mpmath.gamma(n + j) / mpmath.gamma(n) / mpf(2) ** (n + j) for j in range(n)]
        total = mpmath.fsum(
            mpmath.binomial(k, j) * t ** (k - j) * moment[j] / mpmath.factorial(k)
            for k in range(n)
            for j in range(k + 1)
        )
        near("free-lemma-4c", total * mpmath.exp(-t) / mpmath.exp(-18), rel=1e-8)


def test_the_closed_form_is_several_times_the_truth_of_randomized_response() -> None:
    """Shuffled randomized response has δ ≤ 1e-6 at the ε of the clones bound, and not at a tenth of the form's ε."""
    form, clones = (value for _, value in errata_by_key()["free-equation-10-slack"].facts)
    n, p = 1000, 1 / (1 + math.exp(-1))
    k = np.arange(n + 1)
    others = stats.binom(n - 1, 1 - p)
    one, zero = (q * others.pmf(k - 1) + (1 - q) * others.pmf(k) for q in (p, 1 - p))
    assert np.maximum(one - math.exp(clones) * zero, 0).sum() <= 1e-6
    assert np.maximum(one - math.exp(form / 10) * zero, 0).sum() > 1e-6
    near("free-equation-10-slack", form / clones)
    root = 8 * math.sqrt(math.e * math.log(4e6)) / math.sqrt(1000) + 8 * math.e / 1000
    assert form == pytest.approx(math.log(1 + math.tanh(0.5) * root))


def test_the_other_claims_of_free_by_hand() -> None:
    near("free-sensitivity", 2.0)
    local = errata_by_key()["free-equation-10-range"].facts[0][1]
    root = 8 * math.sqrt(math.exp(local) * math.log(4e6)) / 10 + 8 * math.exp(local) / 100
    assert math.log(1 + (math.exp(local) - 1) / (math.exp(local) + 1) * root) == pytest.approx(1.0)
    one = errata_by_key()["free-theorem-3-crowd"]
    scale = 1 / one.facts[0][1]  # of the noise; a reward moves by 1, as FREE counts
    gain = mpmath.quad(
        lambda x: mpmath.exp(-abs(x) / scale) - mpmath.exp(one.computed - abs(x - 1) / scale),
        [-40 * scale, 0, (1 - one.computed * scale) / 2],
    )
    assert float(gain / (2 * scale)) == pytest.approx(1e-6, rel=1e-3)
