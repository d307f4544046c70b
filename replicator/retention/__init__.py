"""Retention by policy: which versions of a dataset go, as config store and job file say: docs/retention.md."""
