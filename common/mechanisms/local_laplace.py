"""Laplace noise at each client, as in papers that send reals."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from common.error_law import ErrorLaw
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.frame import Frame, little_rounding, needed
from common.mechanisms.laplace import LaplaceLike
from common.mechanisms.laplace_profile import continuous_profile
from common.mechanisms.real_noise import FINE, ClientNoise
from common.mechanisms.sensitivity import laplace_scale
from common.messages.cohort import Via
from common.noise import DiscreteLaplace, PolyaDifference
from common.noise.continuous import Laplace
from common.profile import SHOWN_DELTA, Profile


class LocalLaplace(ClientNoise, LaplaceLike):
    """Lap(Δ₁/ε₀) on each client's vector.

    Guarantee    (ε, 0) for every single message, whoever reads it.
    noise        grid: Lap_Z of the same ε on a grid so fine that rounding adds a hundredth of its variance.
    Calibration  the theorem is tight: `paper` and `exact` are the same.
    Source       FREE Algorithm 2, with Δ₁ from the stated range.
    """

    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-laplace"] = "local-laplace"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        epsilon = needed(spec)
        precision = spec.precision or little_rounding(frame, epsilon, frame.clients, FINE)
        total = PolyaDifference(Fraction(frame.clients), laplace_scale(epsilon, precision, frame.dimension, frame.norm))
        own = {"epsilon": epsilon, "noise": spec.noise}
        return cls.model_validate({**frame.shared(precision, frame.room(precision, total, spec.noise)), **own})

    def client_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def real_law(self) -> Laplace:
        return Laplace(self.scale)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - each on its own
        trust = "each client's own device draws its noise"
        return self.promise(self.one_term_epsilon, "local", (*self.warnings, trust))

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        if not self.continuous:
            return super().profile(survivors, colluders, delta)
        found = continuous_profile(self.scale, self.grid, self.one_term_epsilon, delta, self.as_drawn)
        return found.model_copy(update={"notes": self.warnings})

    def error(self, survivors: int) -> ErrorLaw:
        if self.continuous:
            return self.scaled(Laplace(self.scale, survivors), survivors)
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)
