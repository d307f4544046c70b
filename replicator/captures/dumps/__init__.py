"""Dumps: streams of records with file entries; written, read, signed and pinned."""
