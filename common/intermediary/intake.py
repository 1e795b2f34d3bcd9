"""One upload, item by item: what is taken, what is refused and why. One bad item never spoils the others."""

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.errors import BadMessage, BadTicket, Conflict, ProtocolError, WrongStage
from common.intermediary.tickets import SIZE, TicketBooth
from common.messages.cohort import Cohort
from common.messages.upload import Item, RefusedItem, UploadAnswer

Fault = Callable[[Item], ProtocolError | None]
"""Why an item cannot be taken, or None."""

Mark = Callable[[Item], bytes | None]
"""What must be unique in a cohort besides an item's slot."""


@dataclass(slots=True)
class Intake:
    """An upload on its way in: `items` are still good, `refused` are out, `accepted` counts what is committed."""

    items: list[Item]
    refused: list[RefusedItem] = field(default_factory=list)
    accepted: int = 0

    def sift(self, fault: Fault) -> None:
        """Keep the items without a fault."""
        kept = []
        for item in self.items:
            error = fault(item)
            if error is None:
                kept.append(item)
            else:
                self.refuse(item.slot, error)
        self.items = kept

    def recognize(self, stored: Mapping[int, bytes]) -> None:
        """Count repeats of what is committed already, and refuse changed ones."""
        known = [item for item in self.items if item.slot in stored]
        self.items = [item for item in self.items if item.slot not in stored]
        for item in known:
            if stored[item.slot] == digest(item.body):
                self.accepted += 1
            else:
                self.refuse(item.slot, Conflict(f"slot {item.slot}: its message is here already, and differs"))

    def expect(self, departed: Collection[int], expected: Collection[int] | None) -> None:
        """Refuse who left, and who takes no part in the stage; `expected` None: everybody does."""

        def fault(item: Item) -> ProtocolError | None:
            if item.slot in departed:
                return WrongStage(f"slot {item.slot}: it has left")
            if expected is not None and item.slot not in expected:
                return WrongStage(f"slot {item.slot}: it does not take part in this stage")
            return None

        self.sift(fault)

    def distinct(self, taken: set[bytes], mark: Mark) -> None:
        """Refuse items whose mark another slot has used, before or in this upload."""
        used = set(taken)

        def fault(item: Item) -> ProtocolError | None:
            found = mark(item)
            if found in used:
                return Conflict(f"slot {item.slot}: its report id was used by another slot")
            if found is not None:
                used.add(found)
            return None

        self.sift(fault)

    def rows(self, cohort: str, stage: str, mark: Mark, *, keep_ticket: bool) -> list[dict[str, Any]]:
        """What is left, as rows of the message table."""
        return [
            {
                "cohort": cohort,
                "stage": stage,
                "slot": item.slot,
                "digest": digest(item.body),
                "ticket": item.ticket if keep_ticket else None,
                "mark": mark(item),
                "body": item.body,
            }
            for item in self.items
        ]

    def refuse(self, slot: int, error: ProtocolError) -> None:
        self.refused.append(RefusedItem(slot=slot, type=error.urn, status=error.status, detail=error.detail))

    def span(self) -> tuple[int, int]:
        """The first and the last slot; an empty span when nothing is left."""
        slots = [item.slot for item in self.items]
        return (min(slots), max(slots)) if slots else (0, -1)

    def answer(self) -> UploadAnswer:
        return UploadAnswer(accepted=self.accepted, refused=self.refused)


def known_slots(cohort: Cohort) -> Fault:
    """Refuses slots that do not exist, and a slot's second item in one upload."""
    seen: set[int] = set()

    def fault(item: Item) -> ProtocolError | None:
        if item.slot >= cohort.clients:
            return BadMessage(f"slot = {item.slot}: cohort {cohort.cohort} has slots 0 to {cohort.clients - 1}")
        if item.slot in seen:
            return BadMessage(f"slot = {item.slot}: twice in one upload")
        seen.add(item.slot)
        return None

    return fault


def admitted(cohort: Cohort, stored: dict[int, bytes]) -> Fault:
    """Refuses wrong tickets: compared with the `stored` one where there is one, verified otherwise."""
    booth = TicketBooth(cohort)

    def fault(item: Item) -> ProtocolError | None:
        known = stored.get(item.slot)
        good = hmac.compare_digest(known, item.ticket) if known else booth.admits(item.slot, item.ticket)
        return None if good else BadTicket(f"slot {item.slot}: the ticket does not verify")

    return fault


def measured(expected: int) -> Fault:
    """Refuses bodies that have not exactly the expected bytes."""

    def fault(item: Item) -> ProtocolError | None:
        if len(item.body) == expected:
            return None
        return BadMessage(f"slot {item.slot}: the body has {len(item.body)} bytes, expected {expected}")

    return fault


def ticketed(slots: Sequence[int], tickets: bytes) -> Iterator[Item]:
    """Slots and their tickets as items without a body. Raises BadMessage unless there is one ticket a slot."""
    if len(tickets) != SIZE * len(slots):
        raise BadMessage(f"tickets: {len(tickets)} bytes, expected {SIZE} for each of the slots")
    for index, slot in enumerate(slots):
        yield Item(slot=slot, ticket=tickets[SIZE * index : SIZE * (index + 1)], body=b"")


def digest(body: bytes) -> bytes:
    """What tells a repeat from a conflict."""
    return hashlib.sha256(body).digest()
