"""Alembic's entry point: runs migrations on the connection that `Database.migrate` passes."""

from __future__ import annotations

from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], transactional_ddl=True, version_table=given["revisions"])
with context.begin_transaction():
    context.run_migrations()
