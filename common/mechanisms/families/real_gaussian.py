"""What central and local Gaussian noise share: one draw carries the whole guarantee."""

import math
from typing import Any, ClassVar, Self

from pydantic import model_validator
from typing_extensions import override

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.assumptions import nothing
from distrust.common.mechanisms.base import MechanismSpec, Need
from distrust.common.mechanisms.calibration.gaussian import Grid, Target, best_precision, least_variance, sharpness
from distrust.common.mechanisms.calibration.gaussian_profile import continuous_profile, sum_profile
from distrust.common.mechanisms.calibration.gaussian_vectors import renyi, rounded_epsilon, rounded_variance
from distrust.common.mechanisms.calibration.sensitivity import grid_for
from distrust.common.mechanisms.calibration.skellam import ORDERS
from distrust.common.mechanisms.cohort_params import DELTA_RULE, CohortParams, needed, require
from distrust.common.mechanisms.families.gaussian import GaussianLike
from distrust.common.mechanisms.families.real_noise import FINE, INFLATED, RealNoise
from distrust.common.noise.continuous import Gaussian
from distrust.common.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.privacy.profile import SHOWN_DELTA, Profile


class RealGaussian(RealNoise, GaussianLike):
    """`variance` of one draw. paper: Δ₂² · 2 ln(1.25/δ)/ε², for ε < 1 only. exact: the least that is (ε, δ).

    grid        N_Z(0, variance). One coordinate, and the box: (ε, δ) exactly, from the law. A ball: `lattice_epsilon`.
    continuous  N(0, variance): the analytic Gaussian mechanism, exact for vectors too.
    """

    takes_delta: ClassVar[Need | None] = "needed"

    @model_validator(mode="after")
    def _has_delta(self) -> Self:
        require(self.delta is not None, "delta", self.delta, DELTA_RULE)
        return self

    @classmethod
    def calibrated(cls, spec: MechanismSpec, frame: CohortParams, clients: int) -> dict[str, Any]:
        """Own fields and `precision`: rounding `clients` values adds a hundredth of one draw's variance.

        In a ball it adds half a hundredth to the sensitivity too, where it comes before the noise.
        """
        epsilon, delta = needed(spec), needed_delta(spec)
        target = Target(epsilon, delta, 1)
        fine = best_precision(target, frame.dimension, frame.norm, clients, FINE)
        paper = spec.calibration == "paper"
        sharp = math.inf if paper else sharpness(target)
        precision = spec.precision or max(fine, grid_for(frame.dimension, frame.norm, sharp, INFLATED))
        grid = Grid(precision, frame.dimension, frame.norm, rounded=cls.rounds_first or spec.noise == "grid")
        if paper:
            variance = grid.squared_l2 * textbook(epsilon, delta)
        elif spec.noise == "continuous":
            variance = rounded_variance(grid, epsilon, delta)
        else:
            variance = least_variance(target, grid)
        return {
            "precision": precision,
            "epsilon": epsilon,
            "delta": delta,
            "variance": variance,
            "noise": spec.noise,
        }

    def real_law(self) -> Gaussian:
        return Gaussian(math.sqrt(self.variance))

    def grid_law(self) -> DiscreteGaussian:
        """One draw on the grid."""
        return DiscreteGaussian(self.variance)

    @override
    def profile(
        self,
        survivors: int | None = None,
        colluders: int = 0,
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        if not self.continuous:
            return sum_profile(self.variance, 1, self.grid, delta)
        found = continuous_profile(self.variance, self.grid, delta, self.as_drawn)
        return found.model_copy(update={"notes": self.warnings})

    def one_draw(self, trust: str) -> Guarantee:
        """The guarantee of one draw on every coordinate."""
        if not self.continuous:
            return self.released(self.variance, 1, (trust,))
        assert self.delta is not None
        epsilon = rounded_epsilon(self.grid, self.variance, self.delta)
        if math.isinf(epsilon):
            return nothing(self)
        return Guarantee.model_validate(
            {
                "kind": "approximate",
                "epsilon": epsilon,
                "delta": self.delta,
                "claimed": self.epsilon,
                "rdp": tuple((order, renyi(self.grid, self.variance, order)) for order in ORDERS),
                "model": self.model,
                "calibration": self.calibration,
                "assumptions": (*self.warnings, trust),
            }
        )


def needed_delta(spec: MechanismSpec) -> float:
    """δ of a spec whose mechanism needs one."""
    if spec.delta is None:
        raise BadParameter("mechanism.delta", None, f"{spec.name} needs one; {DELTA_RULE}")
    return spec.delta


def textbook(epsilon: float, delta: float) -> float:
    """σ²/Δ² = 2 ln(1.25/δ)/ε², proven for ε < 1 (Dwork & Roth 2014, Theorem A.1)."""
    if epsilon >= 1:
        rule = "must lie in (0, 1) for the paper's Gaussian constants; calibration exact has no such limit"
        raise BadParameter("mechanism.epsilon", epsilon, rule)
    return 2 * math.log(1.25 / delta) / epsilon**2
