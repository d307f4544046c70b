"""Locations and stores: one small set of operations for local disks and fsspec filesystems."""
