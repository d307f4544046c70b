"""The metastore gateway: a thrift proxy that stores files in `$cmroot` before it forwards a drop."""
