"""Configuration of metastore connections: addresses, identity, transport, secrets."""
