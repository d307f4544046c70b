"""Erasing rows of people from tables: which tables, which rows, rewriting, swapping, backups, and the proof."""
