"""CTX: binomial bits for vectors."""

import math

from common.accounting import epsilon_at, hockey_stick
from common.gaussian_accounting import gaussian_epsilon
from common.mechanisms.frame import least
from common.noise import Binomial
from lab.errata.erratum import Erratum
from lab.errata.ours import epsilon_of, planned

BATCH, DIMENSION = 20, 5
GRID = math.ceil(2 * math.sqrt(BATCH))  # max{2√B, d, 4}


def algorithm_5() -> Erratum:
    """[0, 2Δ] on a grid for [0, Δ]."""
    epsilon, delta = 1.0, 1e-6
    coins = _fewest(epsilon, delta)
    law = Binomial(BATCH * coins, 0.5).pmf()
    return Erratum(
        key="ctx-algorithm-5-shift",
        paper="CTX",
        place="Algorithms 5, 7",
        printed="w = x + Δ is sent by R*(w, Δ), whose domain is [0, Δ]",
        wrong="w lies in [0, 2Δ]: x̂ reaches 2g, the sum moves by 2g, and g + b - x̂ - γ₂ zeros may be fewer than none",
        verdict="refuted",
        setting=f"B = {BATCH}, g = {GRID}, {coins} fair bits: the fewest for ε = 1, δ = {delta:g} and a shift of g",
        measure="exact ε at that δ",
        claimed=epsilon,
        computed=epsilon_at(law, 2 * GRID, delta),
        ours=epsilon_of(planned("shuffled-binomial", BATCH, epsilon, delta=delta, bound=1.0)),
        instead="the grid spans [low, high]: 2Δ in R* and in A*",
        code="common/mechanisms/lattice.py",
        facts=(
            ("bias of a sum of B values Δ/2 if x̂ is clamped to g instead, in units of Δ", -0.5 * BATCH),
            ("ε at the printed constants and a shift of 2g: they hide the slip", _printed_epsilon(epsilon, delta)),
        ),
    )


def theorem_c1() -> Erratum:
    """Constants for a proof, not for a plot."""
    epsilon, delta = 0.2, 0.1
    made = planned("shuffled-binomial", BATCH, epsilon, delta=delta)
    return Erratum(
        key="ctx-theorem-c1-constants",
        paper="CTX",
        place="Theorem C.1, Figure 1",
        printed="p = 1/4, b = 24·10⁴ g² ln²(4(d²+1)/δ)/(ε²B)",
        wrong="no plot with B = 20 can have used them: the noise is hundreds of times the sum",
        verdict="slack",
        setting=f"B = {BATCH}, d = {DIMENSION}, ε = {epsilon}, δ = {delta}, values in [0, 1]",
        measure="standard deviation of the noise in a sum of at most 20",
        claimed=float(BATCH),
        computed=_printed_std(epsilon, delta),
        ours=made.error(BATCH).std,
        instead="the fewest fair bits whose exact (ε, δ) holds, here for one coordinate alone",
        code="common/mechanisms/shuffled_binomial.py",
        facts=(
            ("bits a client and coordinate, as printed", GRID + _printed_bits(epsilon, delta)),
            ("ours", float(made.bits)),
        ),
    )


def _printed_bits(epsilon: float, delta: float) -> float:
    spread = math.log(4 * (DIMENSION**2 + 1) / delta)
    return 24e4 * GRID**2 * spread**2 / (epsilon**2 * BATCH)


def _printed_std(epsilon: float, delta: float) -> float:
    return math.sqrt(BATCH * _printed_bits(epsilon, delta) * 3 / 16) / GRID


def _printed_epsilon(epsilon: float, delta: float) -> float:
    """Of Bin(Bb, 1/4), by its Gaussian: so many bits that no table could hold their law; and no claim rests on it."""
    return gaussian_epsilon(2 / _printed_std(epsilon, delta), delta)


def _fewest(epsilon: float, delta: float) -> int:
    """Fair bits a client."""
    return least(lambda b: hockey_stick(Binomial(BATCH * b, 0.5).pmf(), GRID, epsilon) <= delta, 8)
