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
from distrust.lab.papers.erratum import Figures, amplified, amplified_inverse, epsilon_of, planned


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
