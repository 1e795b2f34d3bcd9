"""No noise: the baseline that protects nobody."""

from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.base import MechanismSpec
from distrust.common.mechanisms.cohort_params import CohortParams
from distrust.common.mechanisms.grid import GridMechanism
from distrust.common.noise.law import ScaledErrorLaw
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, unprotected

FINEST = 1 << 20


class UnsafeIdentity(GridMechanism):
    """The rounded values as they are. Whoever reads a message, or a sum over one client, reads the data.

    Guarantee  none.
    Utility    the sum to half a grid step a client; exact for values on the grid, so for 0/1 rewards.
    """

    model: ClassVar[Model] = "none"
    parts: ClassVar[bool] = True

    name: Literal["identity"] = "identity"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        precision = spec.precision or FINEST
        return cls.model_validate(frame.shared(precision, frame.room(precision, None)))

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        return Guarantee(
            kind="none",
            epsilon=None,
            model=self.model,
            calibration=self.calibration,
            assumptions=("none: there is no noise",),
        )

    @override
    def profile(
        self,
        survivors: int | None = None,
        colluders: int = 0,
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        return unprotected(delta, "there is no noise")

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return ScaledErrorLaw(None, self.step, (0.0, 0.0))
