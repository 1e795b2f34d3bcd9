"""How a cohort ended. A run is its configuration and these, in order: nothing else needs to be remembered."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from common.messages.base import Identifier, Message


class Released(Message):
    """The analyzer's estimate of the survivors' true sum (one number a coordinate, in data units), noised for good.

    counts  for assigned actions: survivors by action, and then `sum` is by action, too.
    """

    kind: Literal["released"] = "released"
    cohort: Identifier
    sum: Annotated[list[float], Field(min_length=1)]
    survivors: Annotated[int, Field(ge=1)]
    counts: list[Annotated[int, Field(ge=0)]] | None = None


class Lost(Message):
    """An aborted cohort: nothing was released, and why."""

    kind: Literal["aborted"] = "aborted"
    cohort: Identifier
    reason: str


Outcome = Annotated[Released | Lost, Field(discriminator="kind")]

outcomes: TypeAdapter[Released | Lost] = TypeAdapter(Outcome)
"""Reads an outcome back from its JSON."""
