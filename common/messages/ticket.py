"""Server → clients: participation tickets, in bulk."""

from typing import Annotated

from pydantic import Field

from common.messages.base import Blob, Identifier, Message, Version


class TicketRequest(Message):
    """A fleet asks for slots. The same `request` id always gets the same slots."""

    version: Version = 1
    request: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="16 random bytes, chosen by the caller")]
    round: Annotated[int, Field(ge=1)]
    want: Annotated[int, Field(ge=1, le=100_000, description="clients that wait for a slot")]


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


def ticket_text(config: bytes, run: str, round_number: int, cohort: str, slot: int) -> bytes:
    """The bytes that the server signs: a ticket is good for one slot of one cohort of one configuration."""
    return b"\x1f".join(
        [b"distrust ticket v1", config, run.encode(), str(round_number).encode(), cohort.encode(), str(slot).encode()]
    )
