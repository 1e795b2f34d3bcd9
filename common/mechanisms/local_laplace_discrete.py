"""Discrete Laplace noise at each client: nobody is trusted."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from common.error_law import ErrorLaw
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.frame import Frame, laplace_precision, needed
from common.mechanisms.laplace import LaplaceLike
from common.mechanisms.sensitivity import laplace_scale
from common.messages.cohort import Via
from common.noise import DiscreteLaplace, PolyaDifference


class LocalLaplaceDiscrete(LaplaceLike):
    """Lap_Z(gD/ε) on each client's vector.

    Guarantee  (ε, 0) for every single message, whoever reads it.
    Exactness  messages are reduced modulo m; the sum of the n terms wraps with probability at most `wrap`.
    Source     MAB Algorithms 4 and 5, Theorem 6, whose unnamed constant c is replaced by the exact quantile.
    """

    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    parts: ClassVar[bool] = True

    name: Literal["local-laplace-discrete"] = "local-laplace-discrete"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        epsilon, precision = needed(spec), laplace_precision(frame, spec, frame.clients)
        total = PolyaDifference(Fraction(frame.clients), laplace_scale(epsilon, precision, frame.dimension, frame.norm))
        return cls.model_validate({**frame.shared(precision, frame.room(precision, total)), "epsilon": epsilon})

    def client_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - each on its own
        epsilon = self.released_epsilon(PolyaDifference(Fraction(1), self.scale))
        return self.promise(epsilon, "local", ("each client's own device draws its noise",))

    def released_law(self, honest: int) -> DiscreteLaplace:  # noqa: ARG002 - each on its own
        return self.client_law()

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)
