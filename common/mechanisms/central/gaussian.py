"""Gaussian noise at the analyzer: the trusted server, in approximate privacy."""

from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import MechanismSpec
from distrust.common.mechanisms.cohort_params import CohortParams
from distrust.common.mechanisms.families.real_gaussian import RealGaussian
from distrust.common.mechanisms.families.real_noise import ServerNoise
from distrust.common.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.privacy.guarantee import Guarantee, Model


class CentralGaussian(ServerNoise, RealGaussian):
    """N(0, σ²) on every coordinate of the sum, by the server.

    Guarantee  (ε, δ) for what the server publishes; none against the server.
    Source     DLB equations 5 and 55; analytic Gaussian mechanism (Balle & Wang 2018); Canonne, Kamath & Steinke 2020.
    """

    model: ClassVar[Model] = "central"

    name: Literal["central-gaussian"] = "central-gaussian"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        own = cls.calibrated(spec, frame, frame.clients)
        return cls.model_validate({**frame.shared(own["precision"], frame.room(own["precision"], None)), **own})

    def server_law(self) -> DiscreteGaussian:
        return self.grid_law()

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        return self.one_draw("the server is trusted: it sees the sum and adds the noise")

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.real_law() if self.continuous else self.grid_law(), self.variance)
