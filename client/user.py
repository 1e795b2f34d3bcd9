"""One user: a slot, the ticket that proves it, and what it does with its private row."""

from dataclasses import dataclass, field
from itertools import pairwise
from secrets import token_bytes
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from client.departures import NEVER, STAGES
from common.crypto.claim import SECRET, claim
from common.errors import BadMessage
from common.messages.cohort import Cohort
from common.messages.ticket import Grant
from common.messages.upload import Item, Stage

AnyStage = Stage | Literal["report"]
SIGNATURE = 64


@dataclass(frozen=True, slots=True)
class User:
    """A client of one cohort.

    ticket   64 bytes, the server's signature of the slot.
    leaves   number of the stage that it does not answer any more; 4: it stays to the end.
    secret   32 bytes of its own, for as long as it lives, like its ticket: by them S knows it where it deals actions.
    """

    slot: int
    ticket: bytes
    leaves: int = NEVER
    secret: bytes = field(default_factory=lambda: token_bytes(SECRET), repr=False, compare=False)

    def answers(self, stage: AnyStage) -> bool:
        """Whether it is still there at `stage`. A report is what a masked input is: the message itself."""
        return STAGES.index("masked" if stage == "report" else stage) < self.leaves

    def claim(self, cohort: Cohort) -> bytes:
        """Its commitment to the secret, the same for every repeat of its question."""
        return claim(cohort, self.slot, self.secret)

    def item(self, body: bytes) -> Item:
        """Its message for a stage."""
        return Item(slot=self.slot, ticket=self.ticket, body=body)


def granted(grant: Grant, leaves: NDArray[np.int64]) -> list[User]:
    """The users behind a grant of tickets; `leaves` as drawn for the whole cohort, shape (n,).

    Raises BadMessage when the signatures are not 64 bytes for each slot.
    """
    ends = range(0, SIGNATURE * grant.count + 1, SIGNATURE)
    if len(grant.signatures) != ends[-1] or grant.first + grant.count > len(leaves):
        raise BadMessage(f"the grant of {grant.count} tickets for cohort {grant.cohort} does not add up")
    tickets = [grant.signatures[start:end] for start, end in pairwise(ends)]
    return [User(slot, ticket, int(leaves[slot])) for slot, ticket in enumerate(tickets, start=grant.first)]
