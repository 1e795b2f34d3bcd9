"""The base classes of mechanisms with Laplace noise: discrete, whole or in Pólya shares, or one draw in reals."""

import math
from fractions import Fraction
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ScaledErrorLaw, Spread
from distrust.common.dp.accounting.guarantee import SAMPLER
from distrust.common.dp.accounting.laws.laplace import discrete_laplace_profile, real_laplace_profile, repeated_laplace
from distrust.common.dp.accounting.profile import Privacy, Profile
from distrust.common.dp.accounting.techniques.hockey_stick import pure_epsilon
from distrust.common.dp.accounting.techniques.searches import least_satisfying
from distrust.common.dp.accounting.techniques.sensitivity import INFLATION, ROUNDING, l1, laplace_loss, laplace_scale
from distrust.common.dp.mechanisms.families.base import MechanismSpec, needed, require
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.grid import UNSAFE, GridMechanism, RealNoise
from distrust.common.dp.noise.continuous import Laplace
from distrust.common.dp.noise.law import Law
from distrust.common.dp.noise.polya import LONGEST_SCALE, DiscreteLaplace, PolyaDifference

PAPER_TERMS = 2
"""Laplace terms in a sum up to which the paper's tail holds; exact quantiles confirm it there, and deny it beyond."""


class LaplaceLike(GridMechanism):
    """A mechanism with noise of the least scale that is ε for one client's vector.

    The scale is gD/ε for the box, and follows from ℓ₁ and the rounding for a ball.
    """

    scaled_by: ClassVar[str] = "epsilon"
    """The field that the scale of a client's noise follows from."""

    worst_on_diagonal: ClassVar[bool] = True

    epsilon: Annotated[float, Field(description="ε in nats, for one client's whole vector")]

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        field = "scale of the noise, in grid steps"
        require(self.scale <= LONGEST_SCALE, field, self.scale, f"at most {LONGEST_SCALE:g}")
        return self

    @property
    def scale(self) -> float:
        """Return the scale of the discrete Laplace law, in grid steps."""
        return laplace_scale(self.epsilon, self.precision, self.dimension, self.norm)

    @override
    def replicated(self, replicas: int) -> Self:
        wide = super().replicated(replicas)
        kept = getattr(wide, self.scaled_by) * wide.scale / self.scale  # the scale follows from ε and the dimension
        return wide.model_copy(update={self.scaled_by: kept})

    def scaled(self, law: Spread, terms: float) -> ScaledErrorLaw:
        """Return the law of the error for noise `law`, in grid steps, made of `terms` Laplace variables.

        Its tail (σ, h), in units of one variable's scale, is the paper's (√(2 terms), 1) up to PAPER_TERMS, and
        (2 √terms, 1) beyond.
        """
        unit = self.scale * self.step
        # Beyond, the tail is sub-gamma: the log of the generating function is at most terms · s²/(1 - s).
        sigma = math.sqrt(2 * terms) if terms <= PAPER_TERMS else 2 * math.sqrt(terms)
        return ScaledErrorLaw(law, self.step, (sigma * unit, unit))

    def released_epsilon(self, law: PolyaDifference) -> float:
        """Return the pure ε of noise `law`: the largest log-ratio of neighbours' laws, over all coordinates together.

        For a coordinate that moves by g it is the largest |ln p(k)/p(k-g)| over all k; inf where none is proven.
        """
        # Far out the log-ratio tends to g/scale: from below for shapes of at least 1, which are log-concave and where
        # more than one term is post-processing, and from above for smaller shapes.
        if law.shape >= 1:
            return laplace_loss(self.scale, self.precision, self.dimension, self.norm)
        if self.norm == "linf" or self.dimension == 1:
            return self.dimension * max(self.precision / self.scale, pure_epsilon(law.pmf(), self.precision))
        return self._short(law)

    @property
    def one_term_epsilon(self) -> float:
        """Return ε of one Laplace variable of this scale.

        Rounding costs continuous variables no more than discrete ones.
        """
        return laplace_loss(self.scale, self.precision, self.dimension, self.norm)

    def _short(self, law: PolyaDifference) -> float:
        """Return a bound on ε in a ball for shapes below 1: max Σ L(s_i) over s_i ≤ g with Σ s_i ≤ ⌈ℓ₁⌉ + D - 1.

        L(s) = ln p(0)/p(s), because p falls log-convexly on both sides of 0. Any multiplier of Lagrange gives a bound.
        Return inf where the stored law is shorter than g.
        """
        pmf = law.pmf()
        center = pmf.logs.size // 2
        losses = pmf.logs[center] - pmf.logs[center : center + self.precision + 1]
        if losses.size <= self.precision:
            return math.inf
        budget = math.ceil(l1(self.precision, self.dimension, self.norm)) + self.dimension - 1
        each = min(budget // self.dimension, self.precision - 1)
        price = float(losses[each + 1] - losses[each])
        best = float((losses - price * np.arange(losses.size)).max())
        return price * budget + self.dimension * best

    def laplace_privacy(self, noise: PolyaDifference, assumptions: tuple[str, ...], law: Law | None) -> Privacy:
        """Return the privacy of `noise` on every coordinate of the released integers, which is pure.

        law  the same noise, where several releases may be composed from it; else None.
        """
        return Privacy(
            compute_promise=lambda: self.make_guarantee("pure", self.released_epsilon(noise), (*assumptions, SAMPLER)),
            compute_profile=lambda delta: discrete_laplace_profile(
                noise, self.grid, self.released_epsilon(noise), delta
            ),
            law=law,
            repeated=repeated_laplace(self.scale, self.grid) if noise.shape >= 1 else None,
        )

    def one_term_privacy(self, trust: str) -> Privacy:
        """Return the privacy of one discrete Laplace variable on every coordinate; `trust` says which party draws."""
        return self.laplace_privacy(PolyaDifference(Fraction(1), self.scale), (trust,), DiscreteLaplace(self.scale))


class RealLaplace(RealNoise, LaplaceLike):
    """A mechanism with one draw of Laplace noise on every coordinate.

    grid        Lap_Z(scale), on a grid of `little_rounding`.
    continuous  Lap(scale).
    """

    def real_law(self) -> Laplace:
        return Laplace(self.scale)

    def grid_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        if not self.continuous:
            return self.one_term_privacy(self.trust)
        return Privacy(
            compute_promise=lambda: self.make_guarantee("pure", self.one_term_epsilon, self.assumptions),
            compute_profile=self._continuous_profile,
            repeated=repeated_laplace(self.scale, self.grid, continuous=True),
        )

    def _continuous_profile(self, delta: float) -> Profile:
        result = real_laplace_profile(self.scale, self.grid, self.one_term_epsilon, delta, self.as_drawn)
        return result.model_copy(update={"notes": (UNSAFE,)})


def laplace_precision(cohort: CohortParams, spec: MechanismSpec, terms: int) -> int:
    """Return the precision g for `terms` discrete Laplace terms in the sum.

    It is ⌈ε√t⌉ for `paper`, else that of `little_rounding`.
    """
    if spec.precision is not None:
        return spec.precision
    if spec.calibration == "paper":
        return math.ceil(needed(spec) * math.sqrt(cohort.min_honest))
    return little_rounding(cohort, needed(spec), terms, ROUNDING)


def little_rounding(
    cohort: CohortParams, epsilon: float, terms: int, share: float, inflation: float = INFLATION
) -> int:
    """Return the least g whose rounding variance n/4 is at most `share` of the noise's, terms / (2 sinh²(1/(2 scale))).

    In ℓ₁ and ℓ₂ balls rounding must also take at most `inflation` more scale.
    """
    sine = math.sqrt(2 * share * terms / cohort.clients)
    scale = 1 / (2 * math.asinh(sine))
    guess = max(1, math.ceil(scale * epsilon / cohort.dimension))
    if cohort.norm == "linf" or cohort.dimension == 1:
        return guess

    def enough(g: int) -> bool:
        own = laplace_scale(epsilon, g, cohort.dimension, cohort.norm)
        return own >= scale and own <= (1 + inflation) * l1(g, cohort.dimension, cohort.norm) / epsilon

    return least_satisfying(enough, guess)
