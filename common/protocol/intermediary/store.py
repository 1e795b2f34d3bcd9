"""Queries in bulk of an intermediary's tables (`tables.py`). The caller holds the transaction."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, cast

from sqlalchemy import Connection, LargeBinary, Row, bindparam, func, insert, or_, select, union_all, update

from distrust.common.errors import Gone, WrongCohort
from distrust.common.protocol.intermediary.tables import COHORTS, DELIVERED, DIGESTS, MESSAGES, PRUNED
from distrust.common.protocol.messages.cohort import Cohort, name_in
from distrust.common.protocol.messages.status import EVERY, CohortStage
from distrust.common.wire import utc

Span = tuple[int, int]
"""The first and the last slot of an upload."""

PlacedMessage = tuple[int, str, int, bytes]
"""A stored message: its position in the cohort's transcript, its stage, slot and body."""

SELF = -1
"""The slot of what the intermediary stores itself."""

NO_SLOT = -(2**31)
"""No slot has this number: no message is asked for by its slot."""

BATCH = "batch"
"""The stage of the released BatchAnswer, kept as JSON: collected again, it is the same bytes."""

LIST = "list"
"""The stage of the digest of the list of a batch's records, where clients give receipts. It is never scrubbed."""

LEFT_OUT = "left out"
"""The stage of messages that count no more."""

DEPARTED = "departed"
"""The stage of the rows of clients that leave."""

_IN_LIST = 500  # values in one SQL list, well below every database's limit

# Each statement is built once: building and naming one for SQLAlchemy's cache costs more than running it.
_FIND = select(COHORTS).where(COHORTS.c.run_digest == bindparam("run"), COHORTS.c.cohort == bindparam("cohort"))
_FIND_LOCKED = _FIND.with_for_update()
_PRUNED_SINCE = select(PRUNED.c.since).where(PRUNED.c.run_digest == bindparam("run"))
_MOVE = update(COHORTS).where(COHORTS.c.number == bindparam("moved"))
_OF_STAGE = MESSAGES.c.cohort == bindparam("cohort"), MESSAGES.c.stage == bindparam("stage")
_SCRUBBED = DIGESTS.c.cohort == bindparam("cohort"), DIGESTS.c.stage == bindparam("stage")
_SLOTS = union_all(
    select(MESSAGES.c.slot).where(*_OF_STAGE, MESSAGES.c.slot >= 0),
    select(DIGESTS.c.slot).where(*_SCRUBBED, DIGESTS.c.slot >= 0),
)
_COUNT_ANSWERS = select(func.count()).where(*_OF_STAGE, MESSAGES.c.slot >= 0)
_USED = select(MESSAGES.c.slot).where(MESSAGES.c.cohort == bindparam("cohort"), MESSAGES.c.slot >= 0)
_USED = _USED.where(MESSAGES.c.stage.in_((bindparam("stage"), "departed"))).limit(1)
_BODIES = select(MESSAGES.c.slot, MESSAGES.c.body).where(*_OF_STAGE, MESSAGES.c.slot > bindparam("after"))
_BODIES = _BODIES.order_by(MESSAGES.c.slot).limit(bindparam("limit"))
_IN_SPAN = *_OF_STAGE, MESSAGES.c.slot.between(bindparam("first"), bindparam("last"))
_SENT = union_all(
    *(
        select(table.c.slot, table.c.stage, table.c.digest).where(
            table.c.cohort == bindparam("cohort"),
            table.c.stage.in_((bindparam("stage"), DEPARTED)),
            table.c.slot.between(bindparam("first"), bindparam("last")),
        )
        for table in (MESSAGES, DIGESTS)
    )
)
_TICKETS = select(MESSAGES.c.slot, MESSAGES.c.ticket).where(*_IN_SPAN)
_MARKS = select(MESSAGES.c.mark).where(
    MESSAGES.c.cohort == bindparam("cohort"), MESSAGES.c.mark.in_(bindparam("wanted", expanding=True))
)
_STATEMENT = select(MESSAGES.c.body).where(*_OF_STAGE, MESSAGES.c.slot == SELF)
_WHOLE = MESSAGES.c.cohort == bindparam("cohort"), MESSAGES.c.body.is_not(None)
_COUNT = select(func.count()).where(*_WHOLE)
_PLACE = (func.row_number().over(order_by=MESSAGES.c.number) - 1).label("place")
_KIND = MESSAGES.c.stage, MESSAGES.c.slot < 0  # the intermediary's own statements of a stage, or its clients' messages
_TURN = func.row_number().over(partition_by=_KIND, order_by=MESSAGES.c.number).label("turn")
_NUMBERED = select(MESSAGES.c.number, _PLACE, _TURN).where(*_WHOLE).subquery()
_SAMPLE = select(_NUMBERED.c.place, MESSAGES.c.stage, MESSAGES.c.slot, MESSAGES.c.body)
_SAMPLE = _SAMPLE.join(_NUMBERED, MESSAGES.c.number == _NUMBERED.c.number)
_SAMPLE = _SAMPLE.where(
    or_(_NUMBERED.c.turn <= bindparam("most"), MESSAGES.c.slot == bindparam("client")),
    _NUMBERED.c.place >= bindparam("after"),
)
_SAMPLE = _SAMPLE.order_by(MESSAGES.c.number).limit(bindparam("limit"))
_ADD_COHORT, _ADD_MESSAGE = insert(COHORTS), insert(MESSAGES)
_OF_RUN = DELIVERED.c.run_digest == bindparam("run")
_COUNTED = func.coalesce(func.max(DELIVERED.c.position), 0)
_COUNT_DELIVERED = select(_COUNTED).where(_OF_RUN)
_NEXT_DELIVERY = select(bindparam("run", type_=LargeBinary), _COUNTED + 1, bindparam("digest", type_=LargeBinary))
_ADD_DELIVERY = insert(DELIVERED).from_select(["run_digest", "position", "digest"], _NEXT_DELIVERY.where(_OF_RUN))
_ADD_DELIVERY = _ADD_DELIVERY.returning(DELIVERED.c.position)
_DELIVERED = select(DELIVERED.c.digest).where(_OF_RUN, DELIVERED.c.position > bindparam("after"))
_DELIVERED = _DELIVERED.order_by(DELIVERED.c.position).limit(bindparam("limit"))


@dataclass(frozen=True, slots=True)
class State:
    """One cohort's state.

    number    of its row, by which its messages are stored.
    digest    `Cohort.digest`, 32 bytes.
    since     when the open stage's deadline begins to run; before any message, when the first deadline is over. None
              when no stage is open.
    settled   whether the server collects it no more.
    scrubbed  when its clients' messages were scrubbed; None while they are here.
    released  the batch as JSON, in the state of the transaction that releases it; None in every other.
    """

    number: int
    cohort: Cohort
    digest: bytes
    stage: CohortStage | Literal["mixing"]
    since: float | None
    reason: str | None
    settled: bool
    scrubbed: float | None
    released: bytes | None = None

    @property
    def name(self) -> str:
        return self.cohort.cohort

    @property
    def address(self) -> str:
        return self.cohort.address


def add_cohort(tx: Connection, cohort: Cohort, stage: CohortStage, since: float) -> State:
    """Add a new cohort, in its first stage, and return its state."""
    body = cohort.model_dump_json().encode()
    row = {"run_digest": cohort.run_digest, "cohort": cohort.cohort, "body": body, "stage": stage, "since": since}
    row = {**row, "keep_seconds": cohort.keep_seconds, "settled": False}
    number = cast("Row[Any]", tx.execute(_ADD_COHORT, row).inserted_primary_key)[0]
    return State(number, *_cohort(body), stage, since, None, settled=False, scrubbed=None)


def find_cohort(tx: Connection, address: str, *, lock: bool = False) -> State | None:
    """Return the state of the cohort with this `Cohort.address`, or None.

    lock  keep other workers of a database out until the transaction ends.
    """
    values = {"run": bytes.fromhex(address.partition("/")[0]), "cohort": name_in(address)}
    row = tx.execute(_FIND_LOCKED if lock else _FIND, values).one_or_none()
    return None if row is None else _state(row)


def need(tx: Connection, address: str, *, lock: bool = False) -> State:
    """Return a cohort's state. Raises WrongCohort; Gone for one of a pruned run."""
    state = find_cohort(tx, address, lock=lock)
    if state is None:
        name = name_in(address)
        check_not_pruned(tx, bytes.fromhex(address.partition("/")[0]))
        raise WrongCohort(f"cohort {name} of this run is not known here", cohort=name)
    return state


def pruned_since(tx: Connection, run_digest: bytes) -> float | None:
    """Return when a run was pruned here; None for one that was not."""
    return tx.execute(_PRUNED_SINCE, {"run": run_digest}).scalar_one_or_none()


def one_opening(tx: Connection, run_digest: bytes) -> None:
    """Keep out other transactions that open a cohort of the run, or prune it, until this one ends."""
    one_by_one(tx, b"open" + run_digest)


def check_not_pruned(tx: Connection, run_digest: bytes) -> None:
    """Raise Gone for a run whose rows were deleted here."""
    since = pruned_since(tx, run_digest)
    if since is not None:
        raise Gone(f"the run was pruned here at {utc(since)}: nothing of it is left", run_digest=run_digest.hex())


def every(
    tx: Connection,
    without: Collection[str] = (),
    *,
    run: str | None = None,
    cohort: str | None = None,
    limit: int | None = None,
) -> list[State]:
    """Return cohorts, oldest first, without those in the stages `without`.

    run, cohort  None: of every run, every cohort.
    limit        the oldest ones only.
    """
    query = select(COHORTS).where(COHORTS.c.stage.not_in(without)).order_by(COHORTS.c.number)
    if cohort is not None:
        query = query.where(COHORTS.c.cohort == cohort)
    if run is None:
        return [_state(row) for row in tx.execute(query.limit(limit))]
    # The run stands in the body alone. A body without its name is not parsed: parsing is most of a long list's time.
    part = f'"run":{json.dumps(run)}'.encode()
    states = (_state(row) for row in tx.execute(query) if part in row.body)
    return list(islice((state for state in states if state.cohort.run == run), limit))


def move(tx: Connection, cohort: int, stage: str, since: float | None, reason: str | None = None) -> None:
    """Put a cohort, by its number, into a stage."""
    tx.execute(_MOVE, {"moved": cohort, "stage": stage, "since": since, "reason": reason})


def end(tx: Connection, state: State, stage: str, now: float, reason: str | None = None) -> None:
    """Put a cohort into its last stage. Its messages are due to be scrubbed `keep_seconds` from now."""
    values = {"moved": state.number, "stage": stage, "since": None, "reason": reason}
    tx.execute(_MOVE, {**values, "due": now + state.cohort.keep_seconds})


def add_messages(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add messages as rows: cohort, stage, slot, digest, ticket, mark, body."""
    if rows:
        tx.execute(_ADD_MESSAGE, list(rows))


def sent(tx: Connection, cohort: int, stage: str, span: Span) -> tuple[dict[int, bytes], set[int]]:
    """Return slot to digest of the messages of a stage, and the slots that have left, both within a span."""
    rows = tx.execute(_SENT, {"cohort": cohort, "stage": stage, "first": span[0], "last": span[1]}).all()
    return {row.slot: row.digest for row in rows if row.stage == stage}, {
        row.slot for row in rows if row.stage == DEPARTED
    }


def stored_tickets(tx: Connection, cohort: int, stage: str, span: Span) -> dict[int, bytes]:
    """Return slot to ticket, as they came with the messages of a stage, within a span."""
    rows = tx.execute(_TICKETS, {"cohort": cohort, "stage": stage, "first": span[0], "last": span[1]})
    return {row.slot: row.ticket for row in rows if row.ticket}


def marks(tx: Connection, cohort: int, wanted: Sequence[bytes]) -> set[bytes]:
    """Return those of the wanted marks that the cohort has already."""
    known: set[bytes] = set()
    for start in range(0, len(wanted), _IN_LIST):
        part = wanted[start : start + _IN_LIST]
        known.update(tx.execute(_MARKS, {"cohort": cohort, "wanted": part}).scalars())
    return known


def slots(tx: Connection, cohort: int, stage: str) -> list[int]:
    """Return the slots that sent a message in a stage, ascending."""
    return sorted(tx.execute(_SLOTS, {"cohort": cohort, "stage": stage}).scalars())


def count_answers(tx: Connection, cohort: int, stage: str) -> int:
    """Return how many clients sent a message in a stage."""
    return tx.execute(_COUNT_ANSWERS, {"cohort": cohort, "stage": stage}).scalar_one()


def is_used(tx: Connection, state: State) -> bool:
    """Return whether a client has sent a message of the open stage, or has left."""
    return tx.execute(_USED, {"cohort": state.number, "stage": state.stage}).first() is not None


def answers_and_awaited(tx: Connection, state: State, members: Collection[int] | None) -> tuple[int, bool]:
    """Return how many clients have sent a message in the open stage, and whether a member has neither sent nor left.

    members  of the stage; None: every slot is one.
    """
    expected = state.cohort.clients if members is None else len(members)
    answers = count_answers(tx, state.number, state.stage)
    if members is None and answers == expected:
        return answers, False  # as many as there are slots
    left = departed(tx, state.number)
    if answers + len(left) < expected:
        return answers, True  # counting is cheap, and mostly enough
    present = set(range(expected)) if members is None else set(members)
    return answers, bool(present.difference(left, slots(tx, state.number, state.stage)))


def bodies(tx: Connection, cohort: int, stage: str, after: int, limit: int) -> list[tuple[int, bytes]]:
    """Return slot and body of clients' messages of a stage, ascending by slot, behind slot `after`."""
    rows = tx.execute(_BODIES, {"cohort": cohort, "stage": stage, "after": after, "limit": limit})
    return [(row.slot, row.body) for row in rows]


def add_departures(tx: Connection, cohort: int, leaving: Iterable[int]) -> None:
    """Note the slots that left; those that are noted already must not be among them."""
    fields = {"cohort": cohort, "stage": DEPARTED, "digest": hashlib.sha256(b"").digest(), "body": b""}
    add_messages(tx, [{**fields, "slot": slot} for slot in leaving])


def departed(tx: Connection, cohort: int) -> set[int]:
    """Return the slots that have left."""
    return set(slots(tx, cohort, DEPARTED))


def leave_out(tx: Connection, cohort: int, stage: str, leaving: Sequence[int]) -> None:
    """Scrub the messages of a stage of these slots, which count no more, and note that the slots left.

    No row is deleted: `keeping` says why.
    """
    where = MESSAGES.c.cohort == cohort, MESSAGES.c.stage == stage, MESSAGES.c.slot.in_(leaving)
    tx.execute(update(MESSAGES).where(*where).values(stage=LEFT_OUT, body=None, ticket=None, mark=None))
    gone = departed(tx, cohort)
    add_departures(tx, cohort, [slot for slot in leaving if slot not in gone])


def put_statement(tx: Connection, cohort: int, stage: str, body: bytes) -> None:
    """Store a statement of the intermediary itself, one a stage."""
    fields = {"cohort": cohort, "stage": stage, "slot": SELF, "digest": hashlib.sha256(body).digest()}
    tx.execute(_ADD_MESSAGE, [{**fields, "body": body}])


def statement(tx: Connection, cohort: int, stage: str) -> bytes | None:
    """Return the intermediary's own statement of a stage, or None."""
    return tx.execute(_STATEMENT, {"cohort": cohort, "stage": stage}).scalar_one_or_none()


def count(tx: Connection, cohort: int) -> int:
    """Return the number of a cohort's messages, in and out, that are not scrubbed."""
    return tx.execute(_COUNT, {"cohort": cohort}).scalar_one()


def one_by_one(tx: Connection, key: bytes) -> None:
    """Keep out other transactions with this key until this one ends. SQLite has one writer in any case."""
    if tx.dialect.name == "postgresql":
        lock = int.from_bytes(hashlib.sha256(key).digest()[:8], "big", signed=True)
        tx.execute(select(func.pg_advisory_xact_lock(lock)))


def add_delivery(tx: Connection, state: State) -> int:
    """Note that a cohort's batch is released. Return its position among those of its run, from 1.

    The caller commits it together with the batch. So the list names every batch that the server can have received.
    """
    run = state.cohort.run_digest
    one_by_one(tx, run)  # two batches of a run are not counted at once
    position: int = tx.execute(_ADD_DELIVERY, {"run": run, "digest": state.digest}).scalar_one()
    return position


def delivered(tx: Connection, run_digest: bytes, after: int, limit: int) -> tuple[int, list[bytes]]:
    """Return how many batches of a run were released, and the digests of their cohorts behind position `after`."""
    total: int = tx.execute(_COUNT_DELIVERED, {"run": run_digest}).scalar_one()
    rows = tx.execute(_DELIVERED, {"run": run_digest, "after": after, "limit": limit})
    return total, list(rows.scalars())


def message_page(tx: Connection, cohort: int, after: int, limit: int) -> list[PlacedMessage]:
    """Return messages that are not scrubbed in the order of arrival, from position `after` on."""
    query = select(MESSAGES.c.stage, MESSAGES.c.slot, MESSAGES.c.body)
    query = query.where(MESSAGES.c.cohort == cohort, MESSAGES.c.body.is_not(None))
    rows = tx.execute(query.order_by(MESSAGES.c.number).offset(after).limit(limit))
    return [(place, row.stage, row.slot, row.body) for place, row in enumerate(rows, start=after)]


def message_sample(
    tx: Connection, cohort: int, most: int, *, client: int | None = None, after: int = 0, limit: int = EVERY
) -> list[PlacedMessage]:
    """Return the first `most` messages of each stage, in the order of arrival, from position `after` on.

    The intermediary's own statements of a stage are counted apart from its clients' messages.

    client  a slot, all of whose messages are among them; None: of no slot.
    """
    values = {"most": most, "client": NO_SLOT if client is None else client, "after": after, "limit": limit}
    rows = tx.execute(_SAMPLE, {"cohort": cohort, **values})
    return [(row.place, row.stage, row.slot, row.body) for row in rows]


def _state(row: Row[Any]) -> State:
    return State(row.number, *_cohort(row.body), row.stage, row.since, row.reason, row.settled, row.scrubbed)


_KEPT_BYTES = 64 * 1024  # of a cohort's JSON: one with longer terms is parsed at every request


def _cohort(body: bytes) -> tuple[Cohort, bytes]:
    """Return the stored cohort and its digest. A cohort never changes, and every request about it reads it."""
    return _kept(body) if len(body) <= _KEPT_BYTES else _parsed(body)


def _parsed(body: bytes) -> tuple[Cohort, bytes]:
    # `add_cohort` stored the JSON that `Cohort.digest` hashes, so that the cohort is not written again.
    return Cohort.model_validate_json(body), hashlib.sha256(body).digest()


_kept = lru_cache(maxsize=128)(_parsed)
