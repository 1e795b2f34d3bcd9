"""Defines one user of a cohort: its slot, its ticket, its secret, its keys, and when it leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from secrets import token_bytes
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distrust.client.cohort.departures import NEVER, STAGES
from distrust.client.cohort.secagg import Secrets
from distrust.common.errors import BadMessage
from distrust.common.protocol.channels.assigned import SECRET
from distrust.common.protocol.crypto.keys import key_hash
from distrust.common.protocol.crypto.receipts import receipt_hash
from distrust.common.protocol.messages.cohort import SIGNATURE, Grant
from distrust.common.protocol.messages.upload import Item, Stage

AnyStage = Stage | Literal["report", "receipt"]
_LIKE: dict[AnyStage, Stage] = {"report": "masked", "receipt": "masked", "confirm": "shares"}


@dataclass(frozen=True, slots=True)
class User:
    """A client of one cohort.

    ticket   64 bytes, the server's signature of the slot.
    leaves   number of the first stage that it does not answer; 4: it stays to the end.
    secret   32 random bytes. By them the shuffler recognizes the client that requested an action.
    keys     keys and seeds for secure aggregation. Their hash went to the server with the ticket request.
    receipt  16 random bytes, by which the server recognizes its receipt; empty in a cohort that gives none. Their hash
             went to the server with the ticket request.
    """

    slot: int
    ticket: bytes
    leaves: int = NEVER
    secret: bytes = field(default_factory=lambda: token_bytes(SECRET), repr=False, compare=False)
    keys: Secrets | None = field(default=None, repr=False, compare=False)
    receipt: bytes = field(default=b"", repr=False, compare=False)

    @property
    def key_hash(self) -> bytes:
        """Return the hash of its keys, which the server signed with the ticket: 32 bytes; empty at the shuffler."""
        return b"" if self.keys is None else key_hash(self.keys.public)

    def answers(self, stage: AnyStage) -> bool:
        """Return whether it answers `stage`.

        A client that would send its masked input sends its report and gives its receipt, and one that answers `shares`
        answers `confirm`.
        """
        return STAGES.index(_LIKE.get(stage) or stage) < self.leaves

    def item(self, body: bytes) -> Item:
        """Return its message for a stage."""
        return Item(slot=self.slot, ticket=self.ticket, body=body)


Own = Secrets | bytes
"""Keys for secure aggregation, or the secret of a receipt. A client makes them before it requests a ticket."""


def own_hash(own: Own) -> bytes:
    """Return the hash that goes to the server with the ticket request, 32 bytes."""
    return receipt_hash(own) if isinstance(own, bytes) else key_hash(own.public)


def granted(grant: Grant, leaves: NDArray[np.int64], keys: Sequence[Own] = ()) -> list[User]:
    """Return the users of a grant of tickets.

    leaves  as drawn for the whole cohort, shape (n,).
    keys    in the order in which their hashes were sent, one for each slot; none where the request had no hashes.

    Raises BadMessage when the signatures are not 64 bytes for each slot.
    """
    ends = range(0, SIGNATURE * grant.count + 1, SIGNATURE)
    short = bool(keys) and len(keys) != grant.count
    if short or len(grant.signatures) != ends[-1] or grant.first + grant.count > len(leaves):
        raise BadMessage(f"the grant of {grant.count} tickets for cohort {grant.cohort} does not add up")
    tickets = [grant.signatures[start:end] for start, end in pairwise(ends)]
    users = [User(slot, ticket, int(leaves[slot])) for slot, ticket in enumerate(tickets, start=grant.first)]
    if not keys:
        return users
    fields = [{"receipt": own} if isinstance(own, bytes) else {"keys": own} for own in keys]
    return [replace(user, **own) for user, own in zip(users, fields, strict=True)]
