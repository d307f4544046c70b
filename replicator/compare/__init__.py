"""Comparison of two sides, and the repair of differences."""
