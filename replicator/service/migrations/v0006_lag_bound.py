"""The upper bound of a policy's lag."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("service_lag", sa.Column("seconds_bound", sa.Float(53)))
