"""Purge: rows of people erased from tables, everywhere, with a certificate (Gobblin compliance)."""
