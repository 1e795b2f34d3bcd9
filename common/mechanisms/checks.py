"""Refusals that name field, value and what is allowed."""

import math

EPSILONS = (1e-4, 50.0)
"""Range of ε: below it the noise would not fit its table, above it there is no privacy worth the name."""


def require(met: bool, field: str, value: object, allowed: str) -> None:  # noqa: FBT001 - the condition itself
    """For validators: a ValueError that reads like a BadParameter."""
    if not met:
        raise ValueError(f"{field} = {value!r}: {allowed}")


def epsilon_allowed(epsilon: float) -> bool:
    """Finite and in range."""
    return math.isfinite(epsilon) and EPSILONS[0] <= epsilon <= EPSILONS[1]


EPSILON_RULE = f"must lie in [{EPSILONS[0]:g}, {EPSILONS[1]:g}]"
LEAST_DELTA = 1e-18
"""Below it what the laws leave out, 1e-22, and how exactly noise is drawn would be felt."""

DELTA_RULE = f"must lie in [{LEAST_DELTA:g}, 1/2)"


def delta_allowed(delta: float) -> bool:
    """In the theorems' interval, and not so small that nobody could keep it."""
    return LEAST_DELTA <= delta < 0.5
