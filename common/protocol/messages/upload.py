"""Defines clients' uploads to an intermediary, many clients in one body, and its answers.

An upload has the messages of one stage. At a shuffler that assigns actions, clients request their positions before.
"""

from typing import Annotated, Literal

from pydantic import FailFast, Field

from distrust.common.wire import WIRE, Blob, Identifier, Message, Reason, Version

Stage = Literal["keys", "shares", "confirm", "masked", "unmask"]
"""The five stages of secure aggregation, in order."""

MOST_LISTED = 1024
"""Refused items that an answer lists one by one. A client that sends no larger uploads learns of each of its items."""


class Item(Message):
    """One client's message.

    slot    number of its place in the cohort, from 0.
    ticket  the 64-byte signature of its slot, in every stage.
    body    the message's bytes, of the stage's own format.
    """

    slot: Annotated[int, Field(ge=0)]
    ticket: Blob
    body: Blob


class Upload(Message):
    """Many clients' messages for one stage.

    digest  of the cohort as its clients know it, `Cohort.digest`: 32 bytes. An intermediary at which another cohort is
            open refuses the whole upload, before it looks at an item.
    stage   the one that the address names. The shuffler's only stage is `report`.
    items   one a slot.
    """

    version: Version = WIRE
    cohort: Identifier
    digest: Blob
    stage: Literal["keys", "shares", "confirm", "masked", "unmask", "report"]
    items: Annotated[list[Item], FailFast()]


Slots = Annotated[list[Annotated[int, Field(ge=0)]], FailFast()]
"""Numbers of clients' places. A list that has a fault is read up to it: a caller may send thousands of faults."""


class Leaving(Message):
    """Clients that know that they are leaving say so. The intermediary need not wait for their deadline.

    slots    of the clients that leave.
    tickets  the slots' 64-byte signatures, one after another.
    keys     at the aggregator the hashes of the slots' keys, 32 bytes each: the tickets are for them.
    """

    version: Version = WIRE
    cohort: Identifier
    slots: Slots
    tickets: Blob
    keys: Blob = b""


class InboxRequest(Message):
    """Clients ask the aggregator for their inboxes. No other party gets the boxes of a client.

    slots    of the clients that ask, each once.
    tickets  the slots' 64-byte signatures, one after another, as they came with the keys.
    """

    version: Version = WIRE
    cohort: Identifier
    slots: Slots
    tickets: Blob


class RefusedItem(Message):
    """One refused item of an upload: the problem's `type`, status and detail."""

    slot: int
    type: Reason
    status: int
    detail: Reason


class UploadAnswer(Message):
    """Answer to an upload: the number of committed items, and the refused ones. A repeated item is accepted again.

    refused  the first MOST_LISTED refused items.
    reasons  a problem's type → refused items, listed or not. Only there when some are not listed.
    """

    version: Version = WIRE
    accepted: int
    refused: list[RefusedItem]
    reasons: Annotated[dict[Reason, int] | None, Field(exclude_if=lambda value: value is None)] = None


class ActionRequest(Message):
    """Many clients ask for their positions. A ticket is not used up by it: a repeat gets the same answer.

    slots    of the clients that ask.
    tickets  the slots' 64-byte signatures, one after another.
    claims   commitments to the clients' secrets (`common.protocol.crypto.context`), 32 bytes each, in the same order. A
             slot's first one is the only one that is ever told its position, and only its opener reports: a ticket
             alone, which the server can sign, is not enough.
    """

    version: Version = WIRE
    cohort: Identifier
    slots: Slots
    tickets: Blob
    claims: Blob


class ActionAnswer(Message):
    """The positions of those `slots` that were not refused, in the order of the request.

    plays   positions in the cohort's list (see `AssignedAction`): its action is public, whose it is is not.
    digest  of the cohort as the shuffler knows it: a client that agreed to another one plays nothing.
    """

    version: Version = WIRE
    cohort: Identifier
    digest: Blob
    slots: Slots
    plays: Slots
    refused: list[RefusedItem]


class Receipts(Message):
    """Clients of a crowd tell the server whether their records are in its list. A client's first answer counts.

    slots    of the clients that answer.
    secrets  whose hashes came with their ticket requests, 16 bytes each, in the same order. No shuffler sees one.
    answers  a byte each, in the same order: 1 present, 0 absent.
    """

    version: Version = WIRE
    cohort: Identifier
    slots: Slots
    secrets: Blob
    answers: Blob
