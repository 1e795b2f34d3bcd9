"""A reward that may be negative: one coordinate in [-B, B]."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.messages.base import Message
from common.statistics.bounds import Box, Symmetric, finite

Bound = Annotated[float, Field(gt=0, le=1e6, description="B: a reward's largest absolute value")]


class BoundedReward(Symmetric, Box, Message):
    """A client's reward as a vector of one coordinate; two of them differ by 2B at most, and that is the sensitivity.

    Domain  rewards: float64, shape (n,); NaN and infinities are refused, the rest is clamped to [-B, B] later.
    """

    kind: Literal["bounded-reward"] = "bounded-reward"
    bound: Bound

    @property
    def dimension(self) -> int:
        return 1

    def vectors(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards, shape (n,), to vectors, shape (n, 1)."""
        return finite("reward", rewards).reshape(-1, 1)
