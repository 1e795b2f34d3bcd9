"""Computes errata of FREE (Hanna et al., differentially private linear bandits (almost) for free)."""

import math

from scipy import integrate, stats

from distrust.common.dp.accounting.techniques.amplification.clones import (
    clones_epsilon,
    clones_local_epsilon,
    largest_local_epsilon,
)
from distrust.common.dp.accounting.techniques.hockey_stick import pure_epsilon
from distrust.common.dp.noise.polya import DiscreteLaplace
from distrust.lab.papers.erratum import Erratum, Figures, amplified, amplified_inverse, epsilon_of, planned


def _sensitivity() -> Figures:
    steps = 100  # of the grid, a unit
    return Figures(
        setting=f"ε = 1, on a grid of {steps} steps a unit",
        claimed=1.0,
        computed=pure_epsilon(DiscreteLaplace(steps).pmf(), 2 * steps),
        ours=epsilon_of(planned("local-laplace", 1, 1.0, bound=1.0)),
    )


def _equation_10_range() -> Figures:
    clients, epsilon, delta = 100, 1.0, 1e-6
    local = amplified_inverse(epsilon, delta, clients)
    return Figures(
        setting=f"n = {clients}, ε = {epsilon:g}, δ = {delta:g}",
        claimed=1.0,
        computed=epsilon / local,
        ours=epsilon / clones_local_epsilon(epsilon, delta, clients),
        facts=(
            ("f⁻¹(ε)", local),
            ("largest ε₀ of the theorem: negative, so there is none", largest_local_epsilon(delta, clients)),
        ),
    )


def _equation_10_slack() -> Figures:
    clients, local, delta = 1000, 1.0, 1e-6
    numerical = clones_epsilon(delta, local, clients)
    return Figures(
        setting=f"n = {clients}, ε₀ = {local:g}, δ = {delta:g}",
        claimed=1.0,
        computed=amplified(local, delta, clients) / numerical,
        ours=1.0,
        facts=(("f(ε₀)", amplified(local, delta, clients)), ("clones bound", numerical)),
    )


def _lemma_4c() -> Figures:
    terms, t = 100, 60.0
    bound = math.exp(-(t**2) / (2 * terms))
    exact = _laplace_sum_tail(terms, t)
    return Figures(
        setting=f"n = {terms}, b = c = 1, t = {t:g}",
        claimed=1.0,
        computed=exact / bound,
        ours=exact / _sub_gamma(terms, t),
        facts=(("Pr[x̄ ≥ t]", exact), ("printed bound", bound), ("E[e^(λz)] over its bound at λ = b/2", _moment(0.5))),
    )


def _laplace_sum_tail(terms: int, t: float) -> float:
    """Return P(Σ z_i ≥ t) for standard Laplace z_i: the difference of two Gamma(n) variables, integrated."""
    law = stats.gamma(terms)
    low, high = law.ppf(1e-16), law.isf(1e-16)
    return float(integrate.quad(lambda x: law.pdf(x) * law.sf(x + t), low, high, epsabs=0, epsrel=1e-10)[0])


def _sub_gamma(terms: int, t: float) -> float:
    """Return Chernoff's bound with the true moments: min over λ < 1 of (1 - λ²)^(-n) e^(-λt)."""
    rate = (math.sqrt(terms**2 + t**2) - terms) / t
    return math.exp(-terms * math.log1p(-(rate**2)) - rate * t)


def _moment(rate: float) -> float:
    return 1 / (1 - rate**2) / math.exp(rate**2 / 2)


def _theorem_3_crowd() -> Figures:
    clients, epsilon, delta = 10_000, 1.0, 1e-6
    local = amplified_inverse(epsilon, delta, clients)
    return Figures(
        setting=f"n_i = {clients}, ε = {epsilon:g}, δ = {delta:g}, an action played once and seen",
        claimed=epsilon,
        computed=local + 2 * math.log1p(-delta),
        ours=clones_local_epsilon(epsilon, delta, 1) + 2 * math.log1p(-delta),
        facts=(
            ("ε₀ by eq. (10) for the whole batch", local),
            ("largest ε₀ it allows", largest_local_epsilon(delta, clients)),
        ),
    )


ERRATA = (
    Erratum(
        key="free-sensitivity",
        paper="FREE",
        place="Algorithms 1-3, Theorems 1-2",
        printed="|r| ≤ 1 and Lap(1/ε), or Lap(1/ε₀), is ε-DP",
        wrong="a reward in [-1, 1] moves the sum by 2",
        verdict="refuted",
        measure="pure ε",
        instead="sensitivity high - low, from the statistic's stated range: Lap(2/ε)",
        code="common/dp/mechanisms/local/additive.py",
        figures=_sensitivity,
    ),
    Erratum(
        key="free-equation-10-range",
        paper="FREE",
        place="eq. (10)",
        printed="noise Lap(1/ε₀) with ε₀ = f⁻¹(ε), for every batch",
        wrong="f holds for ε₀ ≤ ln(n/(16 ln(2/δ))) only, and in small batches f⁻¹(ε) is below ε: more noise than local",
        verdict="assumption",
        measure="noise over that of the local model",
        instead="paper: max(ε, f⁻¹(ε)), inside its range; exact: the largest ε₀ of a computed bound, for every n",
        code="common/dp/accounting/techniques/amplification/clones.py",
        figures=_equation_10_range,
    ),
    Erratum(
        key="free-equation-10-slack",
        paper="FREE",
        place="eq. (10)",
        printed="ε = f(ε₀), the closed form of Feldman, McMillan & Talwar",
        wrong="several times the ε that the bound behind it gives when it is evaluated",
        verdict="slack",
        measure="f(ε₀) over the clones bound, computed",
        instead="the clones bound, numerically; for a given randomizer its privacy blanket",
        code="common/dp/accounting/techniques/amplification/clones.py",
        figures=_equation_10_slack,
    ),
    Erratum(
        key="free-theorem-3-crowd",
        paper="FREE",
        place="Theorem 3, Remark 7",
        printed="the batch of n_i reports amplifies",
        wrong="only if the server cannot see who plays what (footnote 2); else the n_ia reports of one action do",
        verdict="assumption",
        measure="exact ε at that δ of the one report",
        instead="the whole cohort amplifies only if the shuffler assigns its actions; else each action's reports alone",
        code="common/dp/accounting/techniques/amplification/clones.py",
        figures=_theorem_3_crowd,
    ),
    Erratum(
        key="free-lemma-4c",
        paper="FREE",
        place="Lemma 4, step (c)",
        printed="E[e^(λz)] ≤ e^(λ²/(2b²)) for z ~ Lap(1/b), so that Pr[x̄ ≥ t] ≤ exp(-t²b²/(2nc²)) for t ≤ nc/b",
        wrong="E[e^(λz)] = 1/(1 - λ²/b²), which is larger for every λ ≠ 0: Var z is 2/b², not 1/b²",
        verdict="refuted",
        measure="Pr[x̄ ≥ t] over the printed bound",
        instead="exact quantiles; the paper radius takes the sub-gamma bound",
        code="common/dp/mechanisms/families/laplace.py",
        figures=_lemma_4c,
    ),
)
