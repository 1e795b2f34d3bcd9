"""The intermediaries' tables as programs made them that had a number of their schema and no revisions: number 4."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "cohorts",
        sa.Column("number", counter, primary_key=True),
        sa.Column("cohort", sa.String(80), nullable=False, unique=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("since", sa.Float()),
        sa.Column("reason", sa.Text()),
    )
    op.create_table(
        "messages",
        sa.Column("number", counter, primary_key=True),
        sa.Column("cohort", sa.String(80), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("ticket", sa.LargeBinary()),
        sa.Column("mark", sa.LargeBinary()),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("cohort", "stage", "slot"),
        sa.UniqueConstraint("cohort", "mark"),
    )
