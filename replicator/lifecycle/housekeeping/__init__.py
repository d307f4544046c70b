"""Housekeeping: deletes unreferenced data and expired tables, by Beekeeper's table properties."""
