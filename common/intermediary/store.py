"""Defines an intermediary's tables, and queries in bulk. The caller holds the transaction.

A message's body is kept until its cohort is forgotten, because restarts and `inspect` read it.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
    insert,
    select,
    update,
)

from distrust.common.errors import WrongCohort
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.status import CohortStage

VERSION = 4
METADATA = MetaData()

_Counter = BigInteger().with_variant(Integer, "sqlite")

COHORTS = Table(
    "cohorts",
    METADATA,
    Column("number", _Counter, primary_key=True),
    Column("cohort", String(80), nullable=False, unique=True),
    Column("body", LargeBinary, nullable=False),  # the Cohort as JSON
    Column("stage", String(16), nullable=False),
    Column("since", Float),  # when the open stage's deadline begins to run, seconds since the epoch
    Column("reason", Text),  # only of an aborted cohort
)

MESSAGES = Table(
    "messages",
    METADATA,
    Column("number", _Counter, primary_key=True),
    Column("cohort", String(80), nullable=False),
    Column("stage", String(16), nullable=False),  # or `departed`, `asked` (for an action), `order`, `batch`
    Column("slot", Integer, nullable=False),  # below 0 for what the intermediary stores itself
    Column("digest", LargeBinary, nullable=False),  # SHA-256 of the body: a repeat is told from a conflict
    Column("ticket", LargeBinary),  # of the slot's first message
    Column("mark", LargeBinary),  # what must be unique in a cohort: a report id
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("cohort", "stage", "slot"),
    UniqueConstraint("cohort", "mark"),
)


Span = tuple[int, int]
"""The first and the last slot of an upload."""

SELF = -1
"""The slot of what the intermediary stores itself."""

BATCH = "batch"
"""The stage of the released BatchAnswer, kept as JSON: collected again, it is the same bytes."""

DEPARTED = "departed"
"""The stage of the rows of clients that leave."""

_IN_LIST = 500  # values in one SQL list, well below every database's limit


@dataclass(frozen=True, slots=True)
class State:
    """One cohort's state. `since` is when the open stage's deadline begins to run; None when no stage is open."""

    cohort: Cohort
    stage: CohortStage | Literal["mixing"]
    since: float | None
    reason: str | None

    @property
    def name(self) -> str:
        return self.cohort.cohort


def add_cohort(tx: Connection, cohort: Cohort, stage: str, since: float) -> None:
    """Add a new cohort, in its first stage."""
    body = cohort.model_dump_json().encode()
    tx.execute(insert(COHORTS), [{"cohort": cohort.cohort, "body": body, "stage": stage, "since": since}])


def find_cohort(tx: Connection, cohort: str, *, lock: bool = False) -> State | None:
    """Return a cohort's state, or None. `lock` keeps other workers of a database out until the transaction ends."""
    query = select(COHORTS).where(COHORTS.c.cohort == cohort)
    row = tx.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else _state(row)


def need(tx: Connection, cohort: str, *, lock: bool = False) -> State:
    """Return a cohort's state. Raises WrongCohort."""
    state = find_cohort(tx, cohort, lock=lock)
    if state is None:
        raise WrongCohort(f"cohort {cohort} is not known here", cohort=cohort)
    return state


def every(tx: Connection, without: Collection[str] = ()) -> list[State]:
    """Return all cohorts but those in the stages `without`, oldest first."""
    query = select(COHORTS).where(COHORTS.c.stage.not_in(without))
    return [_state(row) for row in tx.execute(query.order_by(COHORTS.c.number))]


def move(tx: Connection, cohort: str, stage: str, since: float | None, reason: str | None = None) -> None:
    """Put a cohort into a stage."""
    change = update(COHORTS).where(COHORTS.c.cohort == cohort)
    tx.execute(change.values(stage=stage, since=since, reason=reason))


def add_messages(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add messages as rows: cohort, stage, slot, digest, ticket, mark, body."""
    if rows:
        tx.execute(insert(MESSAGES), list(rows))


def digests(tx: Connection, cohort: str, stage: str, span: Span) -> dict[int, bytes]:
    """Return slot to digest of the messages of a stage, within a span."""
    return _pairs(tx, MESSAGES.c.digest, cohort, stage, span)


def stored_tickets(tx: Connection, cohort: str, stage: str, span: Span) -> dict[int, bytes]:
    """Return slot to ticket, as they came with the messages of a stage, within a span."""
    return {slot: ticket for slot, ticket in _pairs(tx, MESSAGES.c.ticket, cohort, stage, span).items() if ticket}


def marks(tx: Connection, cohort: str, wanted: Sequence[bytes]) -> set[bytes]:
    """Return those of the wanted marks that the cohort has already."""
    known: set[bytes] = set()
    for start in range(0, len(wanted), _IN_LIST):
        inside = MESSAGES.c.mark.in_(wanted[start : start + _IN_LIST])
        known.update(tx.execute(select(MESSAGES.c.mark).where(MESSAGES.c.cohort == cohort, inside)).scalars())
    return known


def slots(tx: Connection, cohort: str, stage: str) -> list[int]:
    """Return the slots that sent a message in a stage, ascending."""
    query = select(MESSAGES.c.slot).where(MESSAGES.c.cohort == cohort, MESSAGES.c.stage == stage, MESSAGES.c.slot >= 0)
    return list(tx.execute(query.order_by(MESSAGES.c.slot)).scalars())


def count_answers(tx: Connection, cohort: str, stage: str) -> int:
    """Return how many clients sent a message in a stage."""
    query = select(func.count()).where(MESSAGES.c.cohort == cohort, MESSAGES.c.stage == stage, MESSAGES.c.slot >= 0)
    return tx.execute(query).scalar_one()


def awaited(tx: Connection, state: State, members: Collection[int] | None) -> bool:
    """Return whether a member of the open stage has neither answered nor left; `members` None: every slot is one."""
    expected = state.cohort.clients if members is None else len(members)
    left = departed(tx, state.name)
    if count_answers(tx, state.name, state.stage) + len(left) < expected:
        return True  # counting is cheap, and mostly enough
    present = set(range(expected)) if members is None else set(members)
    return bool(present.difference(left, slots(tx, state.name, state.stage)))


def bodies(tx: Connection, cohort: str, stage: str, after: int, limit: int) -> list[tuple[int, bytes]]:
    """Return slot and body of clients' messages of a stage, ascending by slot, behind slot `after`."""
    query = select(MESSAGES.c.slot, MESSAGES.c.body).where(MESSAGES.c.cohort == cohort, MESSAGES.c.stage == stage)
    rows = tx.execute(query.where(MESSAGES.c.slot > after).order_by(MESSAGES.c.slot).limit(limit))
    return [(row.slot, row.body) for row in rows]


def add_departures(tx: Connection, cohort: str, leaving: Iterable[int]) -> None:
    """Note the slots that left; those that are noted already must not be among them."""
    fields = {"cohort": cohort, "stage": DEPARTED, "digest": hashlib.sha256(b"").digest(), "body": b""}
    add_messages(tx, [{**fields, "slot": slot} for slot in leaving])


def departed(tx: Connection, cohort: str) -> set[int]:
    """Return the slots that have left."""
    return set(slots(tx, cohort, DEPARTED))


def put_statement(tx: Connection, cohort: str, stage: str, body: bytes) -> None:
    """Store a statement of the intermediary itself, one a stage."""
    fields = {"cohort": cohort, "stage": stage, "slot": SELF, "digest": hashlib.sha256(body).digest()}
    tx.execute(insert(MESSAGES), [{**fields, "body": body}])


def statement(tx: Connection, cohort: str, stage: str) -> bytes | None:
    """Return the intermediary's own statement of a stage, or None."""
    query = select(MESSAGES.c.body).where(MESSAGES.c.cohort == cohort, MESSAGES.c.stage == stage)
    return tx.execute(query.where(MESSAGES.c.slot == SELF)).scalar_one_or_none()


def count(tx: Connection, cohort: str) -> int:
    """Return the number of a cohort's messages, in and out."""
    return tx.execute(select(func.count()).where(MESSAGES.c.cohort == cohort)).scalar_one()


def message_page(tx: Connection, cohort: str, after: int, limit: int) -> list[tuple[str, int, bytes]]:
    """Return stage, slot and body of messages in the order of arrival, from position `after` on."""
    query = select(MESSAGES.c.stage, MESSAGES.c.slot, MESSAGES.c.body).where(MESSAGES.c.cohort == cohort)
    rows = tx.execute(query.order_by(MESSAGES.c.number).offset(after).limit(limit))
    return [(row.stage, row.slot, row.body) for row in rows]


def _state(row: Row[Any]) -> State:
    return State(Cohort.model_validate_json(row.body), row.stage, row.since, row.reason)


def _pairs(tx: Connection, column: Any, cohort: str, stage: str, span: Span) -> dict[int, Any]:
    query = select(MESSAGES.c.slot, column).where(MESSAGES.c.cohort == cohort, MESSAGES.c.stage == stage)
    return {row[0]: row[1] for row in tx.execute(query.where(MESSAGES.c.slot.between(*span)))}
