"""Migrations of the item store, in order; alembic runs them."""
