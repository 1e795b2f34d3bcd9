"""Computes errata of CTX, shuffle private linear contextual bandits: amplified Gaussian noise, binomial bits."""

import math

from scipy.optimize import brentq

from distrust.common.dp.accounting.techniques.amplification.clones import clones_epsilon
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, largest_ratio
from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at, hockey_stick
from distrust.common.dp.accounting.techniques.searches import least_satisfying
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.accounting.techniques.vector_bounds import vector_epsilon
from distrust.common.dp.noise.binomial import Binomial
from distrust.lab.papers.ctx_linucb import joint_sensitivity
from distrust.lab.papers.erratum import Figures, amplified, epsilon_of, planned

CLIENTS, EPSILON, DELTA = 1000, 0.01, 0.1  # ε₀ = 0.18, inside the theorem's range
BATCH, DIMENSION = 20, 5
GRID = math.ceil(2 * math.sqrt(BATCH))  # max{2√B, d, 4}
USED = (0.2, 1.0, 10.0)  # ε of Figure 1


def _algorithm_2_swap() -> Figures:
    vector, matrix, delta = 2.0, math.sqrt(2), 1e-5
    ratio = largest_ratio(1.0, delta)
    return Figures(
        setting=f"each noise exact for its own query at ε = 1, δ = {delta:g}, then swapped",
        claimed=1.0,
        computed=gaussian_epsilon(ratio * vector / matrix, delta),
        ours=gaussian_epsilon(ratio, delta),
        facts=(("ε of the matrix", gaussian_epsilon(ratio * matrix / vector, delta)),),
    )


def _theorem_b1_epsilon() -> Figures:
    local, _ = _printed()
    return Figures(
        setting=f"B = {CLIENTS}, ε = {EPSILON}, δ = {DELTA}",
        claimed=1.0,
        computed=amplified(local, DELTA / 2, CLIENTS) / EPSILON,
        ours=amplified(_repaired(), DELTA / 2, CLIENTS) / EPSILON,
        facts=(
            ("ε₀ as printed", local),
            ("ε₀ that the lemma allows for ε", _repaired()),
            ("least factor in the range of lemma and theorem, at ε₀ → 0, B → ∞", _limit(0.0)),
            ("largest, at ε₀ = 1, B → ∞", _limit(1.0)),
        ),
    )


def _theorem_b1_delta() -> Figures:
    local, epsilon = _printed()
    return Figures(
        setting=f"B = {CLIENTS}, ε = {EPSILON}, δ = {DELTA}",
        claimed=1.0,
        computed=0.5 + _weight(epsilon, local),
        ours=0.5 + _weight(EPSILON, _repaired()) * (0.5 / _weight(EPSILON, _repaired())),
        facts=(
            ("least factor in the range of lemma and theorem, at ε₀ = 1, B → ∞", 0.5 + _weight(0.0, 1.0)),
            (
                "largest, at ε₀ = 1 and the lemma's least B, 160.44",
                0.5 + _weight(amplified(1.0, DELTA / 2, _needed(1.0)), 1.0),
            ),
        ),
    )


def _printed() -> tuple[float, float]:
    """Return ε₀ = ε√(B/ln(2/δ)), and ε̃ of Lemma B.4 with δ' = δ/2."""
    local = EPSILON * math.sqrt(CLIENTS / math.log(2 / DELTA))
    return local, amplified(local, DELTA / 2, CLIENTS)


def _repaired() -> float:
    """Return the ε₀ whose amplified ε is the promised one."""
    return float(brentq(lambda local: amplified(local, DELTA / 2, CLIENTS) - EPSILON, 0.0, 5.0)) * (1 - 1e-12)


def _weight(epsilon: float, local: float) -> float:
    """Return the factor of Bδ₀ in δ̃."""
    return (math.exp(epsilon) + 1) * (1 + math.exp(-local) / 2)


def _limit(local: float) -> float:
    """Return ε̃/ε for B → ∞ at a fixed ε₀ of at most 1: (tanh(ε₀/2)/ε₀) 8√(e^ε₀ ln(8/δ)/ln(2/δ))."""
    half = math.tanh(local / 2) / local if local else 0.5
    return half * 8 * math.sqrt(math.exp(local) * math.log(8 / DELTA) / math.log(2 / DELTA))


def _needed(local: float) -> float:
    """Return 16 e^ε₀ ln(4/δ), the least batch of Lemma B.4 with δ' = δ/2."""
    return 16 * math.exp(local) * math.log(4 / DELTA)


def _theorem_32_range() -> Figures:
    epsilon = 0.2
    batch = 4 * math.log(2 / DELTA) / epsilon**2  # d/dB (ε₀ - ln B) = 0 at ε₀ = ε√(B/ln(2/δ)) = 2
    return Figures(
        setting=f"ε = {epsilon}, δ = {DELTA}, B free",
        claimed=1.0,
        computed=_needed(2.0) / batch,
        ours=1 / batch,
        facts=(
            ("largest ε for which some B serves", _largest_epsilon(math.inf)),
            ("the same with ε₀ ≤ 1, which the theorem's range of ε asks", _largest_epsilon(1.0)),
            *((f"exact ε of that noise for B = {BATCH} at ε = {one:g}, not shuffled", _alone(one)) for one in USED),
        ),
    )


def _largest_epsilon(most: float) -> float:
    """Return the largest ε of any B with ε₀ = ε√(B/ln(2/δ)) ≤ min(ln(B/(16 ln(4/δ))), most)."""
    # The bound falls from B = 436 on, where ln(B/(16 ln(4/δ))) = 2.
    allowed = ((min(math.log(batch / _needed(0.0)), most), batch) for batch in range(math.ceil(_needed(0.0)), 10_000))
    return max(local * math.sqrt(math.log(2 / DELTA) / batch) for local, batch in allowed)


def _alone(epsilon: float) -> float:
    """Return the exact ε of Theorem B.1's noise for one client: matrix and vector in one release, not shuffled."""
    spread = 2 * math.log(2.5 * BATCH / DELTA) * math.log(2 / DELTA)
    return gaussian_epsilon(joint_sensitivity(1.0, 1.0) * epsilon * math.sqrt(BATCH) / (4 * math.sqrt(spread)), DELTA)


def _theorem_b1_range() -> Figures:
    used, delta = 20, 0.1
    least = 16 * math.log(4 / delta)  # times e^ε₀
    return Figures(
        setting=f"δ = {delta}, ε₀ → 0, B = {used}",
        claimed=float(used),
        computed=least,
        ours=1.0,
        facts=(
            ("least batch for ε₀ = 1", math.e * least),
            ("clones bound at B = 20, ε₀ = 1", clones_epsilon(delta, 1.0, used)),
        ),
    )


def _theorem_c1_bits() -> Figures:
    printed, enough = (_printed_bits(1.0, DELTA), _bits_enough(1.0))
    return Figures(
        setting=f"B = {BATCH}, d = {DIMENSION}, g = {GRID}, p = 1/4, ε = 1, δ = {DELTA}, all labels jointly",
        claimed=1.0,
        computed=printed / enough,
        ours=1.0,
        facts=tuple(
            (f"printed b {what}, ε = {epsilon:g}", _printed_bits(epsilon, DELTA) / bits(epsilon))
            for epsilon in USED
            for what, bits in (("over that b", _bits_enough), ("over the fewest for one label", _bits_of_one))
        ),
    )


def _bits_enough(epsilon: float) -> int:
    """Return the fewest bits that are proven enough for a move of all labels of √4.5 units and its rounding."""
    labels = DIMENSION + DIMENSION * (DIMENSION + 1) // 2
    move = Grid(math.ceil(GRID * joint_sensitivity(1.0, 1.0)), labels, "l2")

    def met(bits: int) -> bool:
        return vector_epsilon(Binomial(BATCH * bits, 0.25).pmf(), move, DELTA, both=True) <= epsilon

    return least_satisfying(met, 8)


def _bits_of_one(epsilon: float) -> int:
    """Return the fewest bits for one label, φ_iy, which moves by 2g: exact, and fewer do not do for all the labels."""
    return least_satisfying(lambda b: hockey_stick(Binomial(BATCH * b, 0.25).pmf(), 2 * GRID, epsilon) <= DELTA, 8)


def _algorithm_5_shift() -> Figures:
    epsilon, delta = 1.0, 1e-6
    coins = least_satisfying(lambda b: hockey_stick(Binomial(BATCH * b, 0.5).pmf(), GRID, epsilon) <= delta, 8)
    law = Binomial(BATCH * coins, 0.5).pmf()
    return Figures(
        setting=f"B = {BATCH}, g = {GRID}, {coins} fair bits: the fewest for ε = 1, δ = {delta:g} and a shift of g",
        claimed=epsilon,
        computed=epsilon_at(law, 2 * GRID, delta),
        ours=epsilon_of(planned("shuffled-binomial", BATCH, epsilon, delta=delta, bound=1.0)),
        facts=(
            ("bias of a sum of B values Δ/2 if x̂ is clamped to g instead, in units of Δ", -0.5 * BATCH),
            # of Bin(Bb, 1/4) by its Gaussian, as no table could hold so many bits; no claim rests on it
            (
                "ε at the printed constants and a shift of 2g: they hide the slip",
                gaussian_epsilon(2 / _printed_std(epsilon, delta), delta),
            ),
        ),
    )


def _theorem_c1_constants() -> Figures:
    epsilon, delta = 0.2, 0.1
    mechanism = planned("shuffled-binomial", BATCH, epsilon, delta=delta)
    return Figures(
        setting=f"B = {BATCH}, d = {DIMENSION}, ε = {epsilon}, δ = {delta}, values in [0, 1]",
        claimed=float(BATCH),
        computed=_printed_std(epsilon, delta),
        ours=mechanism.error(BATCH).std,
        facts=(
            ("bits a client and coordinate, as printed", GRID + _printed_bits(epsilon, delta)),
            ("ours", float(mechanism.bits)),
        ),
    )


def _printed_bits(epsilon: float, delta: float) -> float:
    spread = math.log(4 * (DIMENSION**2 + 1) / delta)
    return 24e4 * GRID**2 * spread**2 / (epsilon**2 * BATCH)


def _printed_std(epsilon: float, delta: float) -> float:
    return math.sqrt(BATCH * _printed_bits(epsilon, delta) * 3 / 16) / GRID
