"""Computes errata of CTX's LinUCB: the sensitivity of its one private sum, its radius, and returning users."""

import math

from distrust.common.dp.accounting.techniques.gaussian import largest_ratio
from distrust.lab.papers.erratum import Figures, classical_sigma, gaussian_failure

DELTA = 0.1  # of the paper's experiments


def joint_sensitivity(length: float, reward: float) -> float:
    """Return the ℓ₂ sensitivity of (φy, φφᵀ) for ‖φ‖ ≤ C, |y| ≤ c and d ≥ 2; C is `length`, c is `reward`.

    For y in [0, c] it is the same. φφᵀ counts in the Frobenius norm; its upper triangle alone moves by no more, and in
    a good basis by as much.
    """
    # a, b = ‖φ‖, ‖φ'‖, p = ⟨φ, φ'⟩: the square is a⁴ + b⁴ - 2p² + y²a² + y'²b² - 2yy'p, and -2p² - 2yy'p is at most
    # (yy')²/2, at p = -yy'/2. So a = b = C, |y| = |y'| = c is the worst, as long as p = -c²/2 is at least -C².
    if reward <= math.sqrt(2) * length:
        return (2 * length**2 + reward**2) / math.sqrt(2)
    # Convex in y and in y': both ±c. It rises with |p| up to c²/2 > C²: |p| = ab, which leaves (a + b)²((a - b)² + c²).
    # For a ≥ b that rises with a, and with b, as 2b² - 2ab + c² > 0. So φ' = -φ, and the matrix does not move.
    return 2 * reward * length


def _two_releases() -> Figures:
    epsilon, delta = 1.0, DELTA
    printed = classical_sigma(epsilon / 2, delta / 2, 2.0)  # 4√(2 ln(2.5/δ))/ε
    joint = joint_sensitivity(1.0, 1.0)
    return Figures(
        setting=f"ε = {epsilon:g}, δ = {delta}, every entry",
        claimed=1.0,
        computed=printed * largest_ratio(epsilon, delta) / joint,
        ours=1.0,
        facts=(
            ("joint ℓ₂ sensitivity", joint),
            ("noise as printed", printed),
            ("least noise of the joint release", joint / largest_ratio(epsilon, delta)),
            ("the same constant for the joint release", classical_sigma(epsilon, delta, joint)),
            (
                "ε above which the noise as printed fails; it is proven for ε ≤ 1",
                gaussian_failure(printed / joint, delta),
            ),
        ),
    )


def _lemma_a4_radius() -> Figures:
    # ‖N‖ ≤ q and ‖h‖ ≤ q_h: λ = 2q, λ_max = 3q, λ_min = q, ν = q_h/√q. Here q_h = q, the worst of q_h ≤ q.
    return Figures(
        setting="q_h = q, both far above d ln T",
        claimed=1.0,
        computed=_derived(1.0),
        ours=1.0,
        facts=(
            ("for q_h = 0", _derived(0.0)),
            (
                "reached, by H = 3qI, h = -qθ*, ‖θ*‖ = 1 and no data along θ*: ‖Hθ* - h‖ in H⁻¹, over √λ",
                4 / math.sqrt(6),
            ),
            ("the whole radius over the printed one, d = 5, T = 20000, α = 0.1, q = 2500", _whole_radius(2500.0)),
        ),
    )


def _derived(share: float) -> float:
    """Return (√λ_max + ν)/√λ for q_h = `share` times q."""
    return (math.sqrt(3) + share) / math.sqrt(2)


def _whole_radius(noise: float, dimension: int = 5, rounds: int = 20_000, alpha: float = 0.1) -> float:
    """Return β_M of Lemma A.2 over that of Lemma A.4, q_h = q."""

    def bonus(least: float) -> float:
        return math.sqrt(2 * math.log(2 / alpha) + dimension * math.log1p(rounds / (dimension * least)))

    printed = bonus(2 * noise) + math.sqrt(2 * noise)
    return (bonus(noise) + math.sqrt(3 * noise) + math.sqrt(noise)) / printed


def _theorem_e3_logarithm() -> Figures:
    rounds, batch, delta = 20_000, 20, 0.1
    batches = rounds // batch
    needed = math.sqrt(math.log(4 * batches / delta) / math.log(2 / delta))
    return Figures(
        setting=f"T = {rounds}, B = {batch}, M = {batches}, δ = {delta}",
        claimed=1.0,
        computed=needed,
        ours=needed / math.sqrt(math.log(2 * 2 * batches / delta) / math.log(2 / delta)),
    )
