"""The demo: replication between two embedded metastores."""
