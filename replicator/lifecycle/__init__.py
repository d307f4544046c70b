"""Lifecycle: deletes data by rules: unreferenced directories, dataset versions past their retention, rows by id.

Imports `replay`, `captures`, `core`, `metastore` and `cmroot`. Begin with `removal/job.py`, the template of all three
jobs; then one of `housekeeping/`, `retention/` and `purge/`.
"""
