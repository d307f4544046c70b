"""Expiry: deletes kept bytes that nothing needs."""
