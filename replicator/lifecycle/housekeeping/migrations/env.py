"""Alembic's entry point: runs migrations on the connection of `store.migrate`."""

from __future__ import annotations

from alembic import context

from replicator.lifecycle.housekeeping.store import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
