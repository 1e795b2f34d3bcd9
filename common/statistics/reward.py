"""The reward itself: one coordinate in [0, 1]."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.errors import BadParameter
from common.messages.base import Message


class Reward(Message):
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

    @property
    def norm(self) -> Literal["l1", "l2", "linf"]:
        return "linf"

    def vectors(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards, shape (n,), to vectors, shape (n, 1)."""
        if not np.isfinite(rewards).all():
            raise BadParameter("reward", "NaN or infinity", "finite numbers are allowed")
        return rewards.reshape(-1, 1)
