"""Backups: directories that purges and restores have swapped out, to restore or to delete."""
