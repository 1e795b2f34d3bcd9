"""What the mechanisms share whose noise is made of Pólya shares of discrete Laplace variables."""

import math
from fractions import Fraction
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ScaledErrorLaw, Spread
from distrust.common.mechanisms.families.base import (
    EPSILON_RULE,
    SAMPLER,
    CohortParams,
    MechanismSpec,
    epsilon_allowed,
    needed,
    require,
)
from distrust.common.mechanisms.families.grid import GridMechanism
from distrust.common.noise.polya import LONGEST_SCALE, PolyaDifference
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.privacy.hockey_stick import pure_epsilon
from distrust.common.privacy.laplace import discrete_laplace_profile
from distrust.common.privacy.profile import SHOWN_DELTA, Profile
from distrust.common.privacy.searches import least_satisfying
from distrust.common.privacy.sensitivity import INFLATION, ROUNDING, Grid, l1, laplace_loss, laplace_scale

PAPER_TERMS = 2


class LaplaceLike(GridMechanism):
    """Noise of the least scale that is ε for one client's vector: gD/ε for the box, else by ℓ₁ and rounding."""

    scaled_by: ClassVar[str] = "epsilon"
    """The field that the scale of a client's noise follows from."""

    epsilon: Annotated[float, Field(description="ε in nats, for one client's whole vector")]

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        field = "scale of the noise, in grid steps"
        require(self.scale <= LONGEST_SCALE, field, self.scale, f"at most {LONGEST_SCALE:g}")
        return self

    @property
    def scale(self) -> float:
        """Scale of the discrete Laplace law, in grid steps."""
        return laplace_scale(self.epsilon, self.precision, self.dimension, self.norm)

    @property
    def grid(self) -> Grid:
        """What one client can move."""
        return Grid(self.precision, self.dimension, self.norm)

    @property
    def sampled(self) -> tuple[str, ...]:
        """How exactly the noise is drawn."""
        return (SAMPLER,)

    def scaled(self, law: Spread, terms: float) -> ScaledErrorLaw:
        """Return the error law of `terms` Laplace terms; (σ, h) in units of one term's scale.

        (√(2 terms), 1) as in the paper up to two terms, where exact quantiles confirm it. For more it fails, and a
        sub-gamma tail gives (2 √terms, 1): the logarithm of the generating function is at most terms · s²/(1 - s).
        """
        unit = self.scale * self.step
        sigma = math.sqrt(2 * terms) if terms <= PAPER_TERMS else 2 * math.sqrt(terms)
        return ScaledErrorLaw(law, self.step, (sigma * unit, unit))

    def released_epsilon(self, law: PolyaDifference) -> float:
        """Return the largest log-ratio of neighbours' laws, over all coordinates together.

        A coordinate that moves by g: the largest |ln p(k)/p(k-g)| over all k. Far out it tends to g/scale, from below
        for shapes of at least 1 (log-concave; more than one term is post-processing) and from above for less.
        """
        if law.shape >= 1:
            return laplace_loss(self.scale, self.precision, self.dimension, self.norm)
        if self.norm == "linf" or self.dimension == 1:
            return self.dimension * max(self.precision / self.scale, pure_epsilon(law.pmf(), self.precision))
        return self._short(law)

    @property
    def one_term_epsilon(self) -> float:
        """ε of one Laplace variable of this scale; continuous ones lose no more by the rounding than discrete ones."""
        return laplace_loss(self.scale, self.precision, self.dimension, self.norm)

    def _short(self, law: PolyaDifference) -> float:
        """Return a bound for short cohorts: max Σ L(s_i) over s_i ≤ g with Σ s_i ≤ ⌈ℓ₁⌉ + D - 1, by Lagrange.

        L(s) = ln p(0)/p(s), as p falls log-convexly on both sides of 0; any multiplier gives a bound.
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

    @override
    def profile(
        self,
        survivors: int | None = None,
        colluders: int = 0,
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        return self.of_the_law(PolyaDifference(Fraction(1), self.scale), delta)

    def of_the_law(self, law: PolyaDifference, delta: float) -> Profile:
        """Return the profile of noise `law` on every coordinate of the released integers."""
        return discrete_laplace_profile(law, self.grid, self.released_epsilon(law), delta)

    def promise(self, epsilon: float, assumptions: tuple[str, ...]) -> Guarantee:
        """Return a pure guarantee of this mechanism."""
        return Guarantee(
            kind="pure",
            epsilon=epsilon,
            claimed=self.epsilon,
            model=self.model,
            calibration=self.calibration,
            assumptions=(*assumptions, *self.sampled),
        )


def laplace_precision(cohort: CohortParams, spec: MechanismSpec, terms: int) -> int:
    """Return the precision g for `terms` discrete Laplace terms in the sum.

    ⌈ε√t⌉ for `paper`, else `little_rounding`.
    """
    if spec.precision is not None:
        return spec.precision
    if spec.calibration == "paper":
        return math.ceil(needed(spec) * math.sqrt(cohort.floor))
    return little_rounding(cohort, needed(spec), terms, ROUNDING)


def little_rounding(
    cohort: CohortParams, epsilon: float, terms: int, share: float, inflation: float = INFLATION
) -> int:
    """Return the least g whose rounding variance n/4 is at most `share` of the noise's, terms / (2 sinh²(1/(2 scale))).

    In ℓ₁ and ℓ₂ balls also the least where rounding takes at most `inflation` more scale.
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
