"""What is promised: a value, never a bare float."""

from typing import Annotated, Literal

from pydantic import Field

from distrust.common.wire import Message

Kind = Literal["none", "pure", "approximate", "renyi"]
Model = Literal["none", "central", "local", "shuffle", "distributed"]

GUARANTEE_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Rényi orders of a guarantee; the larger ones are left out where the law that they need is too long to be stored."""


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
    rdp: tuple[tuple[float, float], ...] = ()
    neighbours: Literal["replace one client"] = "replace one client"
    model: Model
    calibration: Literal["exact", "paper"]
    assumptions: tuple[str, ...] = ()

    def line(self) -> str:
        """One line for people."""
        if self.kind == "none" or self.epsilon is None:
            return "no privacy"
        return f"{self.model} {self.kind} DP, {self.figures()} ({self.calibration} calibration)"

    def figures(self) -> str:
        """Its ε and δ for people."""
        if self.kind == "none" or self.epsilon is None:
            return "no privacy"
        delta = f", δ = {self.delta:.3g}" if self.delta else ""
        return f"ε = {self.epsilon:.4g}{delta}"


class BudgetSpec(Message):
    """`[budget]`: what one client may spend in the whole run; a plan that would overdraw it is refused."""

    epsilon: Annotated[float, Field(gt=0, description="ε, in nats")]
    delta: Annotated[float, Field(ge=0, lt=0.5, description="0: pure privacy only")] = 0.0
