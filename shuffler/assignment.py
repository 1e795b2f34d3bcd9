"""Assigns actions (FREE Algorithm 3): a uniform order of positions, the first claim of each slot, records by action.

A client claims its slot's position with a commitment to a secret. Only a report that ends in this secret is taken. No
database and no HTTP here.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.errors import BadMessage, BadTicket, Conflict, ProtocolError
from distrust.common.protocol.channels.assigned import SECRET, AssignedRecords
from distrust.common.protocol.channels.base import Order
from distrust.common.protocol.channels.permutation import random_order
from distrust.common.protocol.crypto.context import CLAIM, claim
from distrust.common.protocol.intermediary.intake import Fault, message_digest, ticketed
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import ActionRequest, Item
from distrust.common.randomness import Stream, UnsafeSeededStream

CLAIMED = "asked"
"""The stage in which commitments are stored that came with the first request for a slot's position."""

_STORED = np.dtype("<u4")


def claimants(request: ActionRequest) -> Iterator[Item]:
    """Yield the request's slots, each with its commitment as the body. Raises BadMessage unless each slot has one."""
    claims = request.claims
    if len(claims) != CLAIM * len(request.slots):
        raise BadMessage(f"claims: {len(claims)} bytes, expected {CLAIM} for each of the slots")
    for index, item in enumerate(ticketed(request.slots, request.tickets)):
        yield item.model_copy(update={"body": claims[CLAIM * index : CLAIM * (index + 1)]})


def same_claim(stored: Mapping[int, bytes]) -> Fault:
    """Return a check that refuses a commitment other than the slot's first; `stored` holds their digests."""

    def fault(item: Item) -> ProtocolError | None:
        own = message_digest(item)
        if stored.get(item.slot, own) == own:
            return None
        return Conflict(f"slot {item.slot}: another client has asked what it plays")

    return fault


def claimed_by_reporter(cohort: Cohort, stored: Mapping[int, bytes]) -> Fault:
    """Return a check that refuses reports which do not end in the secret that the slot's claim commits to."""

    def fault(item: Item) -> ProtocolError | None:
        claimed = item.model_copy(update={"body": claim(cohort, item.slot, item.body[-SECRET:])})
        if stored.get(item.slot) == message_digest(claimed):
            return None
        return BadTicket(f"slot {item.slot}: not from the client that asked what it plays")

    return fault


def order_stream(cohort: Cohort, fresh: Callable[[], Stream]) -> Stream:
    """Return a `fresh` stream; in a run that is named unsafe the seeded one, as in process."""
    seed = AssignedRecords.needed(cohort.channel).noise_seed
    return fresh() if seed is None else UnsafeSeededStream(seed, cohort.run, cohort.cohort, "order")


def draw_order(assigned: AssignedAction, stream: Stream) -> Order:
    """Return a uniform order of all positions."""
    return random_order(assigned.plays, stream)


def pack_order(order: Order) -> bytes:
    """Return the order as stored: four bytes a slot, little endian."""
    return order.astype(_STORED).tobytes()


def unpack_order(raw: bytes) -> Order:
    """Return the order that `pack_order` stored."""
    return np.frombuffer(raw, dtype=_STORED).astype(np.int64)
