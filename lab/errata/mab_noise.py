"""MAB (Chowdhury & Zhou, distributed differential privacy in bandits): the printed noise, and what hides."""

import math
from fractions import Fraction

from common.accounting import pure_epsilon
from common.mechanisms import Mechanism
from common.mechanisms.skellam_search import divergences
from common.noise import DiscreteLaplace, PolyaDifference
from lab.errata.erratum import Erratum
from lab.errata.ours import divergence_of, epsilon_of, planned

CLIENTS, EPSILON, GRID = 1000, 1.0, 32  # g = ⌈ε√n⌉


def theorem_1_dropouts() -> Erratum:
    """Pólya(1/n) noise of which a tenth never arrives."""
    facts = tuple(
        (f"ε with {share} of {CLIENTS} users", _survivors(Fraction(share, CLIENTS))) for share in (1, 500, 750)
    )
    return Erratum(
        key="mab-theorem-1-survivors",
        paper="MAB",
        place="Theorem 1",
        printed="Pólya(1/n, e^(-ε/g)) noise at each of n users gives (ε, 0)-DP",
        wrong="only if all n answer and none tells its noise: n' < n of them add up to Pólya(n'/n), not to Laplace",
        verdict="assumption",
        setting=f"n = {CLIENTS}, ε = {EPSILON:g}, g = {GRID}, 900 survivors",
        measure="pure ε of the released sum",
        claimed=EPSILON,
        computed=_survivors(Fraction(9, 10)),
        ours=epsilon_of(planned("distributed-polya", CLIENTS, EPSILON, floor=900), 900),
        instead="noise for the floor t of honest survivors; a sum with fewer is never opened",
        code="common/mechanisms/distributed_polya.py",
        facts=facts,
    )


def _survivors(shape: Fraction) -> float:
    return pure_epsilon(PolyaDifference(shape, GRID / EPSILON).pmf(), GRID)


def theorem_2_noise() -> Erratum:
    """A variance without g."""
    grid = 10  # ⌈sε√n⌉ for s = 1, ε = 1, n = 100
    return Erratum(
        key="mab-theorem-2-noise",
        paper="MAB",
        place="Theorem 2",
        printed="η ~ Sk(0, σ²/(nε²))",
        wrong="σ is nowhere a value; the sum moves by g, and the proof takes g²/(nε²)",
        verdict="misprint",
        setting="n = 100, ε = 1, s = 1, α = 2, σ read as 1",
        measure="Rényi divergence of order 2",
        claimed=_theorem_2(2, 1.0, 1.0),
        computed=_rdp(1.0, grid, 2.0),
        ours=divergence_of(_paper_skellam(1.0), 2.0),
        instead="variance g²/ε² (paper), or the least whose exact privacy meets the target (exact)",
        code="common/mechanisms/distributed_skellam.py",
    )


def theorem_2_last_term() -> Erratum:
    """ε² where the lemma gives ε."""
    clients, epsilon, order = 100, 0.1, 64
    grid = math.ceil(epsilon * math.sqrt(clients))
    exact = divergence_of(_paper_skellam(epsilon), float(order))
    return Erratum(
        key="mab-theorem-2-last-term",
        paper="MAB",
        place="Theorem 2, proof",
        printed="ε̂(α) = αε²/2 + min{…, 3ε²/(2s√n)}",
        wrong="Lemma 3 with Δ = g, σ² = g²/ε² gives 3ε²/(2g), which is 3ε/(2s√n) at g = sε√n",
        verdict="unproved",
        setting=f"n = {clients}, ε = {epsilon}, s = 1, g = {grid}, α = {order}",
        measure=f"bound on the Rényi divergence of order {order}",
        claimed=_theorem_2(order, epsilon, math.sqrt(clients)),
        computed=_lemma_3(order, grid, epsilon),
        ours=exact,
        instead="the divergence is computed on the Skellam law; no bound is used",
        code="common/mechanisms/skellam_search.py",
        facts=(("exact divergence of the law", exact),),
    )


def _theorem_2(order: int, epsilon: float, root: float) -> float:
    """ε̂(α) of the proof, s = 1; root = √n, or 1 for the bound over all n."""
    first = (2 * order - 1) * epsilon**2 / (4 * root**2) + 3 * epsilon / (2 * root**3)
    return order * epsilon**2 / 2 + min(first, 3 * epsilon**2 / (2 * root))


def _lemma_3(order: int, grid: int, epsilon: float) -> float:
    variance = (grid / epsilon) ** 2
    first = ((2 * order - 1) * grid**2 + 6 * grid) / (4 * variance**2)
    return order * grid**2 / (2 * variance) + min(first, 3 * grid / (2 * variance))


def _paper_skellam(epsilon: float) -> Mechanism:
    return planned("distributed-skellam", 100, epsilon, calibration="paper", scale=1.0)


def _rdp(variance: float, shift: int, order: float) -> float:
    return dict(divergences(variance, shift, 1))[order]


def theorem_3() -> Erratum:
    """The noise of the relaxed protocol."""
    clients, epsilon = 10_000, 1.0
    grid = math.ceil(epsilon / 2 * math.sqrt(clients))
    relaxed = 2 * epsilon / 4  # both directions of the relaxed secure sum cost ε̂ = ε/4
    return Erratum(
        key="mab-theorem-3-scale",
        paper="MAB",
        place="Theorem 3",
        printed="Pólya(1/n, e^(-ε/9)) with ε̂ = ε/4, ε' = ε/2, g = ⌈ε'√n⌉ gives (ε, 0)-DP",
        wrong="the noise must have the scale g/ε'; the text has a 9 for g, and ε for ε'",
        verdict="misprint",
        setting=f"n = {clients}, ε = {epsilon:g}, g = {grid}",
        measure="pure ε: noise and 2ε̂",
        claimed=epsilon,
        computed=_laplace(9 / epsilon, grid) + relaxed,
        ours=_laplace(2 * grid / epsilon, grid) + relaxed,
        instead="scale g/ε', g = ⌈ε'√n⌉; our own construction is certified by direct convolution",
        code="common/mechanisms/relaxed/certificate.py",
        facts=(("ε if 9 is read as g", _laplace(grid / epsilon, grid) + relaxed),),
    )


def _laplace(scale: float, shift: int) -> float:
    return pure_epsilon(DiscreteLaplace(scale).pmf(), shift)


def footnote_3() -> Erratum:
    """A Gamma variable with a rate for a scale: the sum of n Poisson mixtures is geometric with 1 - β for β."""
    beta = math.exp(-EPSILON / GRID)
    inverted = DiscreteLaplace(-1 / math.log1p(-beta))
    meant = DiscreteLaplace(GRID / EPSILON)
    return Erratum(
        key="mab-footnote-3",
        paper="MAB",
        place="footnote 3",
        printed="λ ~ Gamma(r, β/(1-β)), then Poisson(λ), is Pólya(r, β)",
        wrong="true when β/(1-β) is the scale; after (shape, rate), the usual reading, β and 1 - β change places",
        verdict="misprint",
        setting=f"ε = {EPSILON:g}, g = {GRID}, all n users, β/(1-β) taken as the rate",
        measure="pure ε of the released sum",
        claimed=EPSILON,
        computed=GRID / inverted.scale,
        ours=epsilon_of(planned("distributed-polya", CLIENTS, EPSILON)),
        instead="no Gamma variable at all: inverse transform with 128-bit thresholds",
        code="common/noise/polya.py",
        facts=(("its standard deviation over the intended one", inverted.std / meant.std),),
    )
