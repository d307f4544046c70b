"""Rewriting a file without the rows of some ids, format by format. Runs in tasks."""
