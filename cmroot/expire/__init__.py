"""Expiry: kept bytes that nobody needs leave the root."""
