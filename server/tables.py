"""The server's tables.

runs      configuration, digest, state         cohorts  what was opened at S, and how it stands
outcomes  how cohorts ended, in order          grants   slots by ticket request
batches   what S released, as received         events   what happened, for listeners
statements  digests of what the aggregator told clients, stage by stage
"""

from sqlalchemy import Column, Integer, LargeBinary, MetaData, String, Table, Text, UniqueConstraint

VERSION = 2

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), unique=True, nullable=False),
    Column("config", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
)
cohorts = Table(
    "cohorts",
    metadata,
    Column("cohort", String(80), primary_key=True),
    Column("run", String(80), index=True, nullable=False),
    Column("round", Integer, nullable=False),
    Column("clients", Integer, nullable=False),
    Column("granted", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("lost", Integer),
    Column("message", Text, nullable=False),
)
outcomes = Table(
    "outcomes",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), index=True, nullable=False),
    Column("cohort", String(80), unique=True, nullable=False),
    Column("body", Text, nullable=False),
)
batches = Table(
    "batches", metadata, Column("cohort", String(80), primary_key=True), Column("body", Text, nullable=False)
)
grants = Table(
    "grants",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), nullable=False),
    Column("request", String(32), nullable=False),
    Column("round", Integer, nullable=False),
    Column("want", Integer, nullable=False),
    Column("cohort", String(80), index=True, nullable=False),
    Column("first", Integer, nullable=False),
    Column("count", Integer, nullable=False),
    Column(
        "key_hashes", LargeBinary, nullable=False
    ),  # 32 bytes a slot: SHA-256 of the client's keys; empty at the shuffler
    UniqueConstraint("run", "request", "cohort"),
)
statements = Table(
    "statements",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("cohort", String(80), nullable=False),
    Column("stage", String(16), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    UniqueConstraint("cohort", "stage"),
)
events = Table(
    "events",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("run", String(80), index=True, nullable=False),
    Column("body", Text, nullable=False),
)
