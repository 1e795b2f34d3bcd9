"""What a client plays."""

from typing import Annotated

from pydantic import Field

from common.decisions.assigned import AssignedArm
from common.decisions.design import AssignedAction, PlayDesign

Decision = Annotated[AssignedArm | PlayDesign | AssignedAction, Field(discriminator="kind")]
"""The union of the decision rules."""

__all__ = ["AssignedAction", "AssignedArm", "Decision", "PlayDesign"]
