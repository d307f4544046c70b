"""A Hive metastore started here: its jars, its database, its process."""
