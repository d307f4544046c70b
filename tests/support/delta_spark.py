"""Delta's own implementation, in a Spark of its own: `DeltaSpark(uri, warehouse)("select ...")` returns the rows.

The environment is that of `iceberg_spark`, with Delta's jars in a directory of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from iceberg_spark import IcebergSpark, answer, environment

DELTA = (
    ("io.delta:delta-spark_4.1_2.13:4.1.0", "9b05d7a82196ee1f1073733a45a2faae59161e52b86ae918fe6742fad6eaf036"),
    ("io.delta:delta-storage:4.1.0", "6d0520ffcc35b582369f92c23fa24e14a5bb935cf6e31ed7f47c5046ae17cb25"),
)


def jars_of(home: Path) -> list[Path]:
    """Delta's jars, fetched when they are missing. home: the directory of the environment."""
    from replicator.metastore.embedded.distributions import Artifact, fetch
    from replicator.metastore.java import find_java

    artifacts, directory = [Artifact(*each) for each in DELTA], home / "delta"
    fetch(artifacts, directory, find_java(os.environ), os.environ, "this test needs it")
    return [directory / each.file_name for each in artifacts]


def delta_settings() -> list[str]:
    """Settings of a product's Spark with Delta."""
    jars = ",".join(map(str, jars_of(environment())))
    return [f"spark.jars={jars}", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"]


class DeltaSpark(IcebergSpark):
    """Spark with Delta against one metastore, as its own catalog."""

    program = __file__

    def jars(self, home: Path) -> list[Path]:
        return jars_of(home)


def serve(uri: str, warehouse: str, jars: str) -> None:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": warehouse,
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]").enableHiveSupport()
    answer(builder.config(map=settings).getOrCreate())


if __name__ == "__main__":
    serve(*sys.argv[1:])
