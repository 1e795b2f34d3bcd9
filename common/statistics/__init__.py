"""How (context, arm, reward) becomes a vector with known bounds."""

from typing import Annotated, TypeAlias

from pydantic import Field

from common.statistics.action_means import ActionMeans
from common.statistics.bounded_reward import BoundedReward
from common.statistics.bounded_vector import BoundedVector
from common.statistics.reward import Reward

Statistic: TypeAlias = Annotated[Reward | BoundedReward | ActionMeans | BoundedVector, Field(discriminator="kind")]
"""The union of the statistics, told apart by their kind."""

__all__ = ["ActionMeans", "BoundedReward", "BoundedVector", "Reward", "Statistic"]
