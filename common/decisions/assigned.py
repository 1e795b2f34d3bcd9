"""An assigned arm: every client of a cohort plays the arm that the round names for it."""

from typing import Literal

from common.messages.base import Message


class AssignedArm(Message):
    """The cohort's arm, known to everyone who sees the round."""

    kind: Literal["assigned-arm"] = "assigned-arm"

    def pulls(self, arm: int | None, clients: int) -> tuple[tuple[int, int], ...]:
        """(arm, pulls) that a cohort takes from the horizon: one a client."""
        assert arm is not None
        return ((arm, clients),)
