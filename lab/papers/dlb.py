"""Computes errata of DLB (Li, Zhou & Ji, DP-DPE): Gaussian noise; the appendix's ranges, roundings, variances."""

import math
from functools import partial

import numpy as np

from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at, hockey_stick
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.law import Pmf
from distrust.lab.papers.erratum import Erratum, Figures, classical_gaussian, planned


def _theorem_c6_delta() -> Figures:
    return Figures(setting="Theorem C.6", claimed=0.5, computed=1.0, ours=0.0)


def _lemma_c5_logarithm() -> Figures:
    delta = 0.4
    return Figures(
        setting=f"δ = {delta}, the smallest b",
        claimed=0.5,
        computed=math.log(2 / delta) / (2 * math.log(1 / delta)),
        ours=math.log(2 / delta) / (2 * math.log(2 / delta)),
        facts=(("p at δ = 0.6", math.log(2 / 0.6) / (2 * math.log(1 / 0.6))),),
    )


def _lemma_c5_grid() -> Figures:
    clients, epsilon, delta = 100, 1.0, 1e-6
    half = epsilon / 2
    coins = math.ceil(180 * math.log(2 / delta) / (half**2 * clients))
    exact = epsilon_at(Binomial(clients * coins, 0.5).pmf(), 1, delta)
    mechanism = planned("shuffled-binomial", clients, epsilon, delta=delta, bound=0.01, calibration="paper")
    return Figures(
        setting=f"B = 0.01, n = {clients}, ε = {epsilon:g}, δ = {delta:g}, g = 1 > 2B√n",
        claimed=epsilon,
        computed=half * (2 / 1 + 1),
        ours=half * (2 / mechanism.precision + 1),
        facts=(("exact ε of the law at g = 1: the constants hide the slip", exact),),
    )


def _algorithm_2_grid() -> Figures:
    grid = math.sqrt(150)
    return Figures(
        setting="s = 150, |U| = 1000, ε = 1, δ = 1e-6: g = √s",
        claimed=0.0,
        computed=grid - math.floor(grid),
        ours=math.fmod(math.ceil(grid), 1),
    )


def _theorem_a2_variance() -> Figures:
    # Step (a) of the proof: 2|U|/g² is at most 360 ln(4s/δ)/ε̂², not 180.
    exact = _normalized_variance(10.0, 0.1)
    return Figures(
        setting="s = 1, ε = 10, δ = 0.1, |U| = 660 000, worst rounding",
        claimed=1.0,
        computed=exact / 360,
        ours=exact / 540,
        facts=(
            ("Var ε²|U|²/(Δ² ln(4/δ)), a constant by O(·), at 1e-12 over 1e-3", _order(1e-12) / _order(1e-3)),
            ("ln(2/δ) at 1e-12 over 1e-3", math.log(2e12) / math.log(2e3)),
        ),
    )


def _normalized_variance(epsilon: float, delta: float, clients: int = 660_000) -> float:
    """Return Var |U|² ε̂² / (Δ² ln(4s/δ)) of one coordinate, s = 1: 4/g² times the sums' variances."""
    hat, spread = epsilon / (18 * math.sqrt(math.log(2 / delta))), math.log(4 / delta)
    grid = math.ceil(max(hat * math.sqrt(clients) / (6 * math.sqrt(5 * spread)), 10))
    ones = 90 * grid**2 * spread / (hat**2 * clients)
    coins = math.ceil(2 * ones)
    variance = clients / 4 + clients * ones * (1 - ones / coins)
    return 4 / grid**2 * variance * hat**2 / spread


def _order(delta: float) -> float:
    """Return Var ε²|U|²/(Δ² ln(4/δ)) for 1000 clients, ε = 1."""
    return _normalized_variance(1.0, delta, 1000) * 324 * math.log(2 / delta)


def _definitions() -> Figures:
    # Uniform noise on N values, shifted by N: every outcome is rare, and every outcome tells the neighbours apart.
    size = 10**6
    uniform = Pmf(0, np.full(size, -math.log(size)), 0.0)
    return Figures(
        setting=f"uniform noise on {size:,} integers, neighbours shift it by {size:,}; ε = 0",
        claimed=float(uniform.masses[0]),
        computed=hockey_stick(uniform, size, 0.0),
        ours=hockey_stick(uniform, 1, 0.0),
    )


def _theorem_c4_subscript() -> Figures:
    sigma = 2 * math.sqrt(2 * math.log(1.25 / 1e-6))
    return Figures(setting="B = 1, ε = 1, δ = 1e-6", claimed=sigma, computed=sigma, ours=sigma)


ERRATA = (
    Erratum(
        key="dlb-theorem-a1-gaussian",
        paper="DLB",
        place="Theorem A.1",
        printed="σ = Δ₂√(2 ln(1.25/δ))/ε ensures (ε, δ)-DP",
        wrong="proven for ε < 1 only, which neither the theorem nor its uses say",
        verdict="refuted",
        measure="exact δ at that ε",
        instead="the analytic Gaussian mechanism: the least σ whose exact δ holds",
        code="common/dp/mechanisms/central/additive.py",
        figures=partial(classical_gaussian, epsilon=10.0, delta=0.25),
    ),
    Erratum(
        key="dlb-theorem-a2-variance",
        paper="DLB",
        place="Theorem A.2",
        printed="Var ≤ 360Δ² ln(4s/δ)/(|U|²ε̂²) = O(Δ² ln(s/δ)/(ε²|U|²))",
        wrong="g gives 540; ε̂² = ε²/(324 ln(2/δ)) brings a logarithm that O(·) drops; one line has ε for ε²",
        verdict="refuted",
        measure="exact variance over the printed bound",
        instead="the noise's exact law; its variance is n'b/4 for fair coins",
        code="common/dp/mechanisms/shuffled/binomial.py",
        figures=_theorem_a2_variance,
    ),
    Erratum(
        key="dlb-algorithm-2-grid",
        paper="DLB",
        place="Algorithm 2, eq. (22)",
        printed="g = max{ε̂√|U|/(6√(5 ln(4s/δ))), √s, 10}, and g + b bits",
        wrong="g counts steps and bits, and is no integer",
        verdict="misprint",
        measure="fraction of a bit that a client sends",
        instead="⌈g⌉; fields of a mechanism that count are integers",
        code="common/dp/mechanisms/families/base.py",
        figures=_algorithm_2_grid,
    ),
    Erratum(
        key="dlb-lemma-c5-logarithm",
        paper="DLB",
        place="Lemma C.5",
        printed="b > 180g² ln(1/δ)/(ε̂²n) and p = 90g² ln(2/δ)/(bε̂²n), with p ∈ (0, 1/2) in Algorithm 4",
        wrong="the smallest such b has p = ½ ln(2/δ)/ln(1/δ), which is above 1/2 for every δ, and above 1 for δ > 1/2",
        verdict="misprint",
        measure="p, a probability of at most 1/2",
        instead="ln(2/δ) in both, as in (60)",
        code="common/dp/mechanisms/shuffled/binomial.py",
        figures=_lemma_c5_logarithm,
    ),
    Erratum(
        key="dlb-lemma-c5-grid",
        paper="DLB",
        place="Lemma C.5, Algorithm 4",
        printed="g > B√n (C.5) or g > 2B√n (60), and ε = 2ε̂ is (ε, δ)-SDP",
        wrong="C.5 gives ε̂(2/g + 1), so that g must be an integer of at least 2; the range is 2B wide, not B",
        verdict="unproved",
        measure="ε that the lemma gives",
        instead="g = max(2, ⌈(high - low)√t⌉), and the released law is checked in any case",
        code="common/dp/mechanisms/shuffled/binomial.py",
        figures=_lemma_c5_grid,
    ),
    Erratum(
        key="dlb-theorem-c6-delta",
        paper="DLB",
        place="Theorems A.2, C.6",
        printed="δ ∈ (1, 1/2) in C.6, δ ∈ (0, 1) in A.2",
        wrong="the first is empty, the second reaches beyond Cheu et al.'s (0, 1/2), on which both rest",
        verdict="misprint",
        measure="lower end of the range of δ, to be below its upper end 1/2",
        instead="δ ∈ [1e-18, 1/2), anything else is refused: below it the laws' truncation would be felt",
        code="common/dp/mechanisms/families/base.py",
        figures=_theorem_c6_delta,
    ),
    Erratum(
        key="dlb-definitions",
        paper="DLB",
        place="C.2.2, C.2.3",
        printed="P[M(D) = z] ≤ e^ε P[M(D') = z] + δ for any outcome z",
        wrong="with δ > 0 the inequality must hold for every set of outcomes",
        verdict="refuted",
        measure="δ over sets",
        instead="hockey-stick divergence: the supremum over sets; such noise passes at δ = 1e-6 for a shift of 1 only",
        code="common/dp/accounting/techniques/hockey_stick.py",
        figures=_definitions,
    ),
    Erratum(
        key="dlb-theorem-c4-subscript",
        paper="DLB",
        place="Theorem C.4",
        printed="σ_n = 2dσ_nc√(2s/h) for the local model",
        wrong="σ_nl; both are 2B√(2 ln(1.25/δ))/ε here, so that the number is right",
        verdict="harmless",
        measure="standard deviation of the noise",
        instead="nothing to change",
        code="common/dp/mechanisms/local/additive.py",
        figures=_theorem_c4_subscript,
    ),
)
