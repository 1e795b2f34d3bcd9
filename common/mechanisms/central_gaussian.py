"""Gaussian noise at the analyzer: the trusted server, in approximate privacy."""

from typing import Literal, Self

from common.error_law import ErrorLaw
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.frame import Frame
from common.mechanisms.real_gaussian import RealGaussian
from common.mechanisms.real_noise import ServerNoise
from common.noise import DiscreteGaussian


class CentralGaussian(ServerNoise, RealGaussian):
    """N(0, σ²) on every coordinate of the sum, by the server.

    Guarantee  (ε, δ) for what the server publishes; none against the server.
    Source     DLB equations 5 and 55; analytic Gaussian mechanism (Balle & Wang 2018); Canonne, Kamath & Steinke 2020.
    """

    name: Literal["central-gaussian"] = "central-gaussian"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        own = cls.calibrated(spec, frame, frame.clients)
        return cls.model_validate({**frame.shared(own["precision"], frame.room(own["precision"], None)), **own})

    def server_law(self) -> DiscreteGaussian:
        return self.grid_law()

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - server's noise
        return self.one_draw("central", "the server is trusted: it sees the sum and adds the noise")

    def error(self, survivors: int) -> ErrorLaw:  # noqa: ARG002 - one term for any number of survivors
        return self.scaled(self.real_law() if self.continuous else self.grid_law(), self.variance)
