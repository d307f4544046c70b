"""Migrations of the service's store, in order; alembic runs them."""
