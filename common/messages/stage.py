"""S → clients: where a cohort stands, and what the next stage needs."""

from typing import Annotated, Literal

from pydantic import Field

from common.messages.base import Blob, Identifier, Message, Version


class Inbox(Message):
    """The boxes for one slot: one from each neighbour that shared, in the order of the slot's neighbours."""

    slot: Annotated[int, Field(ge=0)]
    body: Blob


class StageView(Message):
    """The open stage of a cohort.

    members   bitmap of the slots that take part in the open stage (bit i of byte i // 8, low bit first):
              in `shares` those that sent keys, in `masked` those that shared, in `unmask` the survivors.
    roster    only in `shares`: 64 bytes (mask key, channel key) for each member, ascending by slot.
    inboxes   only in `masked`, for the slots that were asked for.
    reason    only in `aborted`.
    """

    version: Version = 1
    cohort: Identifier
    stage: Literal["keys", "shares", "masked", "unmask", "report", "done", "aborted"]
    members: Blob
    roster: Blob | None = None
    inboxes: list[Inbox] | None = None
    reason: str | None = None
