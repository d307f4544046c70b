"""Migrations of the ingestion store, in order; alembic runs them."""
