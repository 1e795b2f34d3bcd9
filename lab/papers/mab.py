"""Computes errata of MAB, distributed differential privacy in bandits: noise, discrete Gaussian bounds, failures."""

import math
from fractions import Fraction

from distrust.common.dp.accounting.techniques.hockey_stick import pure_epsilon, rdp
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.dp.mechanisms.distributed.skellam import skellam_divergences
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.specs.base import event_share
from distrust.lab.papers.erratum import Figures, divergence_of, epsilon_of, planned

CLIENTS, EPSILON, GRID = 1000, 1.0, 32  # g = ⌈ε√n⌉
BASEL = math.pi**2 / 6  # Σ 1/b²


def _theorem_1_survivors() -> Figures:
    # A tenth of the Pólya(1/n) noise never arrives.
    shares = (1, 500, 750)
    return Figures(
        setting=f"n = {CLIENTS}, ε = {EPSILON:g}, g = {GRID}, 900 survivors",
        claimed=EPSILON,
        computed=_survivors(Fraction(9, 10)),
        ours=epsilon_of(planned("distributed-polya", CLIENTS, EPSILON, min_survivors=900), 900),
        facts=tuple((f"ε with {share} of {CLIENTS} users", _survivors(Fraction(share, CLIENTS))) for share in shares),
    )


def _survivors(shape: Fraction) -> float:
    return pure_epsilon(PolyaDifference(shape, GRID / EPSILON).pmf(), GRID)


def _theorem_2_noise() -> Figures:
    grid = 10  # ⌈sε√n⌉ for s = 1, ε = 1, n = 100
    return Figures(
        setting="n = 100, ε = 1, s = 1, α = 2, σ read as 1",
        claimed=_theorem_2(2, 1.0, 1.0),
        computed=_rdp(1.0, grid, 2.0),
        ours=divergence_of(_paper_skellam(1.0), 2.0),
    )


def _theorem_2_last_term() -> Figures:
    clients, epsilon, order = 100, 0.1, 64
    grid = math.ceil(epsilon * math.sqrt(clients))
    exact = divergence_of(_paper_skellam(epsilon), float(order))
    return Figures(
        setting=f"n = {clients}, ε = {epsilon}, s = 1, g = {grid}, α = {order}",
        claimed=_theorem_2(order, epsilon, math.sqrt(clients)),
        computed=_lemma_3(order, grid, epsilon),
        ours=exact,
        facts=(("exact divergence of the law", exact),),
    )


def _theorem_2(order: int, epsilon: float, root: float) -> float:
    """Return ε̂(α) of the proof, s = 1; root = √n, or 1 for the bound over all n."""
    first = (2 * order - 1) * epsilon**2 / (4 * root**2) + 3 * epsilon / (2 * root**3)
    return order * epsilon**2 / 2 + min(first, 3 * epsilon**2 / (2 * root))


def _lemma_3(order: int, grid: int, epsilon: float) -> float:
    variance = (grid / epsilon) ** 2
    first = ((2 * order - 1) * grid**2 + 6 * grid) / (4 * variance**2)
    return order * grid**2 / (2 * variance) + min(first, 3 * grid / (2 * variance))


def _paper_skellam(epsilon: float) -> Mechanism:
    return planned("distributed-skellam", 100, epsilon, calibration="paper", scale=1.0)


def _rdp(variance: float, shift: int, order: float) -> float:
    return dict(skellam_divergences(variance, Grid(shift, 1, "linf")))[order]


def _theorem_3_scale() -> Figures:
    clients, epsilon = 10_000, 1.0
    grid = math.ceil(epsilon / 2 * math.sqrt(clients))
    secure_sum_cost = 2 * epsilon / 4  # both directions of the relaxed secure sum cost ε̂ = ε/4
    return Figures(
        setting=f"n = {clients}, ε = {epsilon:g}, g = {grid}",
        claimed=epsilon,
        computed=_laplace(9 / epsilon, grid) + secure_sum_cost,
        ours=_laplace(2 * grid / epsilon, grid) + secure_sum_cost,
        facts=(("ε if 9 is read as g", _laplace(grid / epsilon, grid) + secure_sum_cost),),
    )


def _laplace(scale: float, shift: int) -> float:
    return pure_epsilon(DiscreteLaplace(scale).pmf(), shift)


def _footnote_3() -> Figures:
    # With a rate for a scale, the sum of n Poisson mixtures is geometric with 1 - β for β.
    beta = math.exp(-EPSILON / GRID)
    inverted = DiscreteLaplace(-1 / math.log1p(-beta))
    meant = DiscreteLaplace(GRID / EPSILON)
    return Figures(
        setting=f"ε = {EPSILON:g}, g = {GRID}, all n users, β/(1-β) taken as the rate",
        claimed=EPSILON,
        computed=GRID / inverted.scale,
        ours=epsilon_of(planned("distributed-polya", CLIENTS, EPSILON)),
        facts=(("its standard deviation over the intended one", inverted.std / meant.std),),
    )


def _lemma_2() -> Figures:
    # Every event of one arm and batch fails with a share of p/(|Φ|b²); then Σ 1/b² over the batches.
    return Figures(setting="any |Φ| and p", claimed=3.0, computed=_union(4, 2), ours=_union(4, 4))


def _union(rewards: float, noise: float) -> float:
    """Return ln(a|Φ|b²/p) = ln(2/p'), p' = 2p/(a|Φ|b²); rewards fail with p', noise with 2p' (Assumption 1)."""
    return (2 / rewards + 2 * 2 / noise) * BASEL


def _theorem_1_tau() -> Figures:
    # The room for noise is chosen for one sum, and the lemma needs it for all of them.
    horizon, arms = 10**6, 10
    batches = range(1, int(math.log2(horizon / arms)) + 1)
    printed = _any_wraps([_paper_wrap(2**b, horizon) for b in batches], arms)
    exact = _any_wraps([_exact_wrap(2**b, event_share(arms, b, 1 / horizon)) for b in batches], arms)
    return Figures(
        setting=f"T = {horizon}, K = {arms}, ε = 1, all arms active, all rewards 0",
        claimed=3.0,
        computed=printed * horizon,
        ours=exact * horizon,
    )


def _paper_wrap(clients: int, horizon: int) -> float:
    grid = math.ceil(math.sqrt(clients))
    return _wraps(grid, math.ceil(grid * math.log(2 * horizon)), clients)


def _exact_wrap(clients: int, allowed: float) -> float:
    grid = math.ceil(math.sqrt(clients))
    return _wraps(grid, round(DiscreteLaplace(grid).quantile(allowed)), clients)


def _wraps(grid: int, tau: int, clients: int) -> float:
    """Return P(η < -τ or η > ng + τ), ε = 1: what Algorithm 1 decodes wrongly when every reward is 0."""
    return math.exp(-(tau + 1) / grid) * (1 + math.exp(-clients)) / (1 + math.exp(-1 / grid))


def _any_wraps(chances: list[float], arms: int) -> float:
    return -math.expm1(arms * math.fsum(math.log1p(-chance) for chance in chances))


def _theorem_4_hat() -> Figures:
    epsilon, order = math.sqrt(0.5), 1.01
    exact = _concentrated(DiscreteGaussianSum(1.0, 2), order) / (epsilon**2 / 2)
    hat = _lemma_4(epsilon, 1.0, 2)
    return Figures(
        setting=f"n = 2, s = 1, ε = √½, g = 1, α = {order}",
        claimed=1.0,
        computed=exact,
        ours=_ours(epsilon),
        facts=(("excess", exact - 1), ("the same over ½αε̂²", exact * (epsilon / hat) ** 2)),
    )


def _ours(epsilon: float) -> float:
    """Return the largest divergence of our mechanism over ½αε², at all of its orders."""
    mechanism = planned("distributed-discrete-gaussian", 2, epsilon)
    return max(spent / order for order, spent in mechanism.privacy().promise.rdp) / (epsilon**2 / 2)


def _concentrated(law: DiscreteGaussianSum, order: float) -> float:
    """Return the Rényi divergence over its order, shift 1."""
    return rdp(law.pmf(least=60), 1, (order,))[0] / order


def _lemma_4(epsilon: float, variance: float, clients: int) -> float:
    """Return ε̂ of a sum whose Gaussian ε is given."""
    xi = 10 * math.fsum(math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, clients))
    return min(math.sqrt(epsilon**2 + xi / 2), epsilon + xi)


def _lemma_4_slack() -> Figures:
    clients, variance = 100, 0.25
    gaussian = 1 / math.sqrt(clients * variance)
    law = DiscreteGaussianSum(variance, clients)
    exact = math.sqrt(2 * max(_concentrated(law, order) for order in (1.01, 2.0, 4.0, 8.0)))
    return Figures(
        setting=f"n = {clients}, σ = 1/2, Δ = 1",
        claimed=1.0,
        computed=_lemma_4(gaussian, variance, clients) / exact,
        ours=1.0,
        facts=(("exact ε, orders 1.01 to 8", exact),),
    )


def _theorem_6_constant() -> Figures:
    clients, failure = 1024, 1e-3
    grid = math.ceil(math.sqrt(clients))
    law = PolyaDifference(Fraction(clients), float(grid))
    mechanism = planned("local-laplace-discrete", clients, 1.0, overflow_probability=failure)
    own = PolyaDifference(Fraction(clients), float(mechanism.precision))
    return Figures(
        setting=f"n = {clients}, ε = 1, p = {failure:g}, c read as 1",
        claimed=failure,
        computed=_beyond(law, math.ceil(grid * math.sqrt(2 * clients * math.log(2 / failure)))),
        ours=_beyond(own, (mechanism.modulus - clients * mechanism.precision - 1) // 2),
    )


def _beyond(law: PolyaDifference, tau: int) -> float:
    pmf = law.pmf()
    return float(pmf.masses[abs(pmf.support) > tau].sum())
