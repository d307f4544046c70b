"""Retention: removal of expired dataset versions by a config store (Gobblin retention)."""
