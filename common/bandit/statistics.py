"""Statistics: the vector that one client contributes to a sum, with its bounds.

A mechanism is planned from the bounds alone, so a statistic is all that it knows of a bandit.
"""

from typing import Annotated, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.errors import BadParameter
from distrust.common.wire import Message


class HasBound(Protocol):
    """Something with a largest absolute value B."""

    @property
    def bound(self) -> float: ...


class Symmetric:
    """A vector whose coordinates all lie in [-B, B]."""

    @property
    def low(self: HasBound) -> float:
        return -self.bound

    @property
    def high(self: HasBound) -> float:
        return self.bound


class Box:
    """A client may move all its coordinates at once, each from end to end."""

    @property
    def norm(self) -> Literal["l1", "l2", "linf"]:
        return "linf"


def finite(field: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values. Raises BadParameter for NaN and infinities among them."""
    if not np.isfinite(values).all():
        raise BadParameter(field, "NaN or infinity", "finite numbers are allowed")
    return values


class OneReward(Box):
    """A client's reward as a vector of one coordinate."""

    @property
    def dimension(self) -> int:
        return 1

    def vectors(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rewards, shape (n,), to vectors, shape (n, 1)."""
        return finite("reward", rewards).reshape(-1, 1)


class Reward(OneReward, Message):
    """A client's reward as a vector of one coordinate.

    Domain  rewards: float64, shape (n,), in [0, 1]; NaN and infinities are refused, the rest is clamped later.
    """

    kind: Literal["reward"] = "reward"

    @property
    def low(self) -> float:
        return 0.0

    @property
    def high(self) -> float:
        return 1.0


Bound = Annotated[float, Field(gt=0, le=1e6, description="B: a reward's largest absolute value")]


class BoundedReward(Symmetric, OneReward, Message):
    """A client's reward as a vector of one coordinate; two of them differ by 2B at most, and that is the sensitivity.

    Domain  rewards: float64, shape (n,); NaN and infinities are refused, the rest is clamped to [-B, B] later.
    """

    kind: Literal["bounded-reward"] = "bounded-reward"
    bound: Bound


class BoundedVector(Symmetric, Message):
    """A client's vector of `dimension` coordinates whose `norm` is at most `bound`, in data units.

    No policy of ours asks for it: the calculator, audits, errata and policies of a user's own do. It is the only one
    with ℓ₁ balls.

    Domain  float64, shape (n, dimension); NaN and infinities are refused, longer vectors are shortened later.
    """

    kind: Literal["bounded-vector"] = "bounded-vector"
    dimension: Annotated[int, Field(ge=1, le=1_000_000, description="D: coordinates")]
    norm: Literal["l1", "l2", "linf"] = "l2"
    bound: Annotated[float, Field(gt=0, le=1e100, description="largest norm of a client's vector")] = 1.0

    def vectors(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values themselves, shape (n, dimension)."""
        if values.ndim != 2 or values.shape[1] != self.dimension:
            raise BadParameter("vectors", values.shape, f"shape must be (n, {self.dimension})")
        return finite("vectors", values)


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
        """Return average rewards, shape (n, s), as they are."""
        if rewards.shape[1:] != (self.actions,):
            raise BadParameter("rewards", rewards.shape, f"shape must be (n, {self.actions})")
        return finite("reward", rewards)


Statistic: TypeAlias = Annotated[
    Reward | BoundedReward | ActionMeans | BoundedVector | ContextualSum, Field(discriminator="kind")
]
"""The union of the statistics, told apart by their kind."""
