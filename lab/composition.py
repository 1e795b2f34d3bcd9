"""MAB Appendix I: what returning clients cost, by advanced composition of (ε, δ) and by Rényi. As data and as a figure.

Every client takes part in B batches and wants (ε, δ) for all of them. Curves, per batch, of σ/Δ: the standard deviation
of Gaussian-like noise over the sensitivity.

paper        advanced composition (Theorem 7): each batch is (ε/(2√(2B ln(2/δ))), δ/(2B))-DP, by the classical Gaussian
             calibration σ = √(2 ln(1.25/δ_i))/ε_i. Its Equation 14.
rdp          Rényi: B times α/(2σ²), converted by Lemma 10 at the best order. Its Equation 15, without the O.
exact        the least σ whose composition is (ε, δ), computed: √B releases of σ are one of σ/√B. Its Remark 8.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from common.errors import BadParameter
from common.gaussian_accounting import largest_ratio, zcdp_rho
from common.mechanisms.checks import DELTA_RULE, EPSILONS, LEAST_DELTA

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Curves:
    """σ/Δ of one batch for each number of batches; `epsilon` and `delta` are for all batches together."""

    epsilon: float
    delta: float
    batches: tuple[int, ...]
    paper: tuple[float, ...]
    rdp: tuple[float, ...]
    exact: tuple[float, ...]


def curves(epsilon: float, delta: float, batches: Sequence[int] = BATCHES) -> Curves:
    """The three curves. Raises BadParameter outside ε below 1, where Theorem 7 holds, and what can be computed."""
    least, most = EPSILONS[0], BATCHES[-1]
    if not least <= epsilon < 1:
        raise BadParameter("epsilon", epsilon, f"must lie in [{least:g}, 1) (MAB Theorem 7: below 1)")
    if not LEAST_DELTA <= delta < 0.5:
        raise BadParameter("delta", delta, DELTA_RULE)
    if not batches or min(batches) < 1 or max(batches) > most:
        raise BadParameter("batches", list(batches), f"at least one number, each in [1, {most}]")
    return Curves(
        epsilon,
        delta,
        tuple(batches),
        tuple(advanced(epsilon, delta, count) for count in batches),
        tuple(renyi(epsilon, delta, count) for count in batches),
        tuple(math.sqrt(count) * least_sigma(epsilon, delta) for count in batches),
    )


def advanced(epsilon: float, delta: float, count: int) -> float:
    """σ/Δ by advanced composition; one batch needs none, and is calibrated directly."""
    if count == 1:
        return _classical(epsilon, delta)
    own = epsilon / (2 * math.sqrt(2 * count * math.log(2 / delta)))
    return _classical(own, delta / (2 * count))


def renyi(epsilon: float, delta: float, count: int) -> float:
    """The least σ/Δ for which `count` times α/(2σ²), which is zero-concentrated, converts to (ε, δ)."""
    return math.sqrt(count / (2 * zcdp_rho(epsilon, delta)))


def least_sigma(epsilon: float, delta: float) -> float:
    """The analytic Gaussian mechanism (Balle & Wang 2018)."""
    return 1 / largest_ratio(epsilon, delta)


def figure(found: Curves) -> Figure:
    """The curves over the number of batches, both axes logarithmic."""
    drawn = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = drawn.subplots()
    axes.loglog(found.batches, found.paper, "s-", label="advanced composition (Theorem 7)")
    axes.loglog(found.batches, found.rdp, "o-", label="Rényi (Lemma 10)")
    axes.loglog(found.batches, found.exact, "^-", label="exact")
    axes.set_xlabel("batches B that one client takes part in")
    axes.set_ylabel("noise of one batch: σ / sensitivity")
    axes.set_title(f"Returning clients, ε = {found.epsilon:g}, δ = {found.delta:g} in all")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend()
    return drawn


def draw(found: Curves, stem: Path) -> list[Path]:
    """Write the figure as PNG and SVG: `stem`.png and `stem`.svg."""
    drawn = figure(found)
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        drawn.savefig(path, dpi=150)
    return paths


def _classical(epsilon: float, delta: float) -> float:
    """√(2 ln(1.25/δ))/ε, proven for ε < 1."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon
