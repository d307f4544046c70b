"""Transports of metastore connections: TLS, SASL, HTTP and frames below the thrift protocol."""
