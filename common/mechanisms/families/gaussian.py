"""What the mechanisms share whose noise is discrete Gaussian, in one piece or in shares."""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from distrust.common.mechanisms.assumptions import nothing
from distrust.common.mechanisms.calibration.gaussian import Grid, approximate, divergences
from distrust.common.mechanisms.cohort_params import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed, require
from distrust.common.mechanisms.families.laplace import SAMPLER
from distrust.common.mechanisms.grid import GridMechanism
from distrust.common.noise.law import ScaledErrorLaw, Spread
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.privacy.profile import SHOWN_DELTA


class GaussianLike(GridMechanism):
    """Noise calibrated to the ℓ₂ norm of what one client can move, rounding included."""

    epsilon: Annotated[float, Field(description="ε in nats, for one client's whole vector")]
    delta: float | None = None
    variance: Annotated[float, Field(gt=0, description="parameter of the noise that is counted on, grid steps squared")]

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        require(self.delta is None or delta_allowed(self.delta), "delta", self.delta, DELTA_RULE)
        return self

    @property
    def grid(self) -> Grid:
        """What one client can move."""
        return Grid(self.precision, self.dimension, self.norm)

    def released(self, share: float, terms: int, assumptions: tuple[str, ...]) -> Guarantee:
        """The guarantee of `terms` N_Z(0, share) on every coordinate; RDP by order always, at ORDERS."""
        delta = SHOWN_DELTA if self.delta is None else self.delta
        epsilon = approximate(share, terms, self.grid, delta)
        if math.isinf(epsilon):
            return nothing(self)
        return Guarantee.model_validate(
            {
                "kind": "approximate" if self.dimension == 1 and self.delta is not None else "renyi",
                "epsilon": epsilon,
                "delta": delta,
                "claimed": self.epsilon,
                "rdp": divergences(share, terms, self.grid),
                "model": self.model,
                "calibration": self.calibration,
                "assumptions": (*assumptions, SAMPLER),
            }
        )

    def scaled(self, law: Spread, variance: float) -> ScaledErrorLaw:
        """The error law; sub-Gaussian with the parameter itself: above √(2 variance ln(2/p)) at most p remains."""
        return ScaledErrorLaw(law, self.step, (math.sqrt(2 * variance) * self.step, 0.0))
