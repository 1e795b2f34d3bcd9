"""Checks an upload item by item: tickets, stages, repeats. A refused item does not affect the others."""

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from distrust.common.errors import BadMessage, BadParameter, BadTicket, Conflict, ProtocolError, WrongStage
from distrust.common.protocol.crypto.keys import KEY_HASH
from distrust.common.protocol.messages.cohort import Cohort, ticket_text
from distrust.common.protocol.messages.upload import MOST_LISTED, Item, RefusedItem, UploadAnswer
from distrust.common.wire import Via

MOST_BAD_TICKETS = 8
"""Signatures of one upload that may be wrong. After that many the rest is refused unverified: each costs 0.1 ms."""

_AROUND = 1024  # bytes of JSON around one item's body, at most
_TICKET = 64  # bytes of a ticket, an Ed25519 signature

Fault = Callable[[Item], ProtocolError | None]
"""Returns why an item is refused, or None."""

Mark = Callable[[Item], bytes | None]
"""Returns the value of an item that must be unique in a cohort besides its slot, or None."""


def check_cohort(cohort: Cohort, party: Via) -> None:
    """Raise BadParameter for a cohort of the other intermediary, or one that none could serve."""
    if cohort.via != party:
        raise BadParameter("channel", cohort.channel.kind, f"is served by the {cohort.via}, and this is the {party}")
    if cohort.minimum > cohort.clients:
        raise BadParameter("minimum", cohort.minimum, f"must be at most clients = {cohort.clients}")
    if len(cohort.ticket_key) != 32:
        raise BadParameter("ticket_key", f"{len(cohort.ticket_key)} bytes", "must have 32 bytes")
    cohort.channel.check(cohort.clients)


def check_fits(cohort: Cohort, max_body: int) -> None:
    """Raise BadParameter for a cohort whose clients could not send: one report exceeds the largest body."""
    size = _AROUND + (4 * cohort.channel.report_size + 2) // 3  # base64
    if size > max_body:
        allowed = f"makes requests of {size} bytes, and DISTRUST_MAX_BODY is {max_body}"
        raise BadParameter("channel", cohort.channel.kind, allowed)


@dataclass(slots=True)
class Intake:
    """An upload while it is checked: `items` have passed so far, `accepted` counts the committed ones.

    refused  the first MOST_LISTED refused items.
    reasons  a problem's type → items that were refused for it, listed or not.
    """

    items: list[Item]
    refused: list[RefusedItem] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    accepted: int = 0

    def reject_if(self, fault: Fault) -> None:
        """Refuse the items that have a fault."""
        kept = []
        for item in self.items:
            error = fault(item)
            if error is None:
                kept.append(item)
            else:
                self.refuse(item.slot, error)
        self.items = kept

    def accept_repeats(self, stored: Mapping[int, bytes]) -> None:
        """Accept the items that repeat a committed message, by the messages' digests."""
        fresh = [
            item for item in self.items if not hmac.compare_digest(stored.get(item.slot, b""), message_digest(item))
        ]
        self.accepted += len(self.items) - len(fresh)
        self.items = fresh

    def refuse_changed(self, stored: Collection[int]) -> None:
        """Refuse items of slots whose committed message differs."""

        def fault(item: Item) -> ProtocolError | None:
            if item.slot in stored:
                return Conflict(f"slot {item.slot}: its message is here already, and differs")
            return None

        self.reject_if(fault)

    def require_members(self, departed: Collection[int], expected: Collection[int] | None) -> None:
        """Refuse clients that left, or that take no part in the stage; `expected` None: all clients do."""

        def fault(item: Item) -> ProtocolError | None:
            if item.slot in departed:
                return WrongStage(f"slot {item.slot}: it has left")
            if expected is not None and item.slot not in expected:
                return WrongStage(f"slot {item.slot}: it does not take part in this stage")
            return None

        self.reject_if(fault)

    def require_unique(self, taken: set[bytes], mark: Mark) -> None:
        """Refuse items whose mark another slot has used, before or in this upload."""
        used = set(taken)

        def fault(item: Item) -> ProtocolError | None:
            own_mark = mark(item)
            if own_mark in used:
                return Conflict(f"slot {item.slot}: its report id was used by another slot")
            if own_mark is not None:
                used.add(own_mark)
            return None

        self.reject_if(fault)

    def rows(self, cohort: int, stage: str, mark: Mark, *, keep_ticket: bool) -> list[dict[str, Any]]:
        """Return the items that passed as rows of the message table."""
        return [
            {
                "cohort": cohort,
                "stage": stage,
                "slot": item.slot,
                "digest": message_digest(item),
                "ticket": item.ticket if keep_ticket else None,
                "mark": mark(item),
                "body": item.body,
            }
            for item in self.items
        ]

    def refuse(self, slot: int, error: ProtocolError) -> None:
        self.reasons[error.urn] += 1
        if len(self.refused) < MOST_LISTED:
            self.refused.append(RefusedItem(slot=slot, type=error.urn, status=error.status, detail=error.detail))

    def span(self) -> tuple[int, int]:
        """Return the first and the last slot; an empty span without items."""
        slots = [item.slot for item in self.items]
        return (min(slots), max(slots)) if slots else (0, -1)

    def answer(self) -> UploadAnswer:
        unlisted = self.reasons.total() > len(self.refused)
        reasons = dict(self.reasons) if unlisted else None
        return UploadAnswer(accepted=self.accepted, refused=self.refused, reasons=reasons)


def known_slots(cohort: Cohort) -> Fault:
    """Return a check that refuses slots that do not exist, and a slot's second item in one upload."""
    seen: set[int] = set()

    def fault(item: Item) -> ProtocolError | None:
        if item.slot >= cohort.clients:
            return BadMessage(f"slot = {item.slot}: cohort {cohort.cohort} has slots 0 to {cohort.clients - 1}")
        if item.slot in seen:
            return BadMessage(f"slot = {item.slot}: twice in one upload")
        seen.add(item.slot)
        return None

    return fault


def admitted(cohort: Cohort, stored: dict[int, bytes], keys_of: Callable[[Item], bytes] = lambda _item: b"") -> Fault:
    """Return a check that refuses wrong tickets. A `stored` ticket is compared; any other is verified.

    keys_of  the hash of the keys that an item comes with, which its ticket is for (secure aggregation only).
    After MOST_BAD_TICKETS wrong signatures the rest is refused unverified.
    """
    key, bad = Ed25519PublicKey.from_public_bytes(cohort.ticket_key), 0

    def fault(item: Item) -> ProtocolError | None:
        nonlocal bad
        known = stored.get(item.slot)
        if known is not None:
            good = hmac.compare_digest(known, item.ticket)
        elif bad >= MOST_BAD_TICKETS:
            return BadTicket(f"slot {item.slot}: not looked at, as {bad} tickets of this upload do not verify")
        else:
            good = _verifies(key, item.ticket, ticket_text(cohort, item.slot, keys_of(item)))
            bad += not good
        return None if good else BadTicket(f"slot {item.slot}: the ticket does not verify")

    return fault


def _verifies(key: Ed25519PublicKey, ticket: bytes, signed: bytes) -> bool:
    """Return whether a ticket is the signature of some bytes. Takes 0.1 ms."""
    try:
        key.verify(ticket, signed)
    except InvalidSignature:
        return False
    return True


def measured(expected: int) -> Fault:
    """Return a check that refuses bodies of another size than expected."""

    def fault(item: Item) -> ProtocolError | None:
        if len(item.body) == expected:
            return None
        return BadMessage(f"slot {item.slot}: the body has {len(item.body)} bytes, expected {expected}")

    return fault


def ticketed(slots: Sequence[int], tickets: bytes, keys: bytes = b"") -> Iterator[Item]:
    """Yield slots and their tickets as items. The body is the hash of the slot's keys; empty without `keys`.

    Raises BadMessage unless there is one ticket a slot, and one hash a slot or none at all.
    """
    if len(tickets) != _TICKET * len(slots):
        raise BadMessage(f"tickets: {len(tickets)} bytes, expected {_TICKET} for each of the slots")
    if keys and len(keys) != KEY_HASH * len(slots):
        raise BadMessage(f"keys: {len(keys)} bytes, expected {KEY_HASH} for each of the slots")
    for index, slot in enumerate(slots):
        own = keys[KEY_HASH * index : KEY_HASH * (index + 1)]
        yield Item(slot=slot, ticket=tickets[_TICKET * index : _TICKET * (index + 1)], body=own)


def message_digest(item: Item) -> bytes:
    """Return the digest that tells a repeat from a conflict, of the slot's ticket and the body.

    It outlives both. Labelled bits are few, and could be found from a digest of theirs alone; the ticket is a signature
    that only the client and the server can have.
    """
    digest = hashlib.sha256(item.ticket)
    digest.update(item.body)  # which may be long: it is not copied
    return digest.digest()
