"""Discrete Gaussian noise at each client, permuted by a shuffler."""

import math
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.errors import BadParameter
from distrust.common.mechanisms.assumptions import mixed
from distrust.common.mechanisms.base import MechanismSpec, Need
from distrust.common.mechanisms.calibration.gaussian import Grid
from distrust.common.mechanisms.calibration.gaussian_profile import sum_profile
from distrust.common.mechanisms.calibration.sensitivity import INFLATION, PAPER_INFLATION, grid_for
from distrust.common.mechanisms.cohort_params import DELTA_RULE, ROUNDING, CohortParams, needed, require
from distrust.common.mechanisms.families.gaussian import GaussianLike
from distrust.common.mechanisms.families.laplace import SAMPLER
from distrust.common.mechanisms.families.real_gaussian import needed_delta
from distrust.common.mechanisms.shuffled.base import (
    FINEST,
    LOCAL,
    gaussian_epsilon,
    gaussian_renyi,
    gaussian_size,
    gaussian_variance,
    of_the_records,
)
from distrust.common.messages.cohort import Via
from distrust.common.noise.discrete_gaussian import DiscreteGaussian, DiscreteGaussianSum
from distrust.common.privacy.amplification import gaussian_noise
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, bound, tightened


class ShuffledGaussian(GaussianLike):
    """N_Z(0, variance) on every coordinate of each client's vector, sealed and permuted.

    variance   paper: (Δ₂σ/4)², σ of CTX Theorem B.1, made for Δ₂ = 2 and ε/2 for each of two vectors;
               inside its range only (ε₀ ≤ 1, B ≥ 16 e^ε₀ ln(4/δ)). exact: the least for t messages; one coordinate by
               the privacy blanket of the grid's own law, a vector by the clones bound of its (ε₀, δ₀).
    Guarantee  (ε, δ) for the permuted messages of t honest clients, never worse than one message's own.
    Source     CTX P_Amp, Algorithms 2 to 4; Balle et al. 2019; Feldman, McMillan & Talwar 2021.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    takes_delta: ClassVar[Need | None] = "needed"
    whole_because: ClassVar[str] = "its blanket bound is for one randomizer, and each action is another one"

    name: Literal["shuffled-gaussian"] = "shuffled-gaussian"

    @model_validator(mode="after")
    def _has_delta(self) -> Self:
        require(self.delta is not None, "delta", self.delta, DELTA_RULE)
        fits = self.dimension > 1 or self.precision <= FINEST
        require(fits, "precision", self.precision, f"at most {FINEST} for one coordinate")
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        epsilon, delta = needed(spec), needed_delta(spec)
        paper = spec.calibration == "paper"
        size = gaussian_noise(epsilon, delta, frame.floor) / 4 if paper else 0.0
        precision = spec.precision or _precision(epsilon, delta, frame, size)
        if frame.dimension == 1 and precision > FINEST:
            raise BadParameter("mechanism.precision", precision, f"at most {FINEST} for one coordinate")
        grid = Grid(precision, frame.dimension, frame.norm)
        exact = None if paper else gaussian_variance(epsilon, delta, frame.floor, grid)
        variance = grid.squared_l2 * size**2 if exact is None else exact
        total = DiscreteGaussianSum(variance, frame.clients)
        own = {"epsilon": epsilon, "delta": delta, "variance": variance}
        return cls.model_validate({**frame.shared(precision, frame.room(precision, total)), **own})

    def client_law(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.variance)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        assert self.delta is not None
        honest = max(1, self.honest(survivors, colluders))
        asked = self.epsilon if self.calibration == "exact" else 0.0
        epsilon = gaussian_epsilon(self.variance, self.grid, self.delta, honest, asked)
        return mixed(self, self.epsilon, epsilon, self.delta, (*of_the_records(honest), SAMPLER))

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        """(ε, δ) and Rényi of the shuffled messages by the blanket or the clones; one message alone bounds them."""
        found = self.model_copy(update={"delta": delta}).guarantee(survivors, colluders)
        alone = sum_profile(self.variance, 1, self.grid, delta)
        together = gaussian_renyi(self.variance, self.grid, max(1, self.honest(survivors, colluders)))
        change = {"approximate": bound(found.epsilon), "rdp": tightened(alone.rdp, together)}
        return alone.model_copy(update={**change, "rdp_how": "bound", "notes": (LOCAL,)})

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(DiscreteGaussianSum(self.variance, survivors), survivors * self.variance)


def _precision(epsilon: float, delta: float, frame: CohortParams, size: float) -> int:
    """The least g whose rounding variance is a tenth of the noise's, as far as it can be known before g is."""
    wanted = 1 / (4 * ROUNDING)
    if frame.dimension == 1:
        size = size or gaussian_size(epsilon, delta, frame.floor)
        return min(FINEST, max(1, math.ceil(math.sqrt(wanted) / size)))

    def variance(g: int) -> float:
        grid = Grid(g, frame.dimension, frame.norm)
        return grid.squared_l2 * size**2 if size else gaussian_variance(epsilon, delta, frame.floor, grid)

    little = (math.inf, PAPER_INFLATION) if size else (math.log(1 / delta), INFLATION)
    g = max(grid_for(frame.dimension, frame.norm, *little), math.ceil(math.sqrt(wanted / variance(1))))
    while variance(g) < wanted:
        g += 1
    return g
