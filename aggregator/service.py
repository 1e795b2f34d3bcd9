"""Leads a cohort through the aggregator's five stages, then releases the sum modulo m, once."""

import hmac
import os
import threading
from collections.abc import Callable, Collection
from itertools import accumulate, takewhile
from typing import Final, Generic, Literal, TypeVar

from sqlalchemy import Connection

from distrust.aggregator import protocol
from distrust.aggregator.confirmation import Sharing
from distrust.aggregator.recovery import sum_masked, unmask_total
from distrust.common.errors import BadMessage, BadTicket, ProtocolError, Unavailable
from distrust.common.modular import pack, unpack
from distrust.common.protocol.channels.base import View
from distrust.common.protocol.channels.masked import Masking, ModularSum
from distrust.common.protocol.crypto.context import confirm_statement, masked_statement, masking, unmask_statement
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster, bitmap_to_members, members_to_bitmap
from distrust.common.protocol.crypto.keys import key_hash
from distrust.common.protocol.crypto.seal import BOX
from distrust.common.protocol.crypto.share import MISSING, SHARE_SIZE
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.intermediary.intake import Fault, Intake, known_slots, ticketed
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.intermediary.stages import silence
from distrust.common.protocol.intermediary.store import BATCH, SELF, Span, State
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.status import (
    STATED,
    Inbox,
    StageView,
    Statement,
    StatementList,
    TranscriptEntry,
    entry,
)
from distrust.common.protocol.messages.upload import InboxRequest, Item
from distrust.common.protocol.storage.database import Database

_MOST_VALUES = 16  # coordinates of a sum that a transcript prints

V = TypeVar("V")
KEYS: Final = "keys"
SHARES: Final = "shares"
CONFIRM: Final = "confirm"
MASKED: Final = "masked"
UNMASK: Final = "unmask"
_CHALLENGE = 32  # bytes

MOST_INBOXES = 2**22
"""Bytes of inboxes in one answer, before they are written as text."""

_ROSTERS = 32  # cohorts whose graph stays in memory
_INBOXES = 8  # cohorts whose routed boxes stay in memory


class LruCache(Generic[V]):
    """The last `places` values by key: costly to compute, and computable again from the database.

    Thread-safe: one thread computes a value while the others wait.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._values: dict[str, V] = {}  # the one that was asked for last comes last
        self._lock = threading.RLock()

    def get(self, key: str, make: Callable[[], V]) -> V:
        """Return the value of a key; call `make` for one that is not kept."""
        with self._lock:
            value = self._values[key] = self._values.pop(key) if key in self._values else make()
            if len(self._values) > self._places:
                del self._values[next(iter(self._values))]
            return value

    def drop(self, key: str) -> None:
        """Drop a key's value."""
        with self._lock:
            self._values.pop(key, None)


Stated = Literal["confirm", "masked"]


class Aggregator(Intermediary):
    """Learns which clients take part, and of their vectors the sum only.

    As a stage opens, the aggregator stores the StageView that it tells clients, and reads it back from there. From
    stage `confirm` on the view contains a statement, which the server reads and publishes.
    """

    party = "aggregator"
    stages = (KEYS, SHARES, CONFIRM, MASKED, UNMASK)

    def __init__(self, database: Database, clock: Clock, notify: Callable[[str], None] = silence) -> None:
        super().__init__(database, clock, notify)
        self._sharings: LruCache[Sharing] = LruCache(_ROSTERS)
        self._rosters: LruCache[Roster] = LruCache(_ROSTERS)
        self._inboxes: LruCache[dict[int, bytes]] = LruCache(_INBOXES)

    def stage(self, address: str) -> str:
        """Return the cohort's stage. Cheap: long polls call it often. Raises WrongCohort."""
        return self._shown(self.settled(address))

    def later(self, stage: str, after: str) -> bool:
        """Return whether a stage comes after another one. Every end comes after every stage."""
        return self._position(stage) > self._position(after) or stage not in self.stages

    def view(self, address: str, slots: Collection[int] = ()) -> StageView:
        """Return the open stage and what clients need; in `confirm`, the inboxes of slots that showed their tickets.

        One answer has MOST_INBOXES bytes of them at most, and one inbox at least: the others are asked for again.
        Raises WrongCohort.
        """
        state = self.settled(address)
        name = state.name
        if state.stage == KEYS:
            everyone = members_to_bitmap(range(state.cohort.clients), state.cohort.clients)
            return StageView(cohort=name, stage=KEYS, members=everyone)
        if state.stage == "aborted":
            return StageView(cohort=name, stage="aborted", members=b"", reason=state.reason)
        if state.scrubbed is not None and state.settled:
            return StageView(cohort=name, stage="done", members=b"")
        view = self._stored_view(state.number, state.stage if state.stage in self.stages else UNMASK)
        if state.stage == CONFIRM:
            boxes = self._inboxes.get(state.address, lambda: self._route(state)) if slots else {}
            there = [slot for slot in slots if slot in boxes]
            ends = accumulate(len(boxes[slot]) for slot in there)
            fitting = [slot for slot, end in zip(there, ends, strict=True) if end <= MOST_INBOXES] or there[:1]
            return view.model_copy(update={"inboxes": [Inbox(slot=slot, body=boxes[slot]) for slot in fitting]})
        return view.model_copy(update={"stage": "done"}) if state.stage == "done" else view

    def asking(self, address: str, asked: InboxRequest) -> list[int]:
        """Return the slots of a request, whose tickets are those that came with their keys.

        Raises WrongCohort; BadMessage, BadTicket for the whole request, so that it may wait: it is no larger than what
        its caller holds.
        """
        state = self.settled(address)
        if asked.cohort != state.name:
            raise BadMessage(f"a request for inboxes of {asked.cohort} was sent to {state.name}")
        intake = Intake(list(ticketed(asked.slots, asked.tickets)))
        if state.scrubbed is not None:  # tickets and inboxes are gone, and the answer is its end
            return []
        with self._database.reading() as tx:
            stored = store.stored_tickets(tx, state.number, KEYS, intake.span())
        exists = known_slots(state.cohort)
        for item in intake.items:
            if fault := exists(item):
                raise fault
            if not hmac.compare_digest(stored.get(item.slot, b""), item.ticket):
                raise BadTicket(f"slot {item.slot}: not the ticket that came with its keys")
        return asked.slots

    def statements(self, address: str, after: int) -> StatementList:
        """Return the statements of the stages that have opened, without the first `after`. Raises WrongCohort.

        Once the first one was scrubbed there are none.
        """
        state = self.settled(address)
        with self._database.reading() as tx:
            bodies = [(stage, store.statement(tx, state.number, stage)) for stage in STATED]
        opened = takewhile(lambda stored: stored[1] is not None, bodies)
        views = [(stage, StageView.model_validate_json(body or b"")) for stage, body in opened]
        stated = [Statement(stage=stage, digest=_stated(view)) for stage, view in views]
        return StatementList(cohort=state.name, statements=stated[after:], over=state.stage in {"done", "aborted"})

    def _keys_of(self, item: Item) -> bytes:
        """Return the hash of an item's keys. Its ticket names it: a client that sends other keys is refused alone."""
        return key_hash(item.body)

    def _min_answers(self, state: State) -> int:
        return masking(state.cohort).threshold if state.stage == UNMASK else protocol.min_clients(state.cohort)

    def _members(self, tx: Connection, state: State) -> Collection[int] | None:
        if state.stage == KEYS:
            return None
        return bitmap_to_members(_stored_view(tx, state.number, state.stage).members, state.cohort.clients)

    def _fault(self, tx: Connection, state: State, _span: Span) -> Fault:
        """Return the check of a body in the open stage, as a reason to refuse it."""
        check = self._checker(tx, state)

        def fault(item: Item) -> ProtocolError | None:
            try:
                check(item)
            except BadMessage as error:
                return BadMessage(f"slot {item.slot}: {error.detail}")
            return None

        return fault

    def _checker(self, tx: Connection, state: State) -> Callable[[Item], None]:
        match state.stage:
            case "keys":
                return lambda item: protocol.check_keys(item.body)
            case "shares":
                roster = self._roster(tx, state)
                return lambda item: protocol.check_shares(roster, item.slot, item.body)
            case "confirm":
                sharing = self._sharing(tx, state, CONFIRM)
                return lambda item: protocol.check_confirm(sharing, item.slot, item.body)
            case "masked":
                return lambda item: protocol.check_masked(state.cohort, item.body)
            case _:
                members = self._sharing(tx, state, MASKED)
                return lambda item: protocol.check_unmask(members, item.slot, item.body)

    def _closing(self, tx: Connection, state: State) -> None:
        """Freeze the next stage's members and store its view. Nothing is cached: the transaction may still fail."""
        cohort, name, number = state.cohort, state.name, state.number
        match state.stage:
            case "keys":
                roster = protocol.build_roster(cohort, dict(store.bodies(tx, number, KEYS, -1, cohort.clients)))
                _store_view(tx, number, StageView(cohort=name, stage=SHARES, members=roster.bitmap, roster=roster.keys))
            case "shares":
                roster = _roster(tx, state)
                shared = members_to_bitmap(
                    protocol.settle_shared(roster, store.slots(tx, number, SHARES)), cohort.clients
                )
                challenge = os.urandom(_CHALLENGE)  # after the last share: no dealer can adapt its shares to it
                statement = confirm_statement(roster.digest, roster.cohort, shared, challenge)
                view = StageView(cohort=name, stage=CONFIRM, members=shared, challenge=challenge, statement=statement)
                _store_view(tx, number, view)
            case "confirm":
                sharing = _sharing(tx, state, _roster(tx, state), CONFIRM)
                verdict = protocol.close_confirm(sharing, dict(store.bodies(tx, number, CONFIRM, -1, cohort.clients)))
                members = members_to_bitmap(verdict.sharing.members, cohort.clients)
                statement = masked_statement(_stated(_stored_view(tx, number, CONFIRM)), cohort, members)
                _store_view(tx, number, StageView(cohort=name, stage=MASKED, members=members, statement=statement))
            case "masked":
                survivors = store.slots(tx, number, MASKED)
                protocol.check_survivors(_sharing(tx, state, _roster(tx, state), MASKED), survivors)
                bitmap = members_to_bitmap(survivors, cohort.clients)
                statement = unmask_statement(_stated(_stored_view(tx, number, MASKED)), cohort, bitmap)
                _store_view(tx, number, StageView(cohort=name, stage=UNMASK, members=bitmap, statement=statement))

    def _mix(self, state: State) -> Batch:
        """Return the survivors' sum, from committed messages only. Raises TooSmall, BadShare: nothing is released."""
        number, sharing = state.number, self._read_sharing(state)
        survivors = bitmap_to_members(self._stored_view(number, UNMASK).members, state.cohort.clients)
        masked = sum_masked(state.cohort, (body for _, body in self._stored(number, MASKED)))
        commitments = {slot: body[: protocol.COMMITMENT] for slot, body in self._stored(number, SHARES)}
        answers = dict(self._stored(number, UNMASK))
        verdict = protocol.close_confirm(sharing, dict(self._stored(number, CONFIRM)))
        recovered = unmask_total(verdict, survivors, masked, commitments, answers)
        body = pack(recovered.total, masking(state.cohort).modulus)
        self._inboxes.drop(state.address)
        return Batch(
            cohort=state.name,
            survivors=len(survivors),
            content=ModularSum(body=body),
            liars=list(recovered.liars),
            disputes=recovered.disputes,
        )

    def _transcript_entry(self, state: State, stage: str, slot: int, body: bytes) -> TranscriptEntry:
        return aggregator_entry(masking(state.cohort), stage, slot, body)

    def _route(self, state: State) -> dict[int, bytes]:
        return protocol.route(self._read_sharing(state), dict(self._stored(state.number, SHARES)))

    def _stored_view(self, cohort: int, stage: str) -> StageView:
        with self._database.reading() as tx:
            return _stored_view(tx, cohort, stage)

    # A thread that waits for one of these two caches holds a connection. So none may wait for one inside of them.

    def _roster(self, tx: Connection, state: State) -> Roster:
        return self._rosters.get(state.address, lambda: _roster(tx, state))

    def _sharing(self, tx: Connection, state: State, stage: Stated) -> Sharing:
        """Return the members of stage `confirm` or `masked`, on the graph."""
        return self._sharings.get(
            f"{stage} {state.address}", lambda: _sharing(tx, state, self._roster(tx, state), stage)
        )

    def _read_sharing(self, state: State) -> Sharing:
        with self._database.reading() as tx:
            return self._sharing(tx, state, CONFIRM)


def _store_view(tx: Connection, cohort: int, view: StageView) -> None:
    store.put_statement(tx, cohort, view.stage, view.model_dump_json().encode())


def _stored_view(tx: Connection, cohort: int, stage: str) -> StageView:
    """Return the view that clients received as the stage opened. `cohort` is the number of its row."""
    body = store.statement(tx, cohort, stage)
    if body is None:
        raise Unavailable(f"cohort number {cohort} was never in stage {stage}")
    return StageView.model_validate_json(body)


def _stated(view: StageView) -> bytes:
    """Return the statement of a stage that has one."""
    if view.statement is None:
        raise Unavailable(f"cohort {view.cohort}: stage {view.stage} was opened without a statement")
    return view.statement


def _roster(tx: Connection, state: State) -> Roster:
    view = _stored_view(tx, state.number, SHARES)
    return Roster(state.cohort, view.members, view.roster or b"")


def _sharing(tx: Connection, state: State, roster: Roster, stage: Stated) -> Sharing:
    members = _stored_view(tx, state.number, stage).members
    return Sharing(roster, bitmap_to_members(members, state.cohort.clients))


def aggregator_entry(channel: Masking, stage: str, slot: int, body: bytes) -> TranscriptEntry:
    """Return a stored message as the aggregator can read it. The caller fills in `number`, its position."""
    if slot != SELF:
        return entry("in", f"client {slot}", stage, body, _message(channel, stage, body))
    if stage == BATCH:
        return _batch(channel, body)
    view = StageView.model_validate_json(body)
    facts: View = {"members": sum(byte.bit_count() for byte in view.members)}
    facts |= {name: raw.hex() for name, raw in (("challenge", view.challenge), ("statement", view.statement)) if raw}
    sent = view.members + (view.roster or b"") + (view.challenge or b"") + (view.statement or b"")
    return entry("out", "everyone", stage, sent, facts)


def _message(channel: Masking, stage: str, body: bytes) -> View:
    match stage:
        case "keys":
            return {"mask_key": body[: KEYS_SIZE // 2].hex(), "channel_key": body[KEYS_SIZE // 2 :].hex()}
        case "shares":
            return {"commitment": body[:32].hex(), "boxes": (len(body) - 32) // BOX}
        case "confirm":
            return {"coefficients": channel.threshold, "shares": len(body) // SHARE_SIZE - channel.threshold}
        case "masked":
            masked = unpack(body, channel.modulus, channel.dimension)[:_MOST_VALUES]
            return {"modulus": channel.modulus, "masked": masked.tolist()}
        case "unmask":
            shares = [body[i : i + SHARE_SIZE] for i in range(0, len(body), SHARE_SIZE)]
            return {"shares": len(shares), "missing": shares.count(MISSING)}
        case _:
            return {}  # a departure holds nothing else


def _batch(channel: Masking, answer: bytes) -> TranscriptEntry:
    batch = BatchAnswer.model_validate_json(answer).batch
    assert batch is not None  # only a released answer is stored
    facts: View = {"survivors": batch.survivors}
    facts |= channel.batch_view(batch.content, batch.survivors, _MOST_VALUES)
    facts |= {"liars": batch.liars, "disputes": batch.disputes}
    return entry("out", "server", BATCH, batch.content.body, facts)
