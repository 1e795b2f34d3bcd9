"""A guarantee as a value, and the assumptions that guarantees state."""

from typing import Annotated, Any, Literal

from pydantic import Field

from distrust.common.bandit.error_law import Calibration
from distrust.common.wire import Message

Kind = Literal["none", "pure", "approximate", "renyi"]
Model = Literal["none", "central", "local", "shuffle", "distributed"]

COUNTS_ON_OTHERS: frozenset[Model] = frozenset({"distributed", "shuffle"})
"""Models in which one client's noise does not suffice: their guarantees count on other clients' messages."""

GUARANTEE_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Rényi orders of a guarantee. Orders whose law would be too long to store are left out."""

RenyiCurve = tuple[tuple[float, float], ...]
"""Pairs of an order α and the ε at α."""

OWN_DEVICE = "each client's own device draws its noise"
"""The assumption of noise that a client adds to its own message."""

TRUSTED_SERVER = "the server is trusted: it sees the sum and adds the noise"
"""The assumption of noise that the server adds."""

ALONE = "all other clients of a cohort collude, and only the noise of the client's own device counts"
"""The assumption of what is left of a guarantee that counts on other clients."""

IF_OTHERS_COLLUDE = "if all other clients collude"
"""The name of that figure wherever it is shown."""

SAMPLER = "noise is drawn within statistical distance 2^-100 of its law"
"""The assumption of every guarantee whose noise is drawn on the integers."""

STREAM_SAMPLER = "each number of noise is drawn within statistical distance 2^-100 of its law"
"""The assumption of a stream's guarantee. A stream may have more numbers of noise than SAMPLER bounds together."""


class Guarantee(Message):
    """A differential privacy guarantee for the unit "one client's data"; neighbours replace one client.

    kind      none: no privacy at all. pure: (ε, 0). approximate: (ε, δ). renyi: by order, with (ε, δ) converted.
    epsilon   in nats, computed from the law that is released; null when there is none.
    delta     the δ that `epsilon` is for; 0 when the guarantee is pure.
    claimed   the ε that was asked for.
    rdp       (order α, ε at α) pairs, by which several releases compose; a guarantee of kind `renyi` always has them.
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


class ShownGuarantee(Guarantee):
    """A guarantee as every reader is shown it, beside what is left of it.

    alone  what holds if all other clients of a cohort collude: equal to the guarantee where it counts on no other
           client, and of kind "none" where nothing is proven.
    """

    alone: Guarantee

    @classmethod
    def of(cls, guarantee: Guarantee, alone: Guarantee) -> "ShownGuarantee":
        """Return a guarantee and what is left of it as one value."""
        return cls(**dict(guarantee), alone=alone)

    def left(self) -> str:
        """Return what is left if all other clients collude: its ε and δ, "the same", or "no guarantee"."""
        left = self.alone
        if left.kind == "none" or left.epsilon is None:
            return "no guarantee"
        same = (left.kind, left.epsilon, left.delta) == (self.kind, self.epsilon, self.delta)
        return "the same" if same else left.figures()

    def left_line(self) -> str:
        """Return what is left, and when, for people."""
        return f"{self.left()} {IF_OTHERS_COLLUDE}"

    def both(self) -> str:
        """Return its ε and δ, and what is left of them, for people."""
        return f"{self.figures()}; {self.left_line()}"

    def columns(self) -> dict[str, Any]:
        """Return its fields as columns of a data frame; `epsilon_alone` is what is left, null for no guarantee."""
        return {**self.model_dump(exclude={"alone"}), "epsilon_alone": self.alone.epsilon}


class BudgetSpec(Message):
    """The table `[budget]` of a run file: what one client may spend in the whole run.

    The learner refuses a plan that would overdraw it. The fleets of `distrust run` have it as their clients' limits.

    min_survivors  smallest floor t of a cohort that these clients accept; absent: their own default.
    """

    epsilon: Annotated[float, Field(gt=0, description="ε, in nats")]
    delta: Annotated[float, Field(ge=0, lt=0.5, description="0: pure privacy only")] = 0.0
    min_survivors: Annotated[
        int | None,
        Field(ge=1, description="least survivors that noise may count on", exclude_if=lambda value: value is None),
    ] = None


def sum_assumptions(honest: int) -> tuple[str, ...]:
    """Return the assumptions of a sum by secure aggregation, with the noise of `honest` clients."""
    return (
        f"at least {honest} honest clients answer and keep their noise to themselves",
        "server and aggregator do not lie together",
        (
            "the aggregator lies and no client colludes with it, or it is curious and at most ⌊cn⌋ clients do, "
            "c the corruption rate: not both"
        ),
        "only the sum modulo m is opened, once",
    )


def bits_assumptions(honest: int) -> tuple[str, ...]:
    """Return the assumptions of labelled bits at a trusted shuffler, with the noise of `honest` clients."""
    return (
        f"at least {honest} honest clients answer and keep their noise to themselves",
        "the shuffler does not collude with the server",
        "the shuffler is trusted with labelled bits: against it each client has its own noise alone",
    )


def records_assumptions(honest: int) -> tuple[str, ...]:
    """Return the assumptions of sealed records that a shuffler permutes, with `honest` clients' messages."""
    return (
        f"at least {honest} honest clients answer and keep their noise to themselves",
        "server and shuffler do not lie together; if they do, each client's own noise is all there is",
        "clients look whether their records arrived: a shuffler that replaces others' is noticed by that alone",
    )


def no_guarantee(
    calibration: Calibration, reason: str = "the noise of the honest clients gives no guarantee at this δ"
) -> Guarantee:
    """Return a guarantee of kind "none", whose only assumption says why no ε holds."""
    return Guarantee(kind="none", epsilon=None, model="none", calibration=calibration, assumptions=(reason,))
