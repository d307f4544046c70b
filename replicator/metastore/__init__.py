"""The metastore protocol: client, connection, retries, differences between servers.

Imports `core` and `cmroot`. Begin with `client.py` (the calls that other rooms make), then `thrift.py`; `events/`
decodes the notification log into changes, `embedded/` runs a metastore of its own.
"""
