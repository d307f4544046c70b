"""The capture: events and a scan of files become the captured log and its manifest."""
