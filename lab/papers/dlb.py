"""Computes errata of DLB (Li, Zhou & Ji, DP-DPE): Gaussian noise; the appendix's ranges, roundings, variances."""

import math

import numpy as np

from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at, hockey_stick
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.law import Pmf
from distrust.lab.papers.erratum import Figures, classical_gaussian, planned


def _theorem_a1_gaussian() -> Figures:
    return classical_gaussian(epsilon=10.0, delta=0.25)


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
