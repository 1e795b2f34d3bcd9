"""Private sums, one mechanism a file. `plan` is the way from a run file's words to a calibrated value."""

from typing import Annotated

from pydantic import Field

from common.mechanisms.base import Calibration, Mechanism, MechanismName, MechanismSpec

AnyMechanism = Mechanism  # replaced by the union of the mechanisms
__all__ = ["AnyMechanism", "Calibration", "Mechanism", "MechanismName", "MechanismSpec"]
