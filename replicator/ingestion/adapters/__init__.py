"""Adapters of ingestion: who sends requests, permitted values, and requests as files and as tables."""
