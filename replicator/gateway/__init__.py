"""The metastore gateway: a thrift proxy that lets no drop delete what `$cmroot` does not have."""
