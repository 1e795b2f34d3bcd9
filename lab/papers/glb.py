"""GLB (generalized linear bandits): the Gaussian mechanism beyond its theorem, and a matrix with too little noise."""

import math
from functools import partial

from scipy.optimize import minimize_scalar

from distrust.common.privacy.gaussian import gaussian_epsilon, largest_ratio
from distrust.lab.papers.erratum import Erratum, Figures, classical_gaussian, classical_sigma


def _ols_scale() -> Figures:
    bound, delta = 5.0, 1e-5
    sigma = classical_sigma(1.0, delta, 2.0)
    shift = _joint(bound, 2 * bound * sigma, bound * sigma)
    return Figures(
        setting=f"C_B = {bound:g}, c_r = 1, ε = 1, δ = {delta:g}",
        claimed=1.0,
        computed=gaussian_epsilon(shift, delta),
        ours=gaussian_epsilon(largest_ratio(1.0, delta), delta),
        facts=(("ε at C_B = 1", gaussian_epsilon(_joint(1.0, 2 * sigma, sigma), delta)),),
    )


def _joint(bound: float, matrix: float, vector: float) -> float:
    """Return the largest ‖·‖/σ of a change of (xxᵀ, rx) with |r| = 1 and an angle between the two contexts.

    With c = -cos of the angle between rx and r'x': |rx - r'x'|² = 2C²(1 + c), and in a plane whose axes are chosen
    well the upper triangle moves by all of the Frobenius norm: |xxᵀ - x'x'ᵀ|² = 2C⁴(1 - c²).
    """

    def square(c: float) -> float:
        return 2 * bound**4 * (1 - c * c) / matrix**2 + 2 * bound**2 * (1 + c) / vector**2

    minimum = minimize_scalar(lambda c: -square(c), bounds=(-1, 1), method="bounded")
    return math.sqrt(max(-float(minimum.fun), square(1.0)))


ERRATA = (
    Erratum(
        key="glb-lemma-2.1-gaussian",
        paper="GLB",
        place="Lemma 2.1",
        printed="σ = Δ₂√(2 ln(1.25/δ))/ε ensures (ε, δ)-LDP",
        wrong="proven for ε < 1 only",
        verdict="refuted",
        measure="exact δ at that ε",
        instead="the analytic Gaussian mechanism",
        code="common/mechanisms/local/additive.py",
        figures=partial(classical_gaussian, epsilon=8.0, delta=0.05),
    ),
    Erratum(
        key="glb-ols-scale",
        paper="GLB",
        place="section 3.1, OLS",
        printed="M = xxᵀ + W, W(i, j) ~ N(0, 4C_B²σ²), and u = rx + ξ, ξ ~ N(0, C_B²c_r²σ²I), |x| ≤ C_B",
        wrong="xxᵀ moves with C_B², so that 4C_B²σ² is too little noise once C_B > √2, and u has spent all of (ε, δ)",
        verdict="refuted",
        measure="exact ε at that δ of the pair (M, u)",
        instead="one vector of rx and the upper triangle of xxᵀ, its joint ℓ₂ sensitivity, exact σ",
        code="common/mechanisms/local/additive.py",
        figures=_ols_scale,
    ),
)
