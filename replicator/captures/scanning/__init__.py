"""Scans: finds changes that left no event, in all tables or in turns."""
