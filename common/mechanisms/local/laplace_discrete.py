"""Discrete Laplace noise at each client: nobody is trusted."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import MechanismSpec
from distrust.common.mechanisms.calibration.sensitivity import laplace_scale
from distrust.common.mechanisms.cohort_params import CohortParams, laplace_precision, needed
from distrust.common.mechanisms.families.laplace import LaplaceLike
from distrust.common.messages.cohort import Via
from distrust.common.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.privacy.guarantee import Guarantee, Model


class LocalLaplaceDiscrete(LaplaceLike):
    """Lap_Z(gD/ε) on each client's vector.

    Guarantee  (ε, 0) for every single message, whoever reads it.
    Exactness  messages are reduced modulo m; the sum of the n terms wraps with probability at most `wrap`.
    Source     MAB Algorithms 4 and 5, Theorem 6, whose unnamed constant c is replaced by the exact quantile.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")
    parts: ClassVar[bool] = True

    name: Literal["local-laplace-discrete"] = "local-laplace-discrete"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        epsilon, precision = needed(spec), laplace_precision(frame, spec, frame.clients)
        total = PolyaDifference(Fraction(frame.clients), laplace_scale(epsilon, precision, frame.dimension, frame.norm))
        return cls.model_validate({**frame.shared(precision, frame.room(precision, total)), "epsilon": epsilon})

    def client_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        epsilon = self.released_epsilon(PolyaDifference(Fraction(1), self.scale))
        return self.promise(epsilon, ("each client's own device draws its noise",))

    @override
    def released_law(self, honest: int) -> DiscreteLaplace:
        return self.client_law()

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)
