"""Capture: turns events and a scan of files into the captured log and its manifest."""
