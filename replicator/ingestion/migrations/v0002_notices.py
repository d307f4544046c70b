"""Receivers of notifications about ingestion, and their pending messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "ingestion_receiver",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("told", sa.BigInteger, nullable=False),
        sa.Column("due", sa.Float(53), nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("seen", sa.Float(53), nullable=False),
    )
    op.create_table(
        "ingestion_message",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("receiver", sa.String(200), nullable=False),
        sa.Column("about", sa.String(300), nullable=False),
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("delivered", sa.Float(53)),
    )
    op.create_index("ingestion_message_about", "ingestion_message", ["receiver", "about"], unique=True)
    op.create_index("ingestion_message_job", "ingestion_message", ["job"])
