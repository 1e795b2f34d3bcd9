"""What central and local Gaussian noise share: one draw carries the whole guarantee."""

import math
from typing import Any, Self

from pydantic import model_validator

from common.errors import BadParameter
from common.gaussian_accounting import gaussian_epsilon, largest_ratio
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.checks import DELTA_RULE, require
from common.mechanisms.distributed import nothing
from common.mechanisms.frame import Frame, needed
from common.mechanisms.gaussian import GaussianLike
from common.mechanisms.gaussian_profile import continuous_profile, sum_profile
from common.mechanisms.gaussian_search import Grid, Target, best_precision, least_variance
from common.mechanisms.real_noise import FINE, INFLATED, RealNoise
from common.mechanisms.sensitivity import grid_for
from common.mechanisms.skellam_search import ORDERS
from common.noise import DiscreteGaussian
from common.noise.continuous import Gaussian
from common.profile import SHOWN_DELTA, Profile


class RealGaussian(RealNoise, GaussianLike):
    """`variance` of one draw. paper: Δ₂² · 2 ln(1.25/δ)/ε², for ε < 1 only. exact: the least that is (ε, δ).

    grid        N_Z(0, variance). One coordinate, and the box: (ε, δ) exactly, from the law. A ball: `lattice_epsilon`.
    continuous  N(0, variance): the analytic Gaussian mechanism, exact for vectors too.
    """

    @model_validator(mode="after")
    def _has_delta(self) -> Self:
        require(self.delta is not None, "delta", self.delta, DELTA_RULE)
        return self

    @classmethod
    def calibrated(cls, spec: MechanismSpec, frame: Frame, clients: int) -> dict[str, Any]:
        """Own fields and `precision`: rounding `clients` values adds a hundredth of one draw's variance.

        In a ball it adds half a hundredth to the sensitivity too, where it comes before the noise.
        """
        epsilon, delta = needed(spec), needed_delta(spec)
        target = Target(epsilon, delta, 1)
        fine = best_precision(target, frame.dimension, frame.norm, clients, FINE)
        precision = spec.precision or max(fine, grid_for(frame.dimension, frame.norm, INFLATED))
        grid = Grid(precision, frame.dimension, frame.norm, rounded=cls.rounds_first or spec.noise == "grid")
        if spec.calibration == "paper":
            variance = grid.squared_l2 * textbook(epsilon, delta)
        elif spec.noise == "continuous":
            variance = grid.squared_l2 / largest_ratio(epsilon, delta) ** 2
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

    def profile(
        self,
        survivors: int | None = None,  # noqa: ARG002 - one draw is all there is
        colluders: int = 0,  # noqa: ARG002 - the same
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        if not self.continuous:
            return sum_profile(self.variance, 1, self.grid, delta)
        found = continuous_profile(self.variance, self.grid, delta, self.as_drawn)
        return found.model_copy(update={"notes": self.warnings})

    def one_draw(self, model: str, trust: str) -> Guarantee:
        """The guarantee of one draw on every coordinate."""
        if not self.continuous:
            return self.released(self.variance, 1, model, (trust,))
        assert self.delta is not None
        rho = self.grid.squared_l2 / (2 * self.variance)
        epsilon = gaussian_epsilon(math.sqrt(2 * rho), self.delta)
        if math.isinf(epsilon):
            return nothing(self)
        return Guarantee.model_validate(
            {
                "kind": "approximate",
                "epsilon": epsilon,
                "delta": self.delta,
                "claimed": self.epsilon,
                "rdp": tuple((order, order * rho) for order in ORDERS),
                "model": model,
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
