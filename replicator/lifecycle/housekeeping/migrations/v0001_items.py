"""The first tables: items and state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ACTIVE = sa.text("housekeeping_status IN ('SCHEDULED', 'FAILED')")


def upgrade() -> None:
    op.create_table(
        "housekeeping_item",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("lifecycle_type", sa.String(20), nullable=False),
        sa.Column("database_name", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("partition_name", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column(
            "place_head", sa.String(400).with_variant(sa.String(400, collation="C"), "postgresql"), nullable=False
        ),
        sa.Column("slot", sa.String(32)),
        sa.Column("housekeeping_status", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("creation_timestamp", sa.BigInteger, nullable=False),
        sa.Column("modified_timestamp", sa.BigInteger, nullable=False),
        sa.Column("cleanup_timestamp", sa.BigInteger, nullable=False),
        sa.Column("cleanup_delay", sa.Text, nullable=False),
        sa.Column("cleanup_attempts", sa.Integer, nullable=False),
        sa.Column("next_try", sa.BigInteger, nullable=False),
        sa.Column("detached", sa.Boolean, nullable=False),
        sa.Column("begun", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger, nullable=False),
        sa.Column("client_id", sa.Text, nullable=False),
        sa.Column("event", sa.BigInteger, nullable=False),
    )
    op.create_index("housekeeping_item_slot", "housekeeping_item", ["slot"], unique=True)
    op.create_index(
        "housekeeping_item_due",
        "housekeeping_item",
        ["cleanup_timestamp", "id"],
        sqlite_where=_ACTIVE,
        postgresql_where=_ACTIVE,
    )
    op.create_index(
        "housekeeping_item_below", "housekeeping_item", ["place_head"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE
    )
    op.create_index("housekeeping_item_object", "housekeeping_item", ["database_name", "table_name", "partition_name"])
    op.create_table(
        "housekeeping_state",
        sa.Column("key", sa.String(50), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("housekeeping_state")
    op.drop_table("housekeeping_item")
