"""Changes of the store's tables, in order; alembic runs them."""
