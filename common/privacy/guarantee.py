"""What is promised: a guarantee as a value, never a bare float, and the sentences that it rests on."""

import math
from typing import Annotated, Literal

from pydantic import Field

from distrust.common.wire import Message

Kind = Literal["none", "pure", "approximate", "renyi"]
Calibration = Literal["exact", "paper"]
Model = Literal["none", "central", "local", "shuffle", "distributed"]

GUARANTEE_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Rényi orders of a guarantee; the larger ones are left out where the law that they need is too long to be stored."""

RenyiCurve = tuple[tuple[float, float], ...]
"""(order α, ε at α) pairs."""


class Guarantee(Message):
    """A differential privacy guarantee for the unit "one client's data", neighbours replace one client.

    kind      none: no privacy at all. pure: (ε, 0). approximate: (ε, δ). renyi: by order, with (ε, δ) converted.
    epsilon   in nats; null when there is none.
    claimed   the ε that was asked for. `epsilon` is computed from the law that is released.
    rdp       (order α, ε at α) pairs, for `renyi` always: what several releases add up by.
    """

    kind: Kind
    epsilon: Annotated[float, Field(ge=0)] | None
    delta: Annotated[float, Field(ge=0, le=1)] = 0.0
    claimed: float | None = None
    rdp: RenyiCurve = ()
    neighbours: Literal["replace one client"] = "replace one client"
    model: Model
    calibration: Calibration
    assumptions: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the guarantee in one line, for people."""
        if self.kind == "none" or self.epsilon is None:
            return "no privacy"
        return f"{self.model} {self.kind} DP, {self.figures()} ({self.calibration} calibration)"

    def figures(self) -> str:
        """Return its ε and δ, for people."""
        if self.kind == "none" or self.epsilon is None:
            return "no privacy"
        delta = f", δ = {self.delta:.3g}" if self.delta else ""
        return f"ε = {self.epsilon:.4g}{delta}"


class BudgetSpec(Message):
    """`[budget]`: what one client may spend in the whole run; a plan that would overdraw it is refused."""

    epsilon: Annotated[float, Field(gt=0, description="ε, in nats")]
    delta: Annotated[float, Field(ge=0, lt=0.5, description="0: pure privacy only")] = 0.0


def sum_assumptions(honest: int) -> tuple[str, ...]:
    """Return the assumptions of secure aggregation."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "server and aggregator do not lie together",
        (
            "the aggregator lies and no client colludes with it, or it is curious and at most ⌊cn⌋ clients do, "
            "c the corruption rate: not both"
        ),
        "only the sum modulo m is opened, once",
    )


def bits_assumptions(honest: int) -> tuple[str, ...]:
    """Return the assumptions of the trusted-shuffler model, for labelled bits."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "the shuffler does not collude with the server and is trusted with labelled bits",
    )


def records_assumptions(honest: int) -> tuple[str, ...]:
    """Return the assumptions of sealed records that a shuffler permutes."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "the shuffler does not collude with the server; if it does, each client's own noise is all there is",
    )


def no_guarantee(calibration: Calibration) -> Guarantee:
    """Return the guarantee of a sum in which too little honest noise is left for any ε."""
    return Guarantee(
        kind="none",
        epsilon=None,
        model="none",
        calibration=calibration,
        assumptions=("the noise of the honest clients gives no guarantee at this δ",),
    )


def shuffled_guarantee(
    calibration: Calibration, claimed: float, epsilon: float, delta: float, assumptions: tuple[str, ...]
) -> Guarantee:
    """Return the (ε, δ) of messages that a shuffler has mixed; no guarantee at all where ε is infinite."""
    if math.isinf(epsilon):
        return no_guarantee(calibration)
    return Guarantee(
        kind="approximate",
        epsilon=epsilon,
        delta=delta,
        claimed=claimed,
        model="shuffle",
        calibration=calibration,
        assumptions=assumptions,
    )
