"""Keeping: how bytes come into the root before their source removes them, and back out of it."""
