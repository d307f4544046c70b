"""Alembic's entry point, for the migrations of each store. A store has its own in `migrations`."""
