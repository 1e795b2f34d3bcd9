"""Clients → S: one stage's messages of many clients in one body."""

from typing import Annotated, Literal

from pydantic import Field

from common.messages.base import Blob, Identifier, Message, Version

Stage = Literal["keys", "shares", "masked", "unmask"]
"""The four stages of secure aggregation, in order."""


class Item(Message):
    """One client's message. `ticket` is the 64-byte signature of its slot, in every stage."""

    slot: Annotated[int, Field(ge=0)]
    ticket: Blob
    body: Blob


class Upload(Message):
    """Many clients' messages for one stage; one item a slot. The shuffler's only stage is `report`."""

    version: Version = 1
    cohort: Identifier
    stage: Literal["keys", "shares", "masked", "unmask", "report"]
    items: list[Item]


class Departure(Message):
    """Clients that know that they are leaving say so, and S need not wait for their deadline."""

    version: Version = 1
    cohort: Identifier
    slots: list[Annotated[int, Field(ge=0)]]
    tickets: Blob  # the slots' 64-byte signatures, one after another


class RefusedItem(Message):
    """Why one item of an upload was not taken: the problem's `type`, status and detail."""

    slot: int
    type: str
    status: int
    detail: str


class UploadAnswer(Message):
    """Everything that is not listed here is committed. A repeat of a committed item is accepted again."""

    version: Version = 1
    accepted: int
    refused: list[RefusedItem]
