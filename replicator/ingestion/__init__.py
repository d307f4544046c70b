"""Ingestion: loads tables of other databases and files into the warehouse on request, and publishes them.

Imports `policies`, `lifecycle`, `captures`, `core`, `metastore` and `cmroot`. Begin with `landing/landing_steps.py`,
the steps of a job; `reading/` reads databases, `drop_directory.py` files, `intake.py` requests; `notices.py` reports.
"""
