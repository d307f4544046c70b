"""Retention: versions of datasets that go, as a config store says (Gobblin retention)."""
