"""What a client plays."""

from common.decisions.assigned import AssignedArm

Decision = AssignedArm
"""The union of the decision rules; one member for now."""

__all__ = ["AssignedArm", "Decision"]
