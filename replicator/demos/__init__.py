"""The demo: a story on two embedded metastores."""
