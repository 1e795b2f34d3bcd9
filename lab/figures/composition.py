"""Draws MAB Appendix I: the noise that returning clients cost, by advanced composition and by Rényi.

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

from distrust.common.dp.accounting.techniques.gaussian import largest_ratio, zcdp_rho
from distrust.common.dp.accounting.techniques.hockey_stick import LEAST_DELTA
from distrust.common.dp.mechanisms.families.base import DELTA_RULE, EPSILONS
from distrust.common.errors import BadParameter
from distrust.lab.figures.drawing import json_digest
from distrust.lab.figures.sheet import Sheet, save, styles

PAPER, RENYI, EXACT = "advanced composition (Theorem 7)", "Rényi (Lemma 10)", "exact (Remark 8)"
CAPTION = (
    "MAB Appendix I, computed: nothing is played. A client takes part in B batches with Gaussian-like noise of standard"
    " deviation σ each. Advanced composition: (ε/(2√(2B ln(2/δ))), δ/(2B)) for each batch, by the classical"
    " calibration; a single batch is calibrated directly. Rényi: B zero-concentrated releases, converted at the best"
    " order. Exact: the least σ whose composition is (ε, δ)."
)

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


def composition_curves(epsilon: float, delta: float, batches: Sequence[int] = BATCHES) -> Curves:
    """Return the three curves. Raises BadParameter unless ε < 1 (Theorem 7), and where one cannot be computed."""
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
        tuple(advanced_sigma(epsilon, delta, count) for count in batches),
        # the least σ/Δ for which `count` times α/(2σ²), which is zero-concentrated, converts to (ε, δ)
        tuple(math.sqrt(count / (2 * zcdp_rho(epsilon, delta))) for count in batches),
        tuple(math.sqrt(count) * least_sigma(epsilon, delta) for count in batches),
    )


def advanced_sigma(epsilon: float, delta: float, count: int) -> float:
    """Return σ/Δ by advanced composition; one batch needs none, and is calibrated directly."""
    if count == 1:
        return _classical(epsilon, delta)
    own = epsilon / (2 * math.sqrt(2 * count * math.log(2 / delta)))
    return _classical(own, delta / (2 * count))


def least_sigma(epsilon: float, delta: float) -> float:
    """Return the least σ/Δ by the analytic Gaussian mechanism (Balle & Wang 2018)."""
    return 1 / largest_ratio(epsilon, delta)


def composition_figure(curves: Curves) -> Figure:
    """Return the curves over the number of batches, both axes logarithmic, with title, legend and caption."""
    by_label = {PAPER: curves.paper, RENYI: curves.rdp, EXACT: curves.exact}
    title = f"Noise that returning clients cost: ε = {curves.epsilon:g}, δ = {curves.delta:g} for all batches together"
    sheet = Sheet(6.8, 5.0, title, CAPTION)
    axes = sheet.above.subplots()
    looks = styles(list(by_label))
    for label, values in by_label.items():
        axes.loglog(curves.batches, values, label=label, **looks[label].words(len(curves.batches)))
    axes.set(xlabel="batches B that one client takes part in", ylabel="noise of one batch: σ / sensitivity")
    axes.grid(visible=True, which="both", alpha=0.2, linewidth=0.6)
    sheet.legend()
    return sheet.figure


def draw_composition(curves: Curves, stem: Path) -> list[Path]:
    """Write `stem`.png, `stem`.svg and `stem`.pdf, stamped with what they show. Return their paths."""
    return save(composition_figure(curves), stem, stem.name, composition_stamp(curves))


def composition_stamp(curves: Curves) -> str:
    """Return the digest of the words and of the curves to nine digits, on which all processors agree; 64 hex digits."""
    values = [[f"{value:.9g}" for value in curve] for curve in (curves.paper, curves.rdp, curves.exact)]
    return json_digest([CAPTION, curves.epsilon, curves.delta, curves.batches, values])


def _classical(epsilon: float, delta: float) -> float:
    """Return √(2 ln(1.25/δ))/ε, proven for ε < 1."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon
