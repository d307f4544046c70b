"""The lag of policies and the size of roots over time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "service_lag",
        sa.Column("policy", sa.Text, primary_key=True),
        sa.Column("at", sa.Float(53), primary_key=True),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("events", sa.BigInteger),
        sa.Column("seconds", sa.Float(53)),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("headroom_seconds", sa.Float(53)),
        sa.Column("at_least", sa.Boolean, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_table(
        "service_root",
        sa.Column("root", sa.Text, primary_key=True),
        sa.Column("at", sa.Float(53), primary_key=True),
        sa.Column("entries", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("shared_bytes", sa.BigInteger),
        sa.Column("error", sa.Text, nullable=False),
    )
