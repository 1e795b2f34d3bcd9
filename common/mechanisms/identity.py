"""No noise: the baseline that protects nobody."""

from typing import ClassVar, Literal, Self

from common.error_law import ErrorLaw
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.frame import Frame
from common.mechanisms.lattice import Lattice
from common.mechanisms.scaled import Scaled
from common.profile import SHOWN_DELTA, Profile, unprotected

FINEST = 1 << 20


class UnsafeIdentity(Lattice):
    """The rounded values as they are. Whoever reads a message, or a sum over one client, reads the data.

    Guarantee  none.
    Utility    the sum to half a grid step a client; exact for values on the grid, so for 0/1 rewards.
    """

    parts: ClassVar[bool] = True

    name: Literal["identity"] = "identity"

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        precision = spec.precision or FINEST
        return cls.model_validate(frame.shared(precision, frame.room(precision, None)))

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - nothing helps
        return Guarantee(
            kind="none",
            epsilon=None,
            model="none",
            calibration=self.calibration,
            assumptions=("none: there is no noise",),
        )

    def profile(
        self,
        survivors: int | None = None,  # noqa: ARG002 - nothing helps
        colluders: int = 0,  # noqa: ARG002 - the same
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        return unprotected(delta, "there is no noise")

    def error(self, survivors: int) -> ErrorLaw:  # noqa: ARG002 - there is no noise
        return Scaled(None, self.step, (0.0, 0.0))
