"""Defines the decisions of a policy: which action each client of a cohort plays."""

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.wire import Message


class AssignedArm(Message):
    """The cohort's arm, public like the round."""

    kind: Literal["assigned-arm"] = "assigned-arm"

    def pulls(self, arm: int | None, clients: int) -> tuple[tuple[int, int], ...]:
        """Return (arm, pulls) that a cohort takes from the horizon: one a client."""
        assert arm is not None
        return ((arm, clients),)


Index = Annotated[int, Field(ge=0)]
Times = Annotated[int, Field(ge=1)]


class _Listed(Message):
    actions: Annotated[list[Index], Field(min_length=1, max_length=100_000, description="indices, all different")]
    times: Annotated[list[Times], Field(min_length=1, max_length=100_000, description="a number for each action")]

    @model_validator(mode="after")
    def _match(self) -> Self:
        if len(self.actions) != len(self.times) or len(set(self.actions)) != len(self.actions):
            raise ValueError("actions must be distinct, and times must give one number for each")
        return self

    def pulls(self, arm: int | None, clients: int) -> tuple[tuple[int, int], ...]:
        """Return (arm, pulls) that a cohort takes from the horizon, which counts rounds of play."""
        del arm, clients
        return tuple(zip(self.actions, self.times, strict=True))


class PlayDesign(_Listed):
    """Each client of the cohort plays action `actions[j]` `times[j]` times, and reports its averages.

    The clients play side by side: a round of the horizon is one play by all of them (DLB section 2).
    """

    kind: Literal["play-design"] = "play-design"


class AssignedAction(_Listed):
    """One action a client: `times[j]` clients play `actions[j]`, in an order that only the shuffler knows.

    The shuffler returns the reports by action: the server learns an action's rewards, and not which clients played it
    (FREE Algorithm 3). The cohort has Σ times clients. Its list has a position for
    each client, numbered from 0: all of an action's in a row, the actions in their order here.
    """

    kind: Literal["assigned-action"] = "assigned-action"

    @property
    def plays(self) -> int:
        """Return Σ times, the positions of the list."""
        return sum(self.times)

    def places(self) -> NDArray[np.int64]:
        """Return the index of each position's action, shape (Σ times,)."""
        return np.repeat(np.arange(len(self.times)), self.times)

    def place(self, position: int) -> int:
        """Return the index of one position's action."""
        return int(np.searchsorted(np.cumsum(self.times), position, side="right"))


Decision = Annotated[AssignedArm | PlayDesign | AssignedAction | ContextualChoice, Field(discriminator="kind")]
"""The union of the decision rules."""
