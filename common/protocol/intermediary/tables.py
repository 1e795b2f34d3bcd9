"""The tables of an intermediary's database. `common.protocol.intermediary.store` reads and writes them.

cohorts    cohorts by run and name, and their stages
messages   messages of clients, stage by stage, and the intermediary's own statements
delivered  digests of the cohorts whose batch was released to the server, in order
digests    what is left of scrubbed messages: their digests
pruned     digests R of the runs whose rows were deleted: no cohort of theirs is opened again

A message's body is kept while its cohort is open, because restarts read it, and for the run's `keep_seconds` after its
end, because `inspect` reads it. `common.protocol.intermediary.keeping` deletes it.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

VERSION = "0002"  # the newest revision of the tables below (migrations/); a database of another one is refused
METADATA = MetaData()

_Counter = BigInteger().with_variant(Integer, "sqlite")

COHORTS = Table(
    "cohorts",
    METADATA,
    Column("number", _Counter, primary_key=True),
    Column("run_digest", LargeBinary(32), nullable=False),  # R: two runs may have cohorts of one name
    Column("cohort", String(80), nullable=False),
    Column("body", LargeBinary, nullable=False),  # the Cohort as JSON
    Column("stage", String(16), nullable=False),
    Column("since", Float),  # see `State.since`; seconds since the epoch
    Column("reason", Text),  # only of an aborted cohort
    Column("keep_seconds", Float, nullable=False),
    Column("due", Float),  # when messages of an ended cohort are scrubbed; seconds since the epoch
    Column("settled", Boolean, nullable=False),  # the server collects it no more: its outcome is committed
    Column("scrubbed", Float),  # when its clients' messages were
    UniqueConstraint("run_digest", "cohort", name="cohorts_run_digest_cohort_key"),
    sqlite_autoincrement=True,  # no number is used again: rows of messages may outlive their cohort's
)

_OPEN = COHORTS.c.since.is_not(None)  # most cohorts are over
Index("cohorts_open", COHORTS.c.since, sqlite_where=_OPEN, postgresql_where=_OPEN)
_KEPT = COHORTS.c.due.is_not(None)
Index("cohorts_due", COHORTS.c.due, sqlite_where=_KEPT, postgresql_where=_KEPT)

MESSAGES = Table(
    "messages",
    METADATA,
    Column("number", _Counter, primary_key=True),
    Column("cohort", _Counter, nullable=False),  # its number
    Column("stage", String(16), nullable=False),  # or `departed`, `asked` (for an action), `order`, `batch`
    Column("slot", Integer, nullable=False),  # below 0 for what the intermediary stores itself
    Column("digest", LargeBinary, nullable=False),  # `intake.message_digest`: a repeat is told from a conflict
    Column("ticket", LargeBinary),  # of the slot's first message
    Column("mark", LargeBinary),  # what must be unique in a cohort: a report id
    Column("body", LargeBinary),  # null once it was scrubbed; ticket and mark are null, too
    UniqueConstraint("cohort", "stage", "slot"),
    UniqueConstraint("cohort", "mark"),
)

DELIVERED = Table(
    "delivered",
    METADATA,
    Column("number", _Counter, primary_key=True),
    Column("run_digest", LargeBinary(32), nullable=False),
    Column("position", Integer, nullable=False),  # among those of its run, from 1
    Column("digest", LargeBinary(32), nullable=False),  # `Cohort.digest`
    UniqueConstraint("run_digest", "position"),
    UniqueConstraint("run_digest", "digest"),
)

DIGESTS = Table(
    "digests",
    METADATA,
    Column("cohort", _Counter, primary_key=True, autoincrement=False),
    Column("stage", String(16), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

PRUNED = Table(
    "pruned",
    METADATA,
    Column("run_digest", LargeBinary(32), primary_key=True),
    Column("since", Float, nullable=False),  # seconds since the epoch
)
