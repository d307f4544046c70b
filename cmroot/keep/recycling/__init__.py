"""Entries: files that were moved into a root, and are not filed yet."""
