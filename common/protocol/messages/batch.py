"""Defines the batch that an intermediary releases to the server: one union of both intermediaries' contents."""

from typing import Annotated, Literal

from pydantic import Field

from distrust.common.wire import WIRE, Blob, Identifier, Message, Reason, Version


class ModularSum(Message):
    """Σ of the survivors' vectors mod m: `body` packs `dimension` values (see common.modular)."""

    kind: Literal["sum"] = "sum"
    body: Blob


class Records(Message):
    """Sealed records in random order: `count` records of one size, one after another.

    `checksum` is the XOR of SHA-256(record) over the records, as the shuffler saw them arrive; the server compares.
    """

    kind: Literal["records"] = "records"
    count: Annotated[int, Field(ge=1)]
    body: Blob
    checksum: Blob


class GroupedRecords(Message):
    """Sealed records by action, in the order of the cohort's list; within a group in random order.

    `counts`: records of each action. `checksum` is over all of them, as in `Records`.
    """

    kind: Literal["grouped"] = "grouped"
    counts: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=100_000)]
    body: Blob
    checksum: Blob


class PermutedBits(Message):
    """All the clients' bits by label, in random order, packed: ⌈clients·width/8⌉ bytes a label."""

    kind: Literal["bits"] = "bits"
    body: Blob


Content = Annotated[ModularSum | Records | GroupedRecords | PermutedBits, Field(discriminator="kind")]


class Batch(Message):
    """A released cohort: how many survived, and their mixed messages. Collecting it again gives the same bytes.

    liars     slots, ascending, of clients that provably dealt, confirmed or returned false shares.
    disputes  pairs of clients of which one lied, and the aggregator cannot tell which.
    """

    version: Version = WIRE
    cohort: Identifier
    survivors: Annotated[int, Field(ge=1)]
    content: Content
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
