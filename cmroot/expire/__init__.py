"""Expiry: deletes retained files that nothing needs."""
