"""Metrics of the service for Prometheus: runs, lag, sizes of roots, disks."""
