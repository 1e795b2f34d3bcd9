"""Laplace noise at each client, as in papers that send reals."""

import math
from fractions import Fraction
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import MechanismSpec
from distrust.common.mechanisms.calibration.laplace_vectors import continuous_profile
from distrust.common.mechanisms.calibration.sensitivity import drawn_scale, l1, laplace_scale
from distrust.common.mechanisms.cohort_params import CohortParams, little_rounding, needed
from distrust.common.mechanisms.families.laplace import LaplaceLike
from distrust.common.mechanisms.families.real_noise import FINE, INFLATED, ClientNoise
from distrust.common.messages.cohort import Via
from distrust.common.noise.continuous import Laplace, Rounded
from distrust.common.noise.law import ScaledErrorLaw
from distrust.common.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.profile import SHOWN_DELTA, Profile


class LocalLaplace(ClientNoise, LaplaceLike):
    """Lap(Δ₁/ε₀) on each client's vector.

    Guarantee    (ε, 0) for every single message, whoever reads it.
    noise        grid: Lap_Z of the same ε on a grid so fine that rounding adds a hundredth of its variance, and in a
                 ball takes a hundredth more of it. continuous: on the value itself, then rounded at random to the grid.
    Calibration  the theorem is tight: `paper` and `exact` are the same.
    Source       FREE Algorithm 2, with Δ₁ from the stated range.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-laplace"] = "local-laplace"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        epsilon = needed(spec)
        precision = spec.precision or little_rounding(frame, epsilon, frame.clients, FINE, INFLATED)
        words = (epsilon, precision, frame.dimension, frame.norm)
        drawn = Laplace(drawn_scale(*words), frame.clients)
        total = drawn if spec.noise == "continuous" else PolyaDifference(Fraction(frame.clients), laplace_scale(*words))
        own = {"epsilon": epsilon, "noise": spec.noise}
        return cls.model_validate({**frame.shared(precision, frame.room(precision, total, spec.noise)), **own})

    @property
    def scale(self) -> float:
        """Of the noise as it is drawn, in grid steps; continuous noise has no rounding to pay for."""
        if not self.continuous:
            return super().scale
        return drawn_scale(self.epsilon, self.precision, self.dimension, self.norm)

    @property
    def one_term_epsilon(self) -> float:
        if not self.continuous:
            return super().one_term_epsilon
        return l1(self.precision, self.dimension, self.norm) / self.scale

    def client_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def real_law(self) -> Laplace:
        return Laplace(self.scale)

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        trust = "each client's own device draws its noise"
        return self.promise(self.one_term_epsilon, (*self.warnings, trust))

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        if not self.continuous:
            return super().profile(survivors, colluders, delta)
        found = continuous_profile(self.scale, self.grid, self.one_term_epsilon, delta, self.as_drawn)
        return found.model_copy(update={"notes": self.warnings})

    def error(self, survivors: int) -> ErrorLaw:
        if self.continuous:
            rounded, unit = Rounded(Laplace(self.scale, survivors), survivors), self.scale * self.step
            return ScaledErrorLaw(rounded, self.step, (math.sqrt(survivors * (4 * unit**2 + self.step**2 / 2)), unit))
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)
