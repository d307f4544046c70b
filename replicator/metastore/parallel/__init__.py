"""Parallel calls to a metastore: their best number, their limits, and reading side by side."""
