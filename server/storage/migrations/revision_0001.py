"""The server's tables as programs made them that had a number of their schema and no revisions: number 2."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(80), unique=True, nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text()),
    )
    op.create_table(
        "cohorts",
        sa.Column("cohort", sa.String(80), primary_key=True),
        sa.Column("run", sa.String(80), index=True, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("clients", sa.Integer(), nullable=False),
        sa.Column("granted", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("lost", sa.Integer()),
        sa.Column("message", sa.Text(), nullable=False),
    )
    op.create_table(
        "outcomes",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(80), index=True, nullable=False),
        sa.Column("cohort", sa.String(80), unique=True, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("cohort", sa.String(80), primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "grants",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(80), nullable=False),
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("want", sa.Integer(), nullable=False),
        sa.Column("cohort", sa.String(80), index=True, nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("key_hashes", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("run", "request", "cohort"),
    )
    op.create_table(
        "statements",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("cohort", sa.String(80), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.UniqueConstraint("cohort", "stage"),
    )
    op.create_table(
        "events",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(80), index=True, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "regrets",
        sa.Column("run", sa.String(80), primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
