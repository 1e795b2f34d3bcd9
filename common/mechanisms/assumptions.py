"""What privacy out of many clients' noise rests on, in sentences."""

import math

from distrust.common.mechanisms.base import Mechanism
from distrust.common.privacy.guarantee import Guarantee


def of_the_sum(honest: int) -> tuple[str, ...]:
    """Assumptions of secure aggregation."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "server and aggregator do not lie together",
        (
            "the aggregator lies and no client colludes with it, or it is curious and at most ⌊cn⌋ clients do, "
            "c the corruption rate: not both"
        ),
        "only the sum modulo m is opened, once",
    )


def of_the_bits(honest: int) -> tuple[str, ...]:
    """Assumptions of the trusted-shuffler model."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "the shuffler does not collude with the server and is trusted with labelled bits",
    )


def no_guarantee(mechanism: Mechanism) -> Guarantee:
    """No honest noise is left, or too little for any ε."""
    return Guarantee(
        kind="none",
        epsilon=None,
        model="none",
        calibration=mechanism.calibration,
        assumptions=("the noise of the honest clients gives no guarantee at this δ",),
    )


def mixed(
    mechanism: Mechanism, claimed: float, epsilon: float, delta: float, assumptions: tuple[str, ...]
) -> Guarantee:
    """(ε, δ) of messages that the shuffler has mixed; no guarantee at all where ε is infinite."""
    if math.isinf(epsilon):
        return no_guarantee(mechanism)
    return Guarantee(
        kind="approximate",
        epsilon=epsilon,
        delta=delta,
        claimed=claimed,
        model="shuffle",
        calibration=mechanism.calibration,
        assumptions=assumptions,
    )


def of_the_records(honest: int) -> tuple[str, ...]:
    """Assumptions of sealed records."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "the shuffler does not collude with the server; if it does, each client's own noise is all there is",
    )


LOCAL = (
    "pure epsilon is that of one message alone, and so are Rényi divergences of orders where shuffling shows no less"
)
