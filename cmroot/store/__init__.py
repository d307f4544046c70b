"""Places and stores: local disks and those behind fsspec, by one small set of operations."""
