"""Holds reports until all clients answered, left or are late; releases them in random order, once.

Log event: `permutation_delayed`, when few reports could not be permuted with the last one; the mixer tries again.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import structlog
from sqlalchemy import Connection

from distrust.common.errors import BadMessage, TooSmall
from distrust.common.protocol.channels.assigned import AssignedRecords
from distrust.common.protocol.channels.base import Order
from distrust.common.protocol.crypto.graph import members_to_bitmap
from distrust.common.protocol.crypto.receipts import list_digest, record_list
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.intermediary.intake import Fault, Intake, measured
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.intermediary.stages import silence
from distrust.common.protocol.intermediary.store import DEPARTED, LIST, SELF, Span, State
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, name_in
from distrust.common.protocol.messages.status import StageView, TranscriptEntry, entry
from distrust.common.protocol.messages.upload import ActionAnswer, ActionRequest, Item
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import repeated
from distrust.common.randomness import Stream, SystemStream
from distrust.shuffler.assignment import (
    CLAIMED,
    claimants,
    claimed_by_reporter,
    draw_order,
    order_stream,
    pack_order,
    same_claim,
    unpack_order,
)

_MOST_LABELS = 64  # labels or actions whose numbers a transcript prints

REPORT: Final = "report"
ORDER = "order"
"""The stage that stores the order in which the shuffler assigns a cohort's actions. It is drawn once, on opening."""

_ORDERS = 32  # cohorts whose order, and whose list's digest, is in memory

_log = structlog.get_logger("distrust.shuffler")

SMALL_BATCH = 64 * 1024
"""Bytes of sealed reports that are permuted in the transaction that takes the last one: one commit instead of two."""


class Shuffler(Intermediary):
    """Knows which client sent which report, and cannot read a sealed one. The server reads it without its sender.

    Where the shuffler assigns actions, it knows which client plays what, and not the reward. The server learns the
    rewards of each action, and not which client played it.

    stream   makes the randomness of one permutation: the operating system's, except in tests.
    """

    party = "shuffler"
    at_once = 4  # verifying a ticket takes 0.1 ms
    stages = (REPORT,)

    def __init__(
        self,
        database: Database,
        clock: Clock,
        notify: Callable[[str], None] = silence,
        stream: Callable[[], Stream] = SystemStream,
    ) -> None:
        super().__init__(database, clock, notify)
        self._stream = stream
        self._order = lru_cache(maxsize=_ORDERS)(self._read_order)
        self._list_digest = lru_cache(maxsize=_ORDERS)(self._read_list_digest)

    @repeated
    def actions(self, address: str, request: ActionRequest) -> ActionAnswer:
        """Return the positions of slots, for their tickets. Idempotent; only a slot's first claimant receives one.

        Raises WrongCohort; Aborted, WrongStage when reports are not taken any more; BadMessage for a request of another
        cohort, or a cohort whose clients all know what to play.
        """
        if request.cohort != name_in(address):
            raise BadMessage(f"a request for plays of {request.cohort} was sent to {name_in(address)}")
        state = self.settled(address)
        if not state.cohort.channel.assigns:
            raise BadMessage(f"cohort {state.name} assigns no actions")
        intake = Intake(list(claimants(request)))
        self._admit(state, intake)
        with self._database.transaction() as tx:
            self._bind(tx, store.need(tx, address, lock=True), intake)
        slots = [item.slot for item in intake.items]
        positions = self._order(state.number)[slots].tolist()
        return ActionAnswer(
            cohort=state.name, digest=state.digest, slots=slots, plays=positions, refused=intake.refused
        )

    def _bind(self, tx: Connection, state: State, intake: Intake) -> None:
        """Commit new claims before any position is sent; refuse clients that left, and second claims of a slot."""
        if state.stage != REPORT:
            raise self._shut(state, REPORT)
        known, departed = store.sent(tx, state.number, CLAIMED, intake.span())
        intake.require_members(departed, None)
        intake.reject_if(same_claim(known))
        fresh = Intake([item for item in intake.items if item.slot not in known])
        store.add_messages(tx, fresh.rows(state.number, CLAIMED, lambda _item: None, keep_ticket=False))

    def view(self, address: str) -> StageView:
        """Return the stage with the clients that may report; in `done`, those that did. Raises WrongCohort."""
        state = self.settled(address)
        stage = self._shown(state)
        listed = self._list_digest(state.number) if stage == "done" and state.cohort.receipts else None
        bitmap = self._bitmap(state)
        return StageView(cohort=state.name, stage=stage, reason=state.reason, members=bitmap, statement=listed)

    def _bitmap(self, state: State) -> bytes:
        if state.stage != "done":
            return members_to_bitmap(range(state.cohort.clients), state.cohort.clients)
        with self._database.reading() as tx:
            return members_to_bitmap(store.slots(tx, state.number, REPORT), state.cohort.clients)

    def _opening(self, tx: Connection, state: State) -> None:
        """Commit the order with the cohort, before a client can claim a position."""
        cohort = state.cohort
        if cohort.channel.assigns:
            order = draw_order(AssignedRecords.needed(cohort.channel).deal, order_stream(cohort, self._stream))
            store.put_statement(tx, state.number, ORDER, pack_order(order))

    def _read_order(self, cohort: int) -> Order:
        """Return the order of a cohort that assigns actions, by the number of its row."""
        with self._database.reading() as tx:
            raw = store.statement(tx, cohort, ORDER)
        assert raw is not None  # committed with the cohort
        return unpack_order(raw)

    def _fault(self, tx: Connection, state: State, span: Span) -> Fault:
        sized = measured(state.cohort.channel.report_size)
        if not state.cohort.channel.assigns:
            return sized
        theirs = claimed_by_reporter(state.cohort, store.sent(tx, state.number, CLAIMED, span)[0])
        return lambda item: sized(item) or theirs(item)

    def _mark(self, state: State, item: Item) -> bytes | None:
        return state.cohort.channel.report_id(item.body)

    def _closing(self, tx: Connection, state: State) -> None:
        """Leave out the clients of a crowd that sent one sealed record twice. Raises TooSmall without them.

        Report ids are unique, and stand before a record. The list of records names each record once, so one client
        with two slots would otherwise cost all others their cohort.
        """
        if not state.cohort.receipts:
            return
        record, whole = state.cohort.channel.record, store.bodies(tx, state.number, REPORT, SELF, state.cohort.clients)
        records = Counter(record(body) for _, body in whole)
        repeated = [slot for slot, body in whole if records[record(body)] > 1]
        if repeated:
            _log.warning("record_repeated", cohort=state.name, slots=repeated)
            store.leave_out(tx, state.number, REPORT, repeated)
            if len(whole) - len(repeated) < state.cohort.minimum:
                raise TooSmall(len(whole) - len(repeated), state.cohort.minimum, "clients with a record of their own")

    def _mix(self, state: State) -> Batch:
        """Return the batch of a frozen cohort, from its stored reports."""
        channel = state.cohort.channel
        order = self._order(state.number) if channel.assigns else None
        clients, content = channel.mix(self._stored(state.number, REPORT), self._stream(), order)
        return Batch(cohort=state.name, survivors=clients, content=content)

    def _small_batch(self, tx: Connection, state: State) -> Batch | None:
        """Return the batch of a cohort with few sealed records. Its reports are committed with it."""
        cohort, channel = state.cohort, state.cohort.channel
        if not channel.small_first or cohort.clients * channel.report_size > SMALL_BATCH:
            return None
        reports = store.bodies(tx, state.number, REPORT, SELF, cohort.clients)
        try:
            clients, content = channel.mix(reports, self._stream(), None)
        except Exception:  # noqa: BLE001  the mixer tries again, and ends the cohort if it fails too
            _log.exception("permutation_delayed", cohort=state.name)
            return None
        return Batch(cohort=state.name, survivors=clients, content=content)

    def _put_batch(self, tx: Connection, state: State, batch: Batch) -> bytes:
        """Store with a batch whose clients give receipts the digest of the list of its records: it is stated once."""
        if state.cohort.receipts:
            digest = list_digest(state.cohort, record_list(state.cohort, batch))
            store.put_statement(tx, state.number, LIST, digest)
        return super()._put_batch(tx, state, batch)

    def _read_list_digest(self, cohort: int) -> bytes | None:
        with self._database.reading() as tx:
            kept, _ = store.sent(tx, cohort, LIST, (SELF, SELF))  # once it was scrubbed
            return store.statement(tx, cohort, LIST) or kept.get(SELF)

    def _transcript_entry(self, state: State, stage: str, slot: int, body: bytes) -> TranscriptEntry:
        assigned = state.cohort.channel.assigns and slot >= 0
        position = int(self._order(state.number)[slot]) if assigned else None
        return shuffler_entry(state.cohort, stage, slot, body, position)


def shuffler_entry(cohort: Cohort, stage: str, slot: int, body: bytes, position: int | None = None) -> TranscriptEntry:
    """Return a stored message as the shuffler can read it. The caller fills in `number`, its position.

    position  the position in the assigned order that the shuffler sent to this slot.
    """
    channel = cohort.channel
    if slot == SELF and stage == LIST:
        return entry("out", "each client", "receipts", body, {})
    if slot == SELF and stage == ORDER and channel.assigns:  # each client's own action stands beside its report
        view = AssignedRecords.needed(channel).order_view(_MOST_LABELS)
        return entry("out", "each client", stage, body, view, hidden=True)
    if slot == SELF:
        batch = BatchAnswer.model_validate_json(body).batch
        assert batch is not None  # only a released answer is stored
        view = {"kind": batch.content.kind, "survivors": batch.survivors}
        view |= channel.batch_view(batch.content, batch.survivors, _MOST_LABELS)
        return entry("out", "server", stage, batch.content.body, view)
    view = {} if position is None else {"action": AssignedRecords.needed(channel).action(position)}
    view |= {} if stage in {CLAIMED, DEPARTED} else channel.report_view(body, _MOST_LABELS)
    return entry("in", f"client {slot}", stage, body, view)
