"""Alembic's entry point: runs migrations on the connection that `Database.migrate` passes."""

from __future__ import annotations

from alembic import context

from replicator.service.schema import REVISIONS, metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True, version_table=REVISIONS)
with context.begin_transaction():
    context.run_migrations()
