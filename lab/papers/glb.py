"""Computes errata of GLB, locally private generalized linear bandits: noise for OLS, gradients, blocks of arms."""

import math

from scipy.optimize import minimize, minimize_scalar
from scipy.special import ndtr

from distrust.common.dp.accounting.techniques.gaussian import gaussian_delta, gaussian_epsilon, largest_ratio
from distrust.common.dp.mechanisms.families.sphere import radius
from distrust.lab.papers.ctx_linucb import joint_sensitivity
from distrust.lab.papers.erratum import Figures, classical_gaussian, classical_sigma


def _lemma_21_gaussian() -> Figures:
    return classical_gaussian(epsilon=8.0, delta=0.05)


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


def _halves() -> Figures:
    epsilon, delta = 1.0, 1e-5
    sigma = classical_sigma(epsilon, delta, 2.0)  # ξ at C_B = c_r = 1; W has 2σ
    pair = _joint(1.0, 2 * sigma, sigma)
    return Figures(
        setting=f"C_B = c_r = 1, ε = {epsilon:g}, δ = {delta:g}",
        claimed=delta / 2,
        computed=gaussian_delta(2 / sigma, epsilon / 2),
        ours=gaussian_delta(largest_ratio(epsilon / 2, delta / 2), epsilon / 2),
        facts=(
            ("noise that (ε/2, δ/2) takes by Lemma 2.1, over ξ", classical_sigma(epsilon / 2, delta / 2, 2.0) / sigma),
            ("largest move of the pair in its noise, over 2/σ", pair * sigma / 2),
            ("exact δ of the pair at ε, which holds", gaussian_delta(pair, epsilon)),
        ),
    )


def _sgd_radius() -> Figures:
    # θ̂₀ = 0, so that θ̂₁ = -η₁Z has the length η₁r surely. Assumption 3 has κ_l p_*/d ≤ E(xᵀv)² for every unit v, hence
    # κ_l p_* ≤ C_B² = 1, and Theorem 3.1's η₁ = c'd/(κ_l ζ p_*), c' ≥ 1, is at least d. The next client may have
    # x = θ̂₁/|θ̂₁| and r = -1.
    dimension, epsilon, allowed = 2, 1.0, 2.0
    first = dimension * radius(allowed, dimension, epsilon)
    gradient = first + 1
    return Figures(
        setting=f"μ(z) = z, C_B = c_r = 1, d = {dimension}, ε = {epsilon:g}, t = 2, least η₁",
        claimed=1.0,
        computed=gradient / allowed,
        ours=(1.0 + 1.0) / allowed,
        facts=(
            ("length of θ̂₁, at least", first),
            ("chance of b = 1 in Lemma 2.2, no probability", 0.5 + gradient / (2 * allowed)),
        ),
    )


def _step() -> Figures:
    # (D.8): the squared error after the warm-up is multiplied by Π (1 - 2λη_t), λ = ζκ_l p'/K_opt the least curvature.
    # The d K_opt curvatures of all directions and arms add up to at most E‖X‖² = 1, hence λ ≤ 1/(d K_opt).
    arms, dimension, rounds = 10, 2, 100_000
    curvature = 1 / (dimension * arms)
    warm = rounds // 10 // arms
    last = rounds - (arms - 1) * warm
    return Figures(
        setting=f"d = {dimension}, K = K_opt = {arms}, T = {rounds}, s₀ = {warm}, c' = 1, the largest ζκ_l p'/K_opt",
        claimed=warm * (warm - 1) / (last * (last - 1)),
        computed=_left(2 * curvature**2, warm, last),
        ours=_left(2.0, warm, last),
        facts=(
            ("printed step over the proof's, (ζκ_l p'/K_opt)²", curvature**2),
            ("warm-up step of arm 1 at its last update, printed over Lemma D.12's", curvature**2 * arms * warm),
        ),
    )


def _left(rate: float, first: int, last: int) -> float:
    """Return Π (1 - rate/t) over first < t ≤ last."""
    return math.exp(math.fsum(math.log1p(-rate / t) for t in range(first + 1, last + 1)))


def _blocks() -> Figures:
    # A client that pulls arm 1 sends Ψ(g)Ψ(0), one that pulls arm 2 sends Ψ(0)Ψ(g'), all other blocks have one law.
    epsilon, delta = 1.0, 1e-5
    sigma = classical_sigma(epsilon, delta, 2.0)
    apart = math.sqrt(2 * (1 / (2 * sigma) ** 2 + 1 / sigma**2))  # xxᵀ and rx of two arms appear or vanish
    # Lemma 2.4's sum is reached by another ε-LDP ψ: a coin, heads with p for data and with 1 - p for (0, 0). Heads for
    # arm 1 and tails for arm 2 have p² and (1 - p)².
    chance = 1 / (1 + math.exp(-epsilon))
    return Figures(
        setting=f"Ψ, all arms' blocks, ε = {epsilon:g}",
        claimed=1.0,
        computed=2 * math.log(chance / (1 - chance)) / epsilon,
        ours=_blocks_epsilon(epsilon) / epsilon,
        facts=(
            ("OLS, C_B = c_r = 1: exact ε of the blocks, different arms", gaussian_epsilon(apart, delta)),
            ("same arm", gaussian_epsilon(_joint(1.0, 2 * sigma, sigma), delta)),
        ),
    )


def _blocks_epsilon(epsilon: float) -> float:
    """Return the largest log-ratio of the densities of Ψ(g)Ψ(0) and Ψ(0)Ψ(g'), and of Ψ(g) and Ψ(g').

    Ψ(g) has the density 1 ± tanh(ε/2)|g|/R relative to the uniform one, + on the half-sphere around g; |g| ≤ R.
    """
    tilt = math.tanh(epsilon / 2)
    densities = (1 - tilt, 1.0, 1 + tilt)
    return max(abs(math.log(density / other)) for density in densities for other in densities)


def _product_sets() -> Figures:
    # Two blocks of one number each, in units of σ: (X₁, X₂) ~ N((m, 0), I) for one client, N((0, m), I) for the other.
    # Given A₂ the best A₁ is a half-line, as the likelihood ratio of X₁ rises; and so is A₂ given A₁.
    epsilon, move = 1.0, 1.0
    allowed = _over_half_lines(move, epsilon)
    return Figures(
        setting=f"two arms, ε = {epsilon:g}, Gaussian blocks of one number that moves by {move:g}σ",
        claimed=allowed,
        computed=gaussian_delta(math.sqrt(2) * move, epsilon),
        ours=gaussian_delta(largest_ratio(epsilon, allowed), epsilon),
    )


def _over_half_lines(move: float, epsilon: float) -> float:
    """Return the largest P[X₁ > a, X₂ < b] - e^ε Q[X₁ > a, X₂ < b]."""

    def lacking(ends: tuple[float, float]) -> float:
        a, b = ends
        return float(math.exp(epsilon) * ndtr(-a) * ndtr(b - move) - ndtr(move - a) * ndtr(b))

    return -float(minimize(lacking, (move, 0.0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}).fun)


def _multi_halved() -> Figures:
    epsilon, delta = 1.0, 1e-5
    whole, half = largest_ratio(epsilon, delta), largest_ratio(epsilon / 2, delta / 2)
    return Figures(
        setting=f"C_B = c_r = 1, ε = {epsilon:g}, δ = {delta:g}, least σ of each",
        claimed=1.0,
        computed=whole / half,
        ours=1.0,
        facts=(
            ("joint ℓ₂ sensitivity of all blocks, different arms", 2.0),
            ("same arm, which is the larger", joint_sensitivity(1.0, 1.0)),
            ("SGD: radius of Ψ at ε/2 over that at ε", radius(2.0, 2, epsilon / 2) / radius(2.0, 2, epsilon)),
        ),
    )


def _baselines() -> Figures:
    epsilon, delta = 1.0, 0.01
    sigma = 6 * math.sqrt(2 * math.log(2.5 / delta)) / epsilon
    joint = joint_sensitivity(1.0, 1.0)
    return Figures(
        setting=f"LDP-UCB, C_B = c_r = 1, stated ε = {epsilon:g}, δ = {delta}",
        claimed=1.0,
        computed=sigma * largest_ratio(epsilon, delta) / joint,
        ours=1.0,
        facts=(
            ("exact ε of that noise", gaussian_epsilon(joint / sigma, delta)),
            # zx and (μ(z) - r)x as a vector of rewards (z, μ(z) - r), of length √2 at most: an upper bound
            (
                "of LDP-GLOC's three releases, logistic link, |z| ≤ 1, at most",
                gaussian_epsilon(joint_sensitivity(1.0, math.sqrt(2)) / sigma, delta),
            ),
        ),
    )
