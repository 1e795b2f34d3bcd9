"""Holds reports until all clients answered, left or are late; releases them in random order, once.

Log event: `permutation_delayed`, when few reports could not be permuted with the last one; the mixer tries again.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import structlog
from sqlalchemy import Connection

from distrust.common.errors import BadMessage, BadParameter, TooSmall
from distrust.common.protocol.crypto.context import SECRET
from distrust.common.protocol.crypto.graph import members_to_bitmap
from distrust.common.protocol.crypto.receipts import list_digest, record_list
from distrust.common.protocol.crypto.seal import REPORT_ID, checksum_of, sealed_size
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.intermediary.intake import Fault, Intake, check_size, measured
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.intermediary.stages import silence
from distrust.common.protocol.intermediary.store import BATCH, DEPARTED, LIST, SELF, Span, State
from distrust.common.protocol.messages.batch import Batch, BatchAnswer, Content, GroupedRecords, PermutedBits, Records
from distrust.common.protocol.messages.cohort import (
    LARGEST_CROWD,
    AssignedRecords,
    Cohort,
    LabelledBits,
    SealedRecords,
    name_in,
)
from distrust.common.protocol.messages.status import StageView, TranscriptEntry, View
from distrust.common.protocol.messages.upload import ActionAnswer, ActionRequest, Item
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import repeated
from distrust.common.randomness import Stream, SystemStream
from distrust.shuffler.assignment import (
    CLAIMED,
    Order,
    check_assignment,
    claimants,
    claimed_by_reporter,
    draw_order,
    order_stream,
    pack_order,
    records_by_action,
    same_claim,
    unpack_order,
)
from distrust.shuffler.permutation import count_ones, random_order, scatter

_HEX_BYTES = 64  # of a message, that a transcript prints; the rest is counted only
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
        if not isinstance(state.cohort.channel, AssignedRecords):
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
        intake.require_members(store.departed(tx, state.number), None)
        known = store.digests(tx, state.number, CLAIMED, intake.span())
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

    def _check(self, cohort: Cohort) -> None:
        if isinstance(cohort.channel, SealedRecords):
            check_size("server_key", cohort.channel.server_key, 32)
        if cohort.receipts and cohort.clients > LARGEST_CROWD:
            raise BadParameter("clients", cohort.clients, f"must be at most {LARGEST_CROWD}: each gives a receipt")
        if isinstance(cohort.channel, AssignedRecords):
            check_assignment(cohort, cohort.channel)

    def _opening(self, tx: Connection, state: State) -> None:
        """Commit the order with the cohort, before a client can claim a position."""
        cohort = state.cohort
        if isinstance(cohort.channel, AssignedRecords):
            order = draw_order(cohort.channel.deal, order_stream(cohort, self._stream))
            store.put_statement(tx, state.number, ORDER, pack_order(order))

    def _read_order(self, cohort: int) -> Order:
        """Return the order of a cohort that assigns actions, by the number of its row."""
        with self._database.reading() as tx:
            raw = store.statement(tx, cohort, ORDER)
        assert raw is not None  # committed with the cohort
        return unpack_order(raw)

    def _fault(self, tx: Connection, state: State, span: Span) -> Fault:
        sized = measured(report_size(state.cohort))
        if not isinstance(state.cohort.channel, AssignedRecords):
            return sized
        theirs = claimed_by_reporter(state.cohort, store.digests(tx, state.number, CLAIMED, span))
        return lambda item: sized(item) or theirs(item)

    def _mark(self, state: State, item: Item) -> bytes | None:
        return item.body[:REPORT_ID] if isinstance(state.cohort.channel, SealedRecords) else None

    def _closing(self, tx: Connection, state: State) -> None:
        """Leave out the clients of a crowd that sent one sealed record twice. Raises TooSmall without them.

        Report ids are unique, and stand before a record. The list of records names each record once, so one client
        with two slots would otherwise cost all others their cohort.
        """
        if not state.cohort.receipts:
            return
        whole = store.bodies(tx, state.number, REPORT, SELF, state.cohort.clients)
        records = Counter(self._record(state, body) for _, body in whole)
        repeated = [slot for slot, body in whole if records[self._record(state, body)] > 1]
        if repeated:
            _log.warning("record_repeated", cohort=state.name, slots=repeated)
            store.leave_out(tx, state.number, REPORT, repeated)
            if len(whole) - len(repeated) < state.cohort.minimum:
                raise TooSmall(len(whole) - len(repeated), state.cohort.minimum, "clients with a record of their own")

    def _record(self, state: State, body: bytes) -> bytes:
        """Return the sealed record of a report, without its id and what stands behind it."""
        assert isinstance(state.cohort.channel, SealedRecords)
        return body[REPORT_ID : REPORT_ID + sealed_size(state.cohort.channel.size)]

    def _mix(self, state: State) -> Batch:
        """Return the batch of a frozen cohort, from its stored reports."""
        channel = state.cohort.channel
        reports = self._stored(state.number, REPORT)
        if isinstance(channel, LabelledBits):
            clients, ones = count_ones((body for _, body in reports), channel.labels, channel.width)
            content: Content = permute_bits(ones.tolist(), clients * channel.width, self._stream())
        elif isinstance(channel, AssignedRecords):
            whole = list(reports)
            order, clients = self._order(state.number), len(whole)
            content = records_by_action(whole, channel.deal, order, self._stream())
        else:
            records = [body for _, body in reports]
            clients, content = len(records), permute_records(records, self._stream())
        return Batch(cohort=state.name, survivors=clients, content=content)

    def _small_batch(self, tx: Connection, state: State) -> Batch | None:
        """Return the batch of a cohort with few sealed records. Its reports are committed with it."""
        cohort = state.cohort
        if cohort.channel.kind != "sealed" or cohort.clients * report_size(cohort) > SMALL_BATCH:
            return None
        records = [body for _, body in store.bodies(tx, state.number, REPORT, SELF, cohort.clients)]
        try:
            content = permute_records(records, self._stream())
        except Exception:  # noqa: BLE001  the mixer tries again, and ends the cohort if it fails too
            _log.exception("permutation_delayed", cohort=state.name)
            return None
        return Batch(cohort=state.name, survivors=len(records), content=content)

    def _put_batch(self, tx: Connection, state: State, batch: Batch) -> bytes:
        """Store with a batch whose clients give receipts the digest of the list of its records: it is stated once."""
        if state.cohort.receipts:
            digest = list_digest(state.cohort, record_list(state.cohort, batch))
            store.put_statement(tx, state.number, LIST, digest)
        return super()._put_batch(tx, state, batch)

    def _read_list_digest(self, cohort: int) -> bytes | None:
        with self._database.reading() as tx:
            kept = store.digests(tx, cohort, LIST, (SELF, SELF)).get(SELF)  # once it was scrubbed
            return store.statement(tx, cohort, LIST) or kept

    def _transcript_entry(self, state: State, stage: str, slot: int, body: bytes) -> TranscriptEntry:
        assigned = isinstance(state.cohort.channel, AssignedRecords) and slot >= 0
        position = int(self._order(state.number)[slot]) if assigned else None
        return shuffler_entry(state.cohort, stage, slot, body, position)


def report_size(cohort: Cohort) -> int:
    """Return the bytes of one client's report. Raises BadParameter for a channel that is not the shuffler's."""
    match cohort.channel:
        case AssignedRecords(size=size):
            return REPORT_ID + sealed_size(size) + SECRET
        case SealedRecords(size=size):
            return REPORT_ID + sealed_size(size)
        case LabelledBits(labels=labels, width=width):
            return (labels * width + 7) // 8
        case other:
            raise BadParameter("channel", other.kind, "must be sealed, dealt or bits")


def permute_records(bodies: list[bytes], stream: Stream) -> Records:
    """Return sealed records in random order, without ids. Each report is report id ‖ sealed record, of one size."""
    records = [body[REPORT_ID:] for body in bodies]
    order = random_order(len(bodies), stream).tolist()
    mixed = b"".join(records[index] for index in order)
    return Records(count=len(records), body=mixed, checksum=checksum_of(records))


def permute_bits(ones: list[int], size: int, stream: Stream) -> PermutedBits:
    """Return for each label `size` bits in random order, of which `ones` are set."""
    return PermutedBits(body=b"".join(scatter(count, size, stream) for count in ones))


def shuffler_entry(cohort: Cohort, stage: str, slot: int, body: bytes, position: int | None = None) -> TranscriptEntry:
    """Return a stored message as the shuffler can read it. The caller fills in `number`, its position.

    position  the position in the assigned order that the shuffler sent to this slot.
    """
    if slot == SELF and stage == LIST:
        return TranscriptEntry(
            number=0, direction="out", peer="each client", stage="receipts", bytes=len(body), view={}, hex=body.hex()
        )
    if slot == SELF:
        return _batch(cohort, stage, body) if stage == BATCH else _order(cohort, stage, body)
    return TranscriptEntry(
        number=0,
        direction="in",
        peer=f"client {slot}",
        stage=stage,
        bytes=len(body),
        view=_action(cohort, position) | ({} if stage in {CLAIMED, DEPARTED} else _report(cohort, body)),
        hex=body[:_HEX_BYTES].hex(),
    )


def _order(cohort: Cohort, stage: str, body: bytes) -> TranscriptEntry:
    """Return the order as an entry with its actions and times; each client's own action stands beside its report."""
    assert isinstance(cohort.channel, AssignedRecords)
    assigned = cohort.channel.deal
    view: View = {"actions": assigned.actions[:_MOST_LABELS], "times": assigned.times[:_MOST_LABELS]}
    return TranscriptEntry(
        number=0, direction="out", peer="each client", stage=stage, bytes=len(body), view=view, hex=""
    )


def _action(cohort: Cohort, position: int | None) -> View:
    if position is None or not isinstance(cohort.channel, AssignedRecords):
        return {}
    return {"action": cohort.channel.deal.actions[cohort.channel.deal.place(position)]}


def _report(cohort: Cohort, body: bytes) -> View:
    if isinstance(cohort.channel, SealedRecords):
        return {"report_id": body[:REPORT_ID].hex(), "sealed_bytes": sealed_size(cohort.channel.size)}
    assert isinstance(cohort.channel, LabelledBits)
    _, ones = count_ones([body], cohort.channel.labels, cohort.channel.width)
    return {"labels": cohort.channel.labels, "width": cohort.channel.width, "ones": ones[:_MOST_LABELS].tolist()}


def _batch(cohort: Cohort, stage: str, answer: bytes) -> TranscriptEntry:
    batch = BatchAnswer.model_validate_json(answer).batch
    assert batch is not None  # only a released answer is stored
    view: View = {"kind": batch.content.kind, "survivors": batch.survivors}
    match batch.content, cohort.channel:
        case Records(checksum=checksum, count=count, body=body), _:
            view |= {"record_bytes": len(body) // count, "checksum": checksum.hex()}
        case GroupedRecords(counts=counts, checksum=checksum, body=body), _:
            view |= {"by_action": counts[:_MOST_LABELS], "record_bytes": len(body) // batch.survivors}
            view |= {"checksum": checksum.hex()}
        case PermutedBits(body=body), LabelledBits(labels=labels):
            rows = np.frombuffer(body, dtype=np.uint8).reshape(labels, -1)[:_MOST_LABELS]
            view |= {"labels": labels, "ones": np.bitwise_count(rows).sum(axis=1, dtype=np.int64).tolist()}
    raw = batch.content.body
    return TranscriptEntry(
        number=0, direction="out", peer="server", stage=stage, bytes=len(raw), view=view, hex=raw[:_HEX_BYTES].hex()
    )
