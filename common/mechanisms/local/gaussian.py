"""Gaussian noise at each client: nobody is trusted, in approximate privacy."""

import math
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import MechanismSpec
from distrust.common.mechanisms.cohort_params import CohortParams
from distrust.common.mechanisms.families.real_gaussian import RealGaussian
from distrust.common.mechanisms.families.real_noise import ClientNoise
from distrust.common.messages.cohort import Via
from distrust.common.noise.continuous import Gaussian, Rounded
from distrust.common.noise.discrete_gaussian import DiscreteGaussian, DiscreteGaussianSum
from distrust.common.privacy.guarantee import Guarantee, Model


class LocalGaussian(ClientNoise, RealGaussian):
    """N(0, σ²) on every coordinate of each client's vector.

    Guarantee  (ε, δ) for every single message, whoever reads it.
    Source     DLB equations 7 and 57, CTX Appendix F, GLB's OLS; calibrated as `central-gaussian` is.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-gaussian"] = "local-gaussian"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        own = cls.calibrated(spec, frame, 1)
        variance, clients = own["variance"], frame.clients
        drawn = Gaussian(math.sqrt(clients * variance))
        total = drawn if spec.noise == "continuous" else DiscreteGaussianSum(variance, clients)
        modulus = frame.room(own["precision"], total, spec.noise)
        return cls.model_validate({**frame.shared(own["precision"], modulus), **own})

    def client_law(self) -> DiscreteGaussian:
        return self.grid_law()

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        return self.one_draw("each client's own device draws its noise")

    def error(self, survivors: int) -> ErrorLaw:
        variance = survivors * self.variance
        if self.continuous:
            return self.scaled(Rounded(Gaussian(math.sqrt(variance)), survivors), variance + survivors / 4)
        return self.scaled(DiscreteGaussianSum(self.variance, survivors), variance)
