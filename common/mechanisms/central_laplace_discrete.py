"""Discrete Laplace noise at the analyzer: the trusted server."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from common.error_law import ErrorLaw
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.frame import Frame, laplace_precision, needed
from common.mechanisms.laplace import LaplaceLike
from common.mechanisms.sensitivity import laplace_scale
from common.noise import DiscreteLaplace, PolyaDifference


class CentralLaplaceDiscrete(LaplaceLike):
    """Lap_Z(gD/ε) once on the sum, by the server.

    Guarantee  (ε, 0) for what the server publishes; none against the server.
    Exactness  noise is added to the decoded integer, outside Z_m, so that it cannot wrap.
    Source     MAB Algorithms 2 and 3, Theorem 5; the proof holds for every ε.
    """

    parts: ClassVar[bool] = True

    name: Literal["central-laplace-discrete"] = "central-laplace-discrete"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        epsilon, precision = needed(spec), laplace_precision(frame, spec, 1)
        paper = spec.calibration == "paper"  # Theorem 5 keeps room for noise in Z_m; ours needs none there
        law = DiscreteLaplace(laplace_scale(epsilon, precision, frame.dimension, frame.norm)) if paper else None
        return cls.model_validate({**frame.shared(precision, frame.room(precision, law)), "epsilon": epsilon})

    def server_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - server's noise
        epsilon = self.released_epsilon(PolyaDifference(Fraction(1), self.scale))
        return self.promise(epsilon, "central", ("the server is trusted: it sees the sum and adds the noise",))

    def released_law(self, honest: int) -> DiscreteLaplace:  # noqa: ARG002 - server's noise
        return self.server_law()

    def error(self, survivors: int) -> ErrorLaw:  # noqa: ARG002 - one term for any number of survivors
        return self.scaled(self.server_law(), 1)
