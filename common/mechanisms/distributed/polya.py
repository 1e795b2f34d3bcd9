"""Pólya noise at each client, summed by secure aggregation: discrete Laplace in the sum, pure privacy without trust."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import CohortParams, MechanismSpec, needed
from distrust.common.mechanisms.laplace_like import LaplaceLike, laplace_precision
from distrust.common.messages.cohort import Via
from distrust.common.noise.polya import PolyaDifference
from distrust.common.privacy.guarantee import Guarantee, Model, no_guarantee, sum_assumptions
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, unprotected
from distrust.common.privacy.sensitivity import laplace_scale


class DistributedPolya(LaplaceLike):
    """γ⁺ - γ⁻ with Pólya(1/t, e^(-ε/(gD))): t of them are Lap_Z(gD/ε), and what more clients add only hides more.

    Guarantee  (ε, 0) for the modular sum over at least t honest clients; with fewer the released law has the shape
               r = honest/t < 1 and ε = ln p_r(0)/p_r(g), which `guarantee` computes.
    Utility    standard deviation √2 D √(n'/t) / ε in data units.
    Source     MAB Theorem 1 with t for n; Goryczka & Xiong 2015, Theorem 5.1.
    """

    model: ClassVar[Model] = "distributed"
    vias: ClassVar[tuple[Via, ...]] = ("aggregator",)

    name: Literal["distributed-polya"] = "distributed-polya"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        epsilon, precision = needed(spec), laplace_precision(frame, spec, 1)
        scale = laplace_scale(epsilon, precision, frame.dimension, frame.norm)
        total = PolyaDifference(Fraction(frame.clients, frame.floor), scale)
        tau = scale * frame.log_wrap if spec.calibration == "paper" else 0.0
        return cls(**frame.shared(precision, frame.room(precision, total, least=tau)), epsilon=epsilon)

    def client_law(self) -> PolyaDifference:
        return PolyaDifference(Fraction(1, self.floor), self.scale)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return no_guarantee(self.calibration)
        law = PolyaDifference(Fraction(honest, self.floor), self.scale)
        return self.promise(self.released_epsilon(law), sum_assumptions(honest))

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return unprotected(delta)
        return self.of_the_law(PolyaDifference(Fraction(honest, self.floor), self.scale), delta)

    def released_law(self, honest: int) -> PolyaDifference | None:
        """Log-concave from the floor on."""
        return PolyaDifference(Fraction(honest, self.floor), self.scale) if honest >= self.floor else None

    def error(self, survivors: int) -> ErrorLaw:
        law = PolyaDifference(Fraction(survivors, self.floor), self.scale)
        return self.scaled(law, survivors / self.floor)
