"""Discrete Laplace noise at the analyzer: the trusted server."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import MechanismSpec
from distrust.common.mechanisms.calibration.sensitivity import laplace_scale
from distrust.common.mechanisms.cohort_params import CohortParams, laplace_precision, needed
from distrust.common.mechanisms.families.laplace import LaplaceLike
from distrust.common.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.privacy.guarantee import Guarantee, Model


class CentralLaplaceDiscrete(LaplaceLike):
    """Lap_Z(gD/ε) once on the sum, by the server.

    Guarantee  (ε, 0) for what the server publishes; none against the server.
    Exactness  noise is added to the decoded integer, outside Z_m, so that it cannot wrap.
    Source     MAB Algorithms 2 and 3, Theorem 5; the proof holds for every ε.
    """

    model: ClassVar[Model] = "central"
    parts: ClassVar[bool] = True

    name: Literal["central-laplace-discrete"] = "central-laplace-discrete"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        epsilon, precision = needed(spec), laplace_precision(frame, spec, 1)
        paper = spec.calibration == "paper"  # Theorem 5 keeps room for noise in Z_m; ours needs none there
        law = DiscreteLaplace(laplace_scale(epsilon, precision, frame.dimension, frame.norm)) if paper else None
        return cls.model_validate({**frame.shared(precision, frame.room(precision, law)), "epsilon": epsilon})

    def server_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        epsilon = self.released_epsilon(PolyaDifference(Fraction(1), self.scale))
        return self.promise(epsilon, ("the server is trusted: it sees the sum and adds the noise",))

    @override
    def released_law(self, honest: int) -> DiscreteLaplace:
        return self.server_law()

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.server_law(), 1)
