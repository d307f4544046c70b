"""The metastore gateway: a thrift proxy that stores files in `$cmroot` before it lets a drop through."""
