"""Expiry: deletes retained files that are no longer required."""
