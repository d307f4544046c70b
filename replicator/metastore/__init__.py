"""The metastore protocol: client, connection, retries, differences between servers."""
