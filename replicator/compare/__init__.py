"""Comparing two sides, and the repair of differences."""
