"""Capture: turns events and a scan of files into the captured log and its manifest.

Imports `core`, `metastore` and `cmroot`. Begin with `capture.py`, which reads as a table of contents; `gateways/`
keeps files before a drop, `dumps/` selects records and writes a dump. Events are decoded in `metastore`.
"""
