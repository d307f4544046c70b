"""Retention: deletes expired dataset versions by a config store (Gobblin retention)."""
