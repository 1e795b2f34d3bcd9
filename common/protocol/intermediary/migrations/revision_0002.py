"""Cohorts are kept by run and name, messages by their cohort's number; what was delivered is listed; wire version 3.

No cohort goes on: its clients hold tickets and keys of the version before. So all have ended, and their messages are
scrubbed a day after the migration.
"""

import hashlib
import time
from collections import Counter

import sqlalchemy as sa
from alembic import op

from distrust.common.protocol.storage import wire_1_to_3

revision = "0002"
down_revision = "0001"

OPEN = "the cohort was open when the database was migrated to wire version 3"
STATED = ("batch", "shares", "confirm", "masked", "unmask")  # stages of an intermediary's own statements in JSON

OPEN_ONLY = sa.text("since IS NOT NULL")
DUE_ONLY = sa.text("due IS NOT NULL")
NAMES = {"uq": "%(table_name)s_%(column_0_N_name)s_key"}  # PostgreSQL's own names; in SQLite the keys have none
COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

COLUMNS = ("number", "run_digest", "cohort", "body", "stage", "since", "reason", "keep_seconds", "due", "settled")
COHORTS = sa.table("cohorts", *map(sa.column, COLUMNS))
MESSAGES = sa.table("messages", *map(sa.column, ("number", "cohort", "stage", "slot", "digest", "body")))
DELIVERED = sa.table("delivered", *map(sa.column, ("run_digest", "position", "digest")))


def upgrade() -> None:
    """Change the tables, and the rows of each."""
    connection = op.get_bind()
    over = COHORTS.c.stage.in_(("done", "aborted"))
    connection.execute(sa.update(COHORTS).where(~over).values(stage="aborted", since=None, reason=OPEN))
    _list_deliveries()
    _make_tables_of_what_is_left()
    _rewrite_cohorts(connection)
    _rewrite_statements(connection)
    _number_messages(connection)


def _list_deliveries() -> None:
    op.create_table(
        "delivered",
        sa.Column("number", COUNTER, primary_key=True),
        sa.Column("run_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.UniqueConstraint("run_digest", "position"),
        sa.UniqueConstraint("run_digest", "digest"),
    )


def _make_tables_of_what_is_left() -> None:
    op.create_table(
        "digests",
        sa.Column("cohort", COUNTER, primary_key=True, autoincrement=False),
        sa.Column("stage", sa.String(16), primary_key=True),
        sa.Column("slot", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "pruned",
        sa.Column("run_digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("since", sa.Float(), nullable=False),
    )


def _rewrite_cohorts(connection: sa.Connection) -> None:
    """Rewrite the cohorts with their run's digest, and list those that were released: by run, in their order."""
    for name, kind in (("run_digest", sa.LargeBinary(32)), ("keep_seconds", sa.Float()), ("due", sa.Float())):
        op.add_column("cohorts", sa.Column(name, kind))
    op.add_column("cohorts", sa.Column("settled", sa.Boolean()))
    op.add_column("cohorts", sa.Column("scrubbed", sa.Float()))
    kept = {"keep_seconds": 86_400.0, "due": time.time() + 86_400, "settled": True}
    connection.execute(sa.update(COHORTS).values(kept))
    delivered = Counter[bytes]()
    for number, body, stage in wire_1_to_3.rows(connection, COHORTS, "number", "body", "stage"):
        text, run = wire_1_to_3.cohort(body.decode())
        values = {"body": text.encode(), "run_digest": run}
        connection.execute(sa.update(COHORTS).where(COHORTS.c.number == number).values(values))
        if stage == "done":
            delivered[run] += 1
            entry = {"run_digest": run, "position": delivered[run], "digest": hashlib.sha256(text.encode()).digest()}
            connection.execute(sa.insert(DELIVERED).values(entry))
    once = {"sqlite_autoincrement": True}
    with op.batch_alter_table("cohorts", naming_convention=NAMES, table_kwargs=once) as batch:
        batch.alter_column("keep_seconds", existing_type=sa.Float(), nullable=False)
        batch.alter_column("settled", existing_type=sa.Boolean(), nullable=False)
        batch.alter_column("run_digest", existing_type=sa.LargeBinary(32), nullable=False)
        batch.drop_constraint("cohorts_cohort_key", type_="unique")
        batch.create_unique_constraint("cohorts_run_digest_cohort_key", ["run_digest", "cohort"])
    op.create_index("cohorts_open", "cohorts", ["since"], sqlite_where=OPEN_ONLY, postgresql_where=OPEN_ONLY)
    op.create_index("cohorts_due", "cohorts", ["due"], sqlite_where=DUE_ONLY, postgresql_where=DUE_ONLY)


def _rewrite_statements(connection: sa.Connection) -> None:
    """Rewrite the intermediary's own statements, with their digests. Clients' bodies stay as they came."""
    own = MESSAGES.c.slot == -1, MESSAGES.c.stage.in_(STATED)
    for number, stage, body in wire_1_to_3.rows(connection, MESSAGES, "number", "stage", "body", where=own):
        rewritten = wire_1_to_3.answer if stage == "batch" else wire_1_to_3.message
        raw = rewritten(body.decode()).encode()
        values = {"body": raw, "digest": hashlib.sha256(raw).digest()}
        connection.execute(sa.update(MESSAGES).where(MESSAGES.c.number == number).values(values))


def _number_messages(connection: sa.Connection) -> None:
    """Put the number of a cohort in place of its name.

    The number is written with a plus, which no name begins with: a cohort may be called as another one's number is.
    """
    number = sa.literal("+") + sa.cast(COHORTS.c.number, sa.String(20))
    of = sa.select(number).where(COHORTS.c.cohort == MESSAGES.c.cohort).scalar_subquery()
    connection.execute(sa.update(MESSAGES).values(cohort=of))
    with op.batch_alter_table("messages") as batch:
        batch.alter_column("body", existing_type=sa.LargeBinary(), nullable=True)
        batch.alter_column(
            "cohort", existing_type=sa.String(80), type_=COUNTER, nullable=False, postgresql_using="cohort::bigint"
        )
