"""Server → clients: participation tickets, in bulk."""

from typing import Annotated

from pydantic import Field

from distrust.common.messages.base import Blob, Identifier, Message, Version
from distrust.common.messages.cohort import Cohort


class TicketRequest(Message):
    """A fleet asks for slots. The same `request` id always gets the same slots."""

    version: Version = 1
    request: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="16 random bytes, chosen by the caller")]
    round: Annotated[int, Field(ge=1)]
    want: Annotated[int, Field(ge=1, le=100_000, description="clients that wait for a slot")]
    keys: Blob = b""  # for secure aggregation: SHA-256 of each client's public keys, 32 bytes each, in order of slots


class Grant(Message):
    """Consecutive slots of one cohort: `signatures` holds 64 bytes for each, from `first` on."""

    cohort: Identifier
    first: Annotated[int, Field(ge=0)]
    count: Annotated[int, Field(ge=1)]
    signatures: Blob


class TicketAnswer(Message):
    """What was granted; empty while nothing is open."""

    version: Version = 1
    grants: list[Grant]


class KeyHashes(Message):
    """Server → clients: what a cohort's clients said of their keys before the aggregator saw any.

    hashes  32 bytes for each slot that has a ticket, from slot 0 on.
    """

    version: Version = 1
    cohort: Identifier
    hashes: Blob


def ticket_text(cohort: Cohort, slot: int, keys: bytes = b"") -> bytes:
    """Return the bytes that the server signs: a ticket is good for one slot of one cohort of one configuration.

    keys  in secure aggregation the hash of the slot's keys, 32 bytes: the aggregator takes no other keys from it.
    """
    names = [cohort.config, cohort.run.encode(), str(cohort.round).encode(), cohort.cohort.encode()]
    return b"\x1f".join([b"distrust ticket v2", *names, str(slot).encode(), keys])
