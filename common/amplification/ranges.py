"""Refusals and bisections that the bounds share."""

from collections.abc import Callable

from common.errors import BadParameter

LARGEST_EPSILON = 50.0
LEAST_DELTA = 1e-18
"""Below it the laws' truncation, 1e-22, would be felt."""
MOST_USERS = 10**9


def check_users(users: int) -> None:
    """Refuse a cohort of no size or beyond double precision."""
    if not 1 <= users <= MOST_USERS:
        raise BadParameter("users", users, f"must lie in [1, {MOST_USERS}]")


def check_epsilon(epsilon: float, field: str = "epsilon") -> None:
    """Refuse what is no ε."""
    if not 0 < epsilon <= LARGEST_EPSILON:
        raise BadParameter(field, epsilon, f"must lie in (0, {LARGEST_EPSILON:g}]")


def check_delta(delta: float) -> None:
    """Refuse what is no δ, 0 too: amplification has none."""
    if not LEAST_DELTA <= delta < 0.5:
        raise BadParameter(
            "delta", delta, f"must lie in [{LEAST_DELTA:g}, 1/2): shuffling amplifies (ε, δ) privacy only"
        )


def least_met(met: Callable[[float], bool], low: float, high: float, digits: float) -> float:
    """The least x in [low, high] with `met`, to a relative error of `digits` and rounded up; `high` must meet it.

    Where `met` is not monotone the answer still meets it.
    """
    if met(low):
        return low
    while high - low > digits * high:
        middle = (low + high) / 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


def greatest_met(met: Callable[[float], bool], low: float, high: float, digits: float) -> float:
    """The greatest x in [low, high] with `met`, rounded down; `low` must meet it."""
    if met(high):
        return high
    while high - low > digits * high:
        middle = (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low
