"""CTX (Chowdhury & Zhou, shuffle private linear contextual bandits): Gaussian noise, amplified by shuffling."""

import math

from scipy.optimize import brentq

from common.amplification import clones_epsilon
from common.gaussian_accounting import gaussian_epsilon, largest_ratio
from lab.errata.erratum import Erratum
from lab.errata.formulas import amplified

CLIENTS, EPSILON, DELTA = 1000, 0.01, 0.1  # ε₀ = 0.18, inside the theorem's range


def algorithm_2() -> Erratum:
    """Each of two queries with the other's noise."""
    vector, matrix, delta = 2.0, math.sqrt(2), 1e-5
    ratio = largest_ratio(1.0, delta)
    return Erratum(
        key="ctx-algorithm-2-swap",
        paper="CTX",
        place="Algorithm 2",
        printed="the vector φy gets σ₂, the matrix φφᵀ gets σ₁; the text says the reverse",
        wrong="harmless only while σ₁ = σ₂: φy moves by 2 in ℓ₂, the upper triangle of φφᵀ by √2",
        verdict="misprint",
        setting=f"each noise exact for its own query at ε = 1, δ = {delta:g}, then swapped",
        measure="ε of the vector at that δ",
        claimed=1.0,
        computed=gaussian_epsilon(ratio * vector / matrix, delta),
        ours=gaussian_epsilon(ratio, delta),
        instead="one vector of both, one joint sensitivity",
        code="common/mechanisms/local_gaussian.py",
        facts=(("ε of the matrix", gaussian_epsilon(ratio * matrix / vector, delta)),),
    )


def theorem_b1_epsilon() -> Erratum:
    """The constant inside O(ε, δ)."""
    local, _ = _printed()
    return Erratum(
        key="ctx-theorem-b1-epsilon",
        paper="CTX",
        place="Theorem B.1",
        printed="σ₁ = σ₂ = 4√(2 ln(2.5B/δ) ln(2/δ))/(ε√B) is O(ε, δ)-SDP",
        wrong="the constant in O(·) is not 1: Lemma B.4 gives several ε, although the noise is written without O(·)",
        verdict="unproved",
        setting=f"B = {CLIENTS}, ε = {EPSILON}, δ = {DELTA}",
        measure="ε that the lemma gives, in units of ε",
        claimed=1.0,
        computed=amplified(local, DELTA / 2, CLIENTS) / EPSILON,
        ours=amplified(_repaired(), DELTA / 2, CLIENTS) / EPSILON,
        instead="ε₀ from the inverse of the bound; exact: the privacy blanket of the Gaussian, computed",
        code="common/amplification/blanket.py",
        facts=(("ε₀ as printed", local), ("ε₀ that the lemma allows for ε", _repaired())),
    )


def theorem_b1_delta() -> Erratum:
    """Three and a half δ."""
    local, epsilon = _printed()
    return Erratum(
        key="ctx-theorem-b1-delta",
        paper="CTX",
        place="Theorem B.1",
        printed="with δ₀ = δ/B, δ̃ = O(δ)",
        wrong="δ̃ = δ/2 + (e^ε̃ + 1)(1 + e^(-ε₀)/2) δ",
        verdict="unproved",
        setting=f"B = {CLIENTS}, ε = {EPSILON}, δ = {DELTA}",
        measure="δ that the lemma gives, in units of δ",
        claimed=1.0,
        computed=0.5 + _weight(epsilon, local),
        ours=0.5 + _weight(EPSILON, _repaired()) * (0.5 / _weight(EPSILON, _repaired())),
        instead="δ₀ = δ/(2B (e^ε + 1)(1 + e^(-ε₀)/2)); exact: the blanket needs no δ₀",
        code="common/amplification/blanket.py",
    )


def _printed() -> tuple[float, float]:
    """ε₀ = ε√(B/ln(2/δ)), and ε̃ of Lemma B.4 with δ' = δ/2."""
    local = EPSILON * math.sqrt(CLIENTS / math.log(2 / DELTA))
    return local, amplified(local, DELTA / 2, CLIENTS)


def _repaired() -> float:
    """The ε₀ whose amplified ε is the promised one."""
    return float(brentq(lambda local: amplified(local, DELTA / 2, CLIENTS) - EPSILON, 0.0, 5.0)) * (1 - 1e-12)


def _weight(epsilon: float, local: float) -> float:
    """What multiplies Bδ₀ in δ̃."""
    return (math.exp(epsilon) + 1) * (1 + math.exp(-local) / 2)


def theorem_b1_range() -> Erratum:
    """The batch of the experiments."""
    used, delta = 20, 0.1
    least = 16 * math.log(4 / delta)  # times e^ε₀
    return Erratum(
        key="ctx-theorem-b1-range",
        paper="CTX",
        place="Theorem B.1, section 6",
        printed="amplification for any batch size B ∈ [T]; experiments with B = 20",
        wrong="Lemma B.4 with δ' = δ/2 needs ε₀ ≤ ln(B/(16 ln(4/δ))), that is B ≥ 16e^ε₀ ln(4/δ)",
        verdict="assumption",
        setting=f"δ = {delta}, ε₀ → 0, B = {used}",
        measure="least batch for which the lemma says anything",
        claimed=float(used),
        computed=least,
        ours=1.0,
        instead="numerical bounds, which hold for every B ≥ 1 and never exceed ε₀",
        code="common/amplification/blanket.py",
        facts=(
            ("least batch for ε₀ = 1", math.e * least),
            ("clones bound at B = 20, ε₀ = 1", clones_epsilon(delta, 1.0, used)),
        ),
    )


def theorem_e3() -> Erratum:
    """δ_m = δ/(2M) put into one logarithm of two."""
    rounds, batch, delta = 20_000, 20, 0.1
    batches = rounds // batch
    needed = math.sqrt(math.log(4 * batches / delta) / math.log(2 / delta))
    return Erratum(
        key="ctx-theorem-e3-logarithm",
        paper="CTX",
        place="Theorem E.3",
        printed="σ = 16 ln(2/δ) √(T ln(5T/δ))/(εB)",
        wrong="Theorem B.1 at ε_m and δ_m = δ/(2M) has ln(2/δ_m) = ln(4M/δ) under its second root, not ln(2/δ)",
        verdict="unproved",
        setting=f"T = {rounds}, B = {batch}, M = {batches}, δ = {delta}",
        measure="noise that the proof needs over the printed noise",
        claimed=1.0,
        computed=needed,
        ours=needed / math.sqrt(math.log(2 * 2 * batches / delta) / math.log(2 / delta)),
        instead="returning users are composed numerically, and the ledger charges them",
        code="common/composition.py",
    )
