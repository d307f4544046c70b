"""Ingestion: loads tables of other databases and files into the warehouse on request, and publishes them.

Imports `core`, `metastore` and `cmroot`. Begin with `landing/`, the steps of a job; `reading/` and `files/` are the
sources, `adapters/` the ways by which requests arrive, `notices.py` the notifications.
"""
