"""What the mechanisms share whose noise is made of Pólya shares of discrete Laplace variables."""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from common.accounting import pure_epsilon
from common.guarantee import Guarantee
from common.mechanisms.checks import EPSILON_RULE, epsilon_allowed, require
from common.mechanisms.frame import laplace_scale
from common.mechanisms.lattice import Lattice
from common.mechanisms.scaled import Scaled
from common.noise import Law, PolyaDifference
from common.noise.polya import LONGEST_SCALE

PAPER_TERMS = 2
SAMPLER = "noise is drawn within statistical distance 2^-100 of its law"


class LaplaceLike(Lattice):
    """Noise of scale gD/ε: ε for ℓ₁ sensitivity gD of the integer vector."""

    epsilon: Annotated[float, Field(description="ε in nats, for one client's whole vector")]

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        field = "precision * dimension / epsilon"
        require(self.scale <= LONGEST_SCALE, field, self.scale, f"at most {LONGEST_SCALE:g}")
        return self

    @property
    def scale(self) -> float:
        """Scale of the discrete Laplace law, in grid steps."""
        return laplace_scale(self.epsilon, self.precision, self.dimension)

    def scaled(self, law: Law, terms: float) -> Scaled:
        """The error law of `terms` Laplace terms; (σ, h) in units of D (high - low)/ε.

        (√(2 terms), 1) as in the paper up to two terms, where exact quantiles confirm it. For more it fails, and a
        sub-gamma tail gives (2 √terms, 1): the logarithm of the generating function is at most terms · s²/(1 - s).
        """
        unit = self.dimension * (self.high - self.low) / self.epsilon
        sigma = math.sqrt(2 * terms) if terms <= PAPER_TERMS else 2 * math.sqrt(terms)
        return Scaled(law, self.step, (sigma * unit, unit))

    def released_epsilon(self, law: PolyaDifference) -> float:
        """The largest |ln p(k)/p(k-g)| over all k, D times: every coordinate moves by g.

        Far out the ratio tends to g/scale, from below for shapes of at least 1 (log-concave) and from above for less.
        """
        limit = self.precision / self.scale
        inside = pure_epsilon(law.pmf(), self.precision) if law.shape < 1 else limit
        return self.dimension * max(limit, inside)

    def promise(self, epsilon: float, model: str, assumptions: tuple[str, ...]) -> Guarantee:
        """A pure guarantee of this mechanism."""
        return Guarantee.model_validate(
            {
                "kind": "pure",
                "epsilon": epsilon,
                "claimed": self.epsilon,
                "model": model,
                "calibration": self.calibration,
                "assumptions": (*assumptions, SAMPLER),
            }
        )
