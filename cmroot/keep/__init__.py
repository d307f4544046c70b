"""Retention of bytes: stores them in the root before their source removes them, and restores them."""
