"""Notices: who is told what ingestion did, at least once."""
