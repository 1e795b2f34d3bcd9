"""A reward that may be negative: one coordinate in [-B, B]."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.errors import BadParameter
from common.messages.base import Message

Bound = Annotated[float, Field(gt=0, le=1e6, description="B: a reward's largest absolute value")]


class BoundedReward(Message):
    """A client's reward as a vector of one coordinate; two of them differ by 2B at most, and that is the sensitivity.

    Domain  rewards: float64, shape (n,); NaN and infinities are refused, the rest is clamped to [-B, B] later.
    """

    kind: Literal["bounded-reward"] = "bounded-reward"
    bound: Bound

    @property
    def dimension(self) -> int:
        return 1

    @property
    def low(self) -> float:
        return -self.bound

    @property
    def high(self) -> float:
        return self.bound

    @property
    def norm(self) -> Literal["l1", "l2", "linf"]:
        return "linf"

    def vectors(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards, shape (n,), to vectors, shape (n, 1)."""
        if not np.isfinite(rewards).all():
            raise BadParameter("reward", "NaN or infinity", "finite numbers are allowed")
        return rewards.reshape(-1, 1)
