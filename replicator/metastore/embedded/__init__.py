"""An embedded Hive metastore: its jars, its database, its process."""
