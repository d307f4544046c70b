"""Directories that purges and restores have swapped out: found, restored, and removed in time."""
