"""Scans: changes that left no event, looked for in all tables or in turns."""
