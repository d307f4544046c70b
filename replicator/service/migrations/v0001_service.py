"""The initial tables: the lease, jobs, runs, tokens, alerts, actions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "service_lease",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
    )
    op.create_table(
        "service_job",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("schedule", sa.Text, nullable=False),
        sa.Column("due", sa.Float(53), nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("paused_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_table(
        "service_run",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("missed", sa.Integer, nullable=False),
        sa.Column("due", sa.Float(53), nullable=False),
        sa.Column("queued", sa.Float(53), nullable=False),
        sa.Column("begun", sa.Float(53)),
        sa.Column("ended", sa.Float(53)),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("active", sa.Text),
        sa.Column("cancelled_by", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "service_token",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("policies", sa.Text, nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
    )
    op.create_table(
        "service_alert",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("since", sa.Float(53), nullable=False),
        sa.Column("over", sa.Float(53)),
        sa.Column("told", sa.Text, nullable=False),
    )
    op.create_table(
        "service_action",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("action", sa.String(30), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("request_key", sa.String(200)),
        sa.Column("answer", sa.Text, nullable=False),
    )
    op.create_index("service_action_request", "service_action", ["who", "request_key"], unique=True)
    op.create_index("service_run_active", "service_run", ["active"], unique=True)
    op.create_index("service_run_job", "service_run", ["job", "id"])
    op.create_index("service_run_ended", "service_run", ["ended"])
    op.create_index("service_token_digest", "service_token", ["digest"], unique=True)
    op.bulk_insert(
        sa.table("service_lease", sa.column("id"), sa.column("holder"), sa.column("epoch"), sa.column("expires")),
        [{"id": 1, "holder": "", "epoch": 0, "expires": 0.0}],
    )
