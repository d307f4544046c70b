"""The tests' Spark is the demo's: a process of its own for each metastore."""

from replicator.commands.demos.spark_sql import SparkSql

__all__ = ["SparkSql"]
