"""How (context, arm, reward) becomes a vector with known bounds."""

from common.statistics.reward import Reward

Statistic = Reward
"""The union of the statistics; one member for now."""

__all__ = ["Reward", "Statistic"]
