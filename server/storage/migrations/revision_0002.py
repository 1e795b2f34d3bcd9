"""Runs have an id and public keys of their own; cohorts their intermediary and their digest; messages wire version 3.

There are tables of the receipts of clients, of what is kept for a while, and of pruned runs. Grants may name a
participant with a limit, and quotas are counted. No slot has two grants.

No run goes on: its clients hold tickets and keys of the version before. So the public keys are zeros, which no message
has. Stored configurations keep their version and their digest.
"""

import hashlib
import json
import time

import sqlalchemy as sa
from alembic import op

from distrust.common.protocol.storage import wire_1_to_3

revision = "0002"
down_revision = "0001"

OPEN = "the run was open when its database was migrated to wire version 3: start it again under another name"

KEYS = ("ticket_key", "seal_key")

RUNS = sa.table("runs", *map(sa.column, ("number", "run", "run_id", *KEYS, "state", "reason", "ended")))
COHORTS = sa.table("cohorts", *map(sa.column, ("cohort", "run", "state", "via", "digest", "message")))
GRANTS = sa.table("grants", *map(sa.column, ("number", "cohort", "first")))
BATCHES = sa.table("batches", *map(sa.column, ("cohort", "body")))
KEPT = sa.table("kept", *map(sa.column, ("cohort", "run", "via", "due", "told")))
REGRETS = sa.table("regrets", *map(sa.column, ("run", "body")))
EVENTS = sa.table("events", *map(sa.column, ("run", "body")))


def upgrade() -> None:
    """Change the tables, and the rows of each."""
    connection = op.get_bind()
    _end_open_runs(connection)
    _identify_runs(connection)
    _rewrite_cohorts(connection)
    op.create_table(
        "receipts",
        sa.Column("cohort", sa.String(80), primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("present", sa.Boolean, nullable=False),
    )
    op.create_table(
        "kept",
        sa.Column("cohort", sa.String(80), primary_key=True),
        sa.Column("run", sa.String(80), nullable=False),
        sa.Column("via", sa.String(16), nullable=False),
        sa.Column("due", sa.Float),
        sa.Column("told", sa.Boolean, nullable=False),
    )
    op.create_index("ix_kept_due", "kept", ["due"])
    op.create_index("ix_kept_told_due", "kept", ["told", "due"])
    op.create_table(
        "tombstones", sa.Column("number", sa.Integer, primary_key=True), sa.Column("body", sa.Text, nullable=False)
    )
    with op.batch_alter_table("batches") as batch:
        batch.alter_column("body", existing_type=sa.Text, nullable=True)
    _keep_batches_for_a_day(connection)
    op.add_column("grants", sa.Column("participant", sa.String(64)))
    _keep_one_grant_of_a_slot(connection)
    op.create_table(
        "quotas",
        sa.Column("participant", sa.String(64), primary_key=True),
        sa.Column("slots", sa.BigInteger(), nullable=False),
    )
    for table, key, rewritten in ((BATCHES, "cohort", wire_1_to_3.answer), (REGRETS, "run", wire_1_to_3.message)):
        for name, body in wire_1_to_3.rows(connection, table, key, "body"):
            connection.execute(sa.update(table).where(table.c[key] == name).values(body=rewritten(body)))


def _keep_one_grant_of_a_slot(connection: sa.Connection) -> None:
    """Delete grants of slots that were granted before, and refuse them from now on. Their runs are over.

    Until now a commit that landed after the server had read its grants again gave slots to a second request.
    """
    first = sa.select(sa.func.min(GRANTS.c.number)).group_by(GRANTS.c.cohort, GRANTS.c.first)
    connection.execute(sa.delete(GRANTS).where(GRANTS.c.number.not_in(first)))
    op.drop_index("ix_grants_cohort", "grants")
    op.create_index("ix_grants_cohort_first", "grants", ["cohort", "first"], unique=True)


def _keep_batches_for_a_day(connection: sa.Connection) -> None:
    """Let all batches be scrubbed a day after the migration. The intermediaries' own migration tells them the same."""
    due = time.time() + 86_400
    columns = [COHORTS.c.cohort, COHORTS.c.run, COHORTS.c.via, sa.literal(due, sa.Float), sa.true()]
    stored = sa.select(*columns).where(COHORTS.c.cohort.in_(sa.select(BATCHES.c.cohort)))
    connection.execute(sa.insert(KEPT).from_select(["cohort", "run", "via", "due", "told"], stored))


def _end_open_runs(connection: sa.Connection) -> None:
    """End open runs as failed, and abort their open cohorts."""
    running = sa.select(RUNS.c.run).where(RUNS.c.state == "running")
    opened = COHORTS.c.run.in_(running), COHORTS.c.state == "open"
    connection.execute(sa.update(COHORTS).where(*opened).values(state="aborted"))
    for run in connection.execute(running.order_by(RUNS.c.number)).scalars().all():
        event = json.dumps({"number": 1, "run": run, "kind": "failed", "detail": OPEN}, separators=(",", ":"))
        connection.execute(sa.insert(EVENTS).values(run=run, body=event))
        connection.execute(sa.update(RUNS).where(RUNS.c.run == run).values(state="failed", reason=OPEN))


def _identify_runs(connection: sa.Connection) -> None:
    """Give every run the same id and the same public keys, zeros, and as its end the time of the migration.

    When a run ended is not stored, so that `distrust prune --before` must not take one that ended just now for an old
    one.
    """
    op.add_column("runs", sa.Column("started", sa.Float))
    op.add_column("runs", sa.Column("ended", sa.Float))
    op.add_column("runs", sa.Column("run_id", sa.LargeBinary(16)))
    for key in KEYS:
        op.add_column("runs", sa.Column(key, sa.LargeBinary(32)))
    zeros = dict.fromkeys(KEYS, bytes(32))
    connection.execute(sa.update(RUNS).values(run_id=wire_1_to_3.NO_RUN_ID, ended=time.time(), **zeros))
    with op.batch_alter_table("runs") as batch:
        batch.alter_column("run_id", existing_type=sa.LargeBinary(16), nullable=False)
        for key in KEYS:
            batch.alter_column(key, existing_type=sa.LargeBinary(32), nullable=False)


def _rewrite_cohorts(connection: sa.Connection) -> None:
    """Rewrite the cohorts' messages, and keep of each which intermediary serves it and the digest."""
    op.add_column("cohorts", sa.Column("via", sa.String(16)))
    op.add_column("cohorts", sa.Column("digest", sa.LargeBinary(32)))
    op.add_column("cohorts", sa.Column("scrubbed", sa.Float))
    for name, text in wire_1_to_3.rows(connection, COHORTS, "cohort", "message"):
        message, _ = wire_1_to_3.cohort(text)
        via = "aggregator" if json.loads(message)["channel"]["kind"] == "masked" else "shuffler"
        values = {"message": message, "digest": hashlib.sha256(message.encode()).digest(), "via": via}
        connection.execute(sa.update(COHORTS).where(COHORTS.c.cohort == name).values(values))
    with op.batch_alter_table("cohorts") as batch:
        batch.alter_column("via", existing_type=sa.String(16), nullable=False)
        batch.alter_column("digest", existing_type=sa.LargeBinary(32), nullable=False)
    op.create_index("ix_cohorts_digest", "cohorts", ["digest"])
