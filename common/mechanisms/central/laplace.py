"""Laplace noise at the analyzer, as in papers that add it to real sums."""

from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import MechanismSpec
from distrust.common.mechanisms.calibration.laplace_vectors import continuous_profile
from distrust.common.mechanisms.cohort_params import CohortParams, little_rounding, needed
from distrust.common.mechanisms.families.laplace import LaplaceLike
from distrust.common.mechanisms.families.real_noise import FINE, INFLATED, ServerNoise
from distrust.common.noise.continuous import Laplace
from distrust.common.noise.polya import DiscreteLaplace
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.profile import SHOWN_DELTA, Profile


class CentralLaplace(ServerNoise, LaplaceLike):
    """Lap(Δ₁/ε) once on the sum, by the server; Δ₁ from the stated range: 2 for rewards in [-1, 1].

    Guarantee    (ε, 0) for what the server publishes; none against the server.
    noise        grid: Lap_Z of the same ε on a grid so fine that rounding adds a hundredth of its variance, and in a
                 ball takes a hundredth more of it.
    Calibration  the theorem is tight: `paper` and `exact` are the same.
    Source       FREE Algorithm 1, which states Lap(1/ε) for rewards in [-1, 1] and so gives 2ε; Sajed & Sheffet 2019.
    """

    model: ClassVar[Model] = "central"

    name: Literal["central-laplace"] = "central-laplace"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        epsilon = needed(spec)
        precision = spec.precision or little_rounding(frame, epsilon, 1, FINE, INFLATED)
        own = {"epsilon": epsilon, "noise": spec.noise}
        return cls.model_validate({**frame.shared(precision, frame.room(precision, None)), **own})

    def server_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def real_law(self) -> Laplace:
        return Laplace(self.scale)

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        trust = "the server is trusted: it sees the sum and adds the noise"
        return self.promise(self.one_term_epsilon, (*self.warnings, trust))

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        if not self.continuous:
            return super().profile(survivors, colluders, delta)
        found = continuous_profile(self.scale, self.grid, self.one_term_epsilon, delta, self.as_drawn)
        return found.model_copy(update={"notes": self.warnings})

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.real_law() if self.continuous else self.server_law(), 1)
