"""Load: replays a dump on a target.

Imports `captures/dumps` (the reader), `core`, `metastore` and `cmroot`. Begin with `apply/load.py`; `plan/` decides
before anything changes, `places/` resolves locations, `copy/` moves bytes, `restore/` rebuilds a past state.
"""
