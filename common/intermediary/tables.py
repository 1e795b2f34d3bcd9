"""The tables of an S. A message's body is kept until its cohort is forgotten: restarts and `inspect` read it."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

VERSION = 3
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
    Column("stage", String(16), nullable=False),  # or `departed`, of a deal `asked`; of S: `order`, `batch`
    Column("slot", Integer, nullable=False),  # below 0 for what S says itself
    Column("digest", LargeBinary, nullable=False),  # SHA-256 of the body: a repeat is told from a conflict
    Column("ticket", LargeBinary),  # of the slot's first message
    Column("mark", LargeBinary),  # what must be unique in a cohort: a report id
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("cohort", "stage", "slot"),
    UniqueConstraint("cohort", "mark"),
)
