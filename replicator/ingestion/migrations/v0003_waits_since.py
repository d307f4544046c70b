"""The time since which a requester waits for a job, also if its request replaced an earlier one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ingestion_job", sa.Column("waits_since", sa.Float(53)))
