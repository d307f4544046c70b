"""An index for the items of a table by lifecycle, in the order of their ids, as required by pages of the API."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "housekeeping_item_lifecycle", "housekeeping_item", ["database_name", "table_name", "lifecycle_type", "id"]
    )


def downgrade() -> None:
    op.drop_index("housekeeping_item_lifecycle", "housekeeping_item")
