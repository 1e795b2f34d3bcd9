"""The reward itself: one coordinate in [0, 1]."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.messages.base import Message
from common.statistics.bounds import Box, finite


class Reward(Box, Message):
    """A client's reward as a vector of one coordinate.

    Domain  rewards: float64, shape (n,), in [0, 1]; NaN and infinities are refused, the rest is clamped later.
    """

    kind: Literal["reward"] = "reward"

    @property
    def dimension(self) -> int:
        return 1

    @property
    def low(self) -> float:
        return 0.0

    @property
    def high(self) -> float:
        return 1.0

    def vectors(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards, shape (n,), to vectors, shape (n, 1)."""
        return finite("reward", rewards).reshape(-1, 1)
