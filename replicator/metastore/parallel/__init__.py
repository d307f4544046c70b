"""Parallel calls to a metastore: how many bring something, how many are allowed, and reading side by side."""
