"""The digest of an action's body, which a request with the same key must match; an index of actions by subject."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("service_action", sa.Column("request_digest", sa.String(64)))
    op.create_index("service_action_subject", "service_action", ["subject", "id"])
