"""How a cohort ended. A run is its configuration and these, in order: nothing else needs to be remembered."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from distrust.common.wire import Identifier, Message


class Released(Message):
    """The analyzer's estimate of the survivors' true sum (one number a coordinate, in data units), noised for good.

    counts  for assigned actions: survivors by action, and then `sum` is by action, too.
    liars, disputes  what the aggregator reported of clients that lied (see `messages.batch.Batch`).
    """

    kind: Literal["released"] = "released"
    cohort: Identifier
    sum: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]
    survivors: Annotated[int, Field(ge=1)]
    counts: list[Annotated[int, Field(ge=0)]] | None = None
    liars: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    disputes: Annotated[int, Field(ge=0)] = 0


class Lost(Message):
    """An aborted cohort: nothing was released, and why.

    fault  the server's own code raised an exception on this cohort; the run ends as failed, and nothing is retried.
    """

    kind: Literal["aborted"] = "aborted"
    cohort: Identifier
    reason: str
    fault: bool = False


Outcome = Annotated[Released | Lost, Field(discriminator="kind")]

outcomes: TypeAdapter[Released | Lost] = TypeAdapter(Outcome)
"""Reads an outcome back from its JSON."""
