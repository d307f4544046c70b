"""Conversion of metastore objects from and to thrift, and from the JSON of events."""
