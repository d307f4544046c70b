"""Load: replays a dump on a target.

Imports `captures` (dumps), `core`, `metastore` and `cmroot`. Begin with `apply/load.py`, which calls the
rest of `apply/`; `deciding.py` plans before anything changes, `placement.py` resolves locations, `restore/` rebuilds a
past state.
"""
