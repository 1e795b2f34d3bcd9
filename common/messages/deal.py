"""Clients ↔ shuffler: which play of the cohort's list is whose."""

from typing import Annotated

from pydantic import Field

from distrust.common.messages.base import Blob, Identifier, Message, Version
from distrust.common.messages.upload import RefusedItem

Slots = list[Annotated[int, Field(ge=0)]]


class ActionRequest(Message):
    """Many clients ask for their plays. A ticket is not used up by it: a repeat gets the same answer.

    claims  commitments to the clients' secrets (`common.crypto.context`). A slot's first one is the only one that is
            ever told its play, and only who opens it reports: a ticket alone, which the server can sign, is not enough.
    """

    version: Version = 1
    cohort: Identifier
    slots: Slots
    tickets: Blob  # the slots' 64-byte signatures, one after another
    claims: Blob  # 32 bytes each, in the same order


class ActionAnswer(Message):
    """The plays of those `slots` that were not refused, in the order of the request.

    plays   a play's number in the cohort's list (see `AssignedAction`): its action is public, whose it is is not.
    digest  of the cohort as S knows it: a client that agreed to another one plays nothing.
    """

    version: Version = 1
    cohort: Identifier
    digest: Blob
    slots: Slots
    plays: Slots
    refused: list[RefusedItem]
