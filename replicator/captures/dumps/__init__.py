"""Dumps: streams of records with file entries; selects, writes, reads, signs and pins them."""
