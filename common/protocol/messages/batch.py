"""Defines the batch that an intermediary releases to the server."""

from typing import Annotated, Literal

from pydantic import Field

from distrust.common.protocol.channels import AnyContent
from distrust.common.wire import WIRE, Identifier, Message, Reason, Version


class Batch(Message):
    """A released cohort: how many survived, and their mixed messages. Collecting it again gives the same bytes.

    liars     slots, ascending, of clients that provably dealt, confirmed or returned false shares.
    disputes  pairs of clients of which one lied, and the aggregator cannot tell which.
    """

    version: Version = WIRE
    cohort: Identifier
    survivors: Annotated[int, Field(ge=1)]
    content: AnyContent
    liars: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    disputes: Annotated[int, Field(ge=0)] = 0


class BatchAnswer(Message):
    """A batch, or why there is none: `waiting` (ask again) or `aborted` (never).

    delivery  the batch's position among those that this intermediary has released of its run, from 1. The server
              compares it with the deliveries that it knows of.
    """

    version: Version = WIRE
    cohort: Identifier
    state: Literal["waiting", "released", "aborted"]
    batch: Batch | None = None
    reason: Reason | None = None
    lost: Annotated[int, Field(ge=0, description="slots that did not make it into the batch")] = 0
    delivery: Annotated[int, Field(ge=1)] | None = None
