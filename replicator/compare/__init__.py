"""Comparison of two sides, and the repair of differences.

Imports `replay`, `captures`, `core`, `metastore` and `cmroot`. Begin with `verify.py`, then `repair.py`.
"""
