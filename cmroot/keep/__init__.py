"""Keeping: stores bytes in the root before their source removes them, and restores them."""
