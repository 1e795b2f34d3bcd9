"""Whose a dealt slot is: of the first who asked what it plays, and nobody else reports in it. Pure."""

from collections.abc import Iterator, Mapping

from common.crypto.claim import CLAIM, SECRET, claim
from common.errors import BadMessage, BadTicket, Conflict, ProtocolError
from common.intermediary.intake import Fault, digest, ticketed
from common.messages.cohort import Cohort
from common.messages.deal import ActionRequest
from common.messages.upload import Item

ASKED = "asked"
"""The stage of the commitments that came with the first request for a slot's play."""


def asking(request: ActionRequest) -> Iterator[Item]:
    """Who asks, each with its commitment for a body. Raises BadMessage unless there is one of each for every slot."""
    claims = request.claims
    if len(claims) != CLAIM * len(request.slots):
        raise BadMessage(f"claims: {len(claims)} bytes, expected {CLAIM} for each of the slots")
    for index, item in enumerate(ticketed(request.slots, request.tickets)):
        yield item.model_copy(update={"body": claims[CLAIM * index : CLAIM * (index + 1)]})


def first_asker(stored: Mapping[int, bytes]) -> Fault:
    """Refuses another commitment than the slot's first one; `stored` holds digests of these."""

    def fault(item: Item) -> ProtocolError | None:
        if stored.get(item.slot, digest(item.body)) == digest(item.body):
            return None
        return Conflict(f"slot {item.slot}: somebody else has asked what it plays")

    return fault


def reporter(cohort: Cohort, stored: Mapping[int, bytes]) -> Fault:
    """Refuses reports that do not end in the secret of whoever asked for the slot's play."""

    def fault(item: Item) -> ProtocolError | None:
        if stored.get(item.slot) == digest(claim(cohort, item.slot, item.body[-SECRET:])):
            return None
        return BadTicket(f"slot {item.slot}: not from whoever asked what it plays")

    return fault
