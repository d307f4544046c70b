"""Alembic's door: runs migrations on the connection that `store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from replicator.lifecycle.housekeeping.store import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
