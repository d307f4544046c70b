"""The initial tables: assets, jobs, their changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
OPEN_ONLY = sa.text("state IN ('queued', 'failed', 'running', 'published')")


def upgrade() -> None:
    op.create_table(
        "ingestion_turn",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("logged", sa.BigInteger, nullable=False),
        sa.Column("logging", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "ingestion_asset",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("approved_by", sa.Text, nullable=False),
        sa.Column("changed", sa.Float(53), nullable=False),
    )
    op.create_table(
        "ingestion_job",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("asset", sa.String(128), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("target", sa.String(260), nullable=False),
        sa.Column("mode", sa.String(12), nullable=False),
        sa.Column("requester", sa.Text, nullable=False),
        sa.Column("approver", sa.Text, nullable=False),
        sa.Column("request_key", sa.String(200)),
        sa.Column("slot", sa.String(72)),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("step", sa.String(20), nullable=False),
        sa.Column("event_id", sa.BigInteger),
        sa.Column("queued", sa.Float(53), nullable=False),
        sa.Column("due", sa.Float(53), nullable=False),
        sa.Column("begun", sa.Float(53)),
        sa.Column("ended", sa.Float(53)),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("lease", sa.Float(53), nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("uncounted", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("failing_since", sa.Float(53)),
        sa.Column("error_kind", sa.String(12), nullable=False),
        sa.Column("error_text", sa.Text, nullable=False),
        sa.Column("cancelled_by", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("error_detail", sa.Text, nullable=False),
    )
    op.create_table(
        "ingestion_change",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("asset", sa.String(128), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("target", sa.String(260), nullable=False),
        sa.Column("requester", sa.Text, nullable=False),
        sa.Column("approver", sa.Text, nullable=False),
        sa.Column("mode", sa.String(12), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("step", sa.String(20), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("rows", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("files", sa.BigInteger),
        sa.Column("splits", sa.BigInteger),
        sa.Column("consistent", sa.Boolean),
        sa.Column("erased_rows", sa.BigInteger),
        sa.Column("schema_hash", sa.Text),
        sa.Column("checksum", sa.Text),
        sa.Column("event_id", sa.BigInteger),
        sa.Column("error_kind", sa.String(12), nullable=False),
        sa.Column("error_text", sa.Text, nullable=False),
    )
    op.create_index("ingestion_job_slot", "ingestion_job", ["slot"], unique=True)
    op.create_index("ingestion_job_key", "ingestion_job", ["request_key"], unique=True)
    op.create_index(
        "ingestion_job_open", "ingestion_job", ["asset", "place"], sqlite_where=OPEN_ONLY, postgresql_where=OPEN_ONLY
    )
    op.create_index(
        "ingestion_job_identity", "ingestion_job", ["identity"], sqlite_where=OPEN_ONLY, postgresql_where=OPEN_ONLY
    )
    op.create_index("ingestion_job_target", "ingestion_job", ["target", "identity"])
    op.create_index("ingestion_job_state", "ingestion_job", ["state", "id"])
    op.create_index("ingestion_change_job", "ingestion_change", ["job", "id"])
    op.bulk_insert(
        sa.table("ingestion_turn", sa.column("id"), sa.column("fence"), sa.column("logged"), sa.column("logging")),
        [{"id": 1, "fence": 0, "logged": 0, "logging": 0}],
    )
