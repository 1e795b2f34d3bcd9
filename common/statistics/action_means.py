"""A client's average local reward for each action of a design (DLB Algorithm 1, lines 9-12)."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.errors import BadParameter
from common.messages.base import Message
from common.statistics.bounded_reward import Bound
from common.statistics.bounds import Box, Symmetric, finite


class ActionMeans(Symmetric, Box, Message):
    """One coordinate an action, each in [-B, B]. A client may move all of them at once: by 2B√s in ℓ₂, 2Bs in ℓ₁.

    Domain  means: float64, shape (n, s); NaN and infinities are refused, the rest is clamped to [-B, B] later.
    """

    kind: Literal["action-means"] = "action-means"
    actions: Annotated[int, Field(ge=1, le=100_000, description="s: actions of the design")]
    bound: Bound

    @property
    def dimension(self) -> int:
        return self.actions

    def vectors(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Average rewards, shape (n, s), as they are."""
        if rewards.shape[1:] != (self.actions,):
            raise BadParameter("rewards", rewards.shape, f"shape must be (n, {self.actions})")
        return finite("reward", rewards)
