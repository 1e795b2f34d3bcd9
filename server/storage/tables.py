"""The tables of the server's database. `store.py` reads and writes them.

runs        configuration, digest, id, public keys, state; the private keys are in files (server/storage/keys.py)
cohorts     cohorts that were opened at their intermediary, and their state. A row is the server's intent to collect the
            cohort's batch: it is committed before the first ticket, and closed with the outcome
grants      slots by ticket request; of callers with a limit, who they are, until the cohort's outcome
quotas      slots that participants with a quota got
batches     batches as the intermediaries released them
outcomes    how cohorts ended, in order
statements  digests of what the aggregator told clients, stage by stage
events      what happened, for listeners
receipts    by slot, whether a client of a crowd has found its record in the batch
kept        cohorts that have ended, until their intermediary knows it and their batch is scrubbed
tombstones  what is left of pruned runs
regrets     curves that drivers posted, for readers of pages; no policy sees them
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

VERSION = "0002"  # the newest revision of the tables (migrations/); a database of another one is refused

METADATA = MetaData()

RUNS = Table(
    "runs",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), unique=True, nullable=False),
    Column("config", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("run_id", LargeBinary(16), nullable=False),
    Column("ticket_key", LargeBinary(32), nullable=False),
    Column("seal_key", LargeBinary(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("started", Float),  # seconds since the epoch; null in runs of before revision 0002
    Column("ended", Float),
)
COHORTS = Table(
    "cohorts",
    METADATA,
    Column("cohort", String(80), primary_key=True),
    Column("run", String(80), index=True, nullable=False),
    Column("round", Integer, nullable=False),
    Column("clients", Integer, nullable=False),
    Column("granted", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("lost", Integer),
    Column("via", String(16), nullable=False),
    Column("digest", LargeBinary(32), index=True, nullable=False),  # `Cohort.digest`
    Column("message", Text, nullable=False),
    Column("scrubbed", Float),  # when its batch was; seconds since the epoch
)
OUTCOMES = Table(
    "outcomes",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), index=True, nullable=False),
    Column("cohort", String(80), unique=True, nullable=False),
    Column("body", Text, nullable=False),
)
BATCHES = Table(
    "batches",
    METADATA,
    Column("cohort", String(80), primary_key=True),
    Column("body", Text),  # null once it was scrubbed
)
GRANTS = Table(
    "grants",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), nullable=False),
    Column("request", String(32), nullable=False),
    Column("round", Integer, nullable=False),
    Column("want", Integer, nullable=False),
    Column("cohort", String(80), nullable=False),
    Column("first", Integer, nullable=False),
    Column("count", Integer, nullable=False),
    Column("participant", String(64)),  # the id of a caller with a limit (server.runs.admission), until the outcome
    # 32 bytes a slot: SHA-256 of the client's keys; empty at the shuffler
    Column("key_hashes", LargeBinary, nullable=False),
    UniqueConstraint("run", "request", "cohort"),
    # No slot is granted twice, also where a server reads grants while its last commit is still under way.
    Index("ix_grants_cohort_first", "cohort", "first", unique=True),
)
QUOTAS = Table(
    "quotas",
    METADATA,
    Column("participant", String(64), primary_key=True),
    Column("slots", BigInteger, nullable=False),
)
STATEMENTS = Table(
    "statements",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("cohort", String(80), nullable=False),
    Column("stage", String(16), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    UniqueConstraint("cohort", "stage"),
)
EVENTS = Table(
    "events",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), index=True, nullable=False),
    Column("body", Text, nullable=False),
)
RECEIPTS = Table(
    "receipts",
    METADATA,
    Column("cohort", String(80), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("present", Boolean, nullable=False),
)
ENDED = Table(
    "kept",
    METADATA,
    Column("cohort", String(80), primary_key=True),
    Column("run", String(80), nullable=False),
    Column("via", String(16), nullable=False),
    Column("due", Float, index=True),  # when its batch is scrubbed, in seconds since the epoch; null once it was
    Column("told", Boolean, nullable=False),  # whether its intermediary knows that it is collected no more
    Index("ix_kept_told_due", "told", "due"),
)
TOMBSTONES = Table(
    "tombstones",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("body", Text, nullable=False),  # a Tombstone as JSON
)
REGRETS = Table("regrets", METADATA, Column("run", String(80), primary_key=True), Column("body", Text, nullable=False))
