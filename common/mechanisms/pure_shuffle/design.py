"""The parameters of one user's law, and what follows from them in closed form."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.noise.polya import check_shape_and_scale

FARTHEST = 4_000
"""Largest W that is certified: beyond, the search takes minutes."""

LEAST_ESCAPE = 2.0**-50
"""Smallest chance of a uniform answer that is drawn."""


@dataclass(frozen=True, slots=True)
class Design:
    """With probability q ("escape") a user sends a uniform number of ones in {0..d}, else c + x̂ + γ⁺ - γ⁻ ones.

    precision  g ≥ 1: x̂ lies in {0..g}.
    share      t ≥ 1: γ± are Pólya(1/t, β), β = e^(-1/scale), each given that it is at most `reach`.
    scale      of the noise, in grid steps: t shares are discrete Laplace with ε = g/scale.
    reach      W ≥ 1.
    length     d ≥ 2W + g, d - g even: bits a user. c = (d - g)/2, so that x̂ ↔ g - x̂ mirrors the law.
    escape     q in (0, 1), at most the chance of a uniform answer.
    Raises     BadParameter naming the field.
    """

    precision: int
    share: int
    scale: float
    reach: int
    length: int
    escape: float

    def __post_init__(self) -> None:
        check_shape_and_scale(Fraction(1, max(1, self.share)), self.scale)
        least = 2 * self.reach + self.precision
        rules = (
            ("precision", self.precision >= 1, "must be at least 1"),
            ("share", self.share >= 1, "must be at least 1"),
            ("reach", 1 <= self.reach <= FARTHEST, f"must lie in [1, {FARTHEST}]: not certified beyond"),
            ("length", self.length >= least, f"must be at least 2 * reach + precision = {least}"),
            ("length", (self.length - self.precision) % 2 == 0, "must be as odd as precision"),
            ("length", self.length <= 10 * FARTHEST, f"must be at most {10 * FARTHEST}: not certified beyond"),
            ("escape", LEAST_ESCAPE <= self.escape < 1, "must lie in [2^-50, 1)"),
        )
        for field, met, allowed in rules:
            if not met:
                raise BadParameter(field, getattr(self, field), allowed)

    @property
    def center(self) -> int:
        """c: ones of a user in normal mode with x̂ = 0 and no noise."""
        return (self.length - self.precision) // 2

    @property
    def beta(self) -> float:
        """β: what a tail keeps from one step to the next."""
        return math.exp(-1 / self.scale)

    def one_sided(self) -> NDArray[np.float64]:
        """Probabilities of γ⁺ on {0..W}."""
        x = np.arange(self.reach)
        masses = np.concatenate(([1.0], np.cumprod((x + 1 / self.share) / (x + 1) * self.beta)))
        return masses / float(masses.sum())

    def overflow(self) -> float:
        """Bound on P(γ > W) before truncation: the mass at W + 1 and a geometric tail, since ratios stay below β."""
        r, x = 1 / self.share, self.reach + 1
        log = math.lgamma(x + r) - math.lgamma(x + 1) - math.lgamma(r) - x / self.scale
        return math.exp(log + (r - 1) * math.log(-math.expm1(-1 / self.scale)))

    def uniform_chance(self) -> float:
        """Bound on the chance that a user's answer is uniform: escape, or a γ that was too large."""
        return self.escape + 2 * self.overflow()
