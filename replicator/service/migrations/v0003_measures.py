"""Counters of runs, and the newest sample of each slow measurement; an index of runs by job and state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "service_counter",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("labels", sa.Text, primary_key=True),
        sa.Column("value", sa.Float(53), nullable=False),
    )
    op.create_table(
        "service_sample",
        sa.Column("kind", sa.String(20), primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("service_run_state", "service_run", ["job", "state", "ended"])
