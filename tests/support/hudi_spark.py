"""Hudi's own implementation, in a Spark of its own: `HudiSpark(uri, warehouse)("select ...")` returns the rows.

Hudi has no build for the newest Spark: an environment with an older one is made once, in the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from iceberg_spark import IcebergSpark, answer, python_with_product

SPARK = "pyspark==3.5.8"
BUNDLES = {
    "1.2.0": "cc79fba00822f3a6c3a860df99375c2e3d4a034d037dbf4213a4966a706a7676",
    "0.15.0": "aab6ecdb5c65fcd20406b980b31ccec294fae95693de947d5778f0b3fb4e302a",
}
"""The releases that write table version 9, and 6 (also 8, by 1.2.0 on request)."""


def environment() -> Path:
    """The directory with the environment, made when it is missing."""
    from replicator.metastore.java import cache_directory, locked

    home = cache_directory(os.environ) / "hudi"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        if not (home / "made").exists():
            venv.create(home / "spark", with_pip=True, clear=True)
            subprocess.run([home / "spark/bin/pip", "install", "--quiet", SPARK], check=True)
            (home / "made").touch()
    return home


def jar_of(home: Path, release: str) -> Path:
    """The bundle of a release, fetched when it is missing."""
    from replicator.metastore.embedded.distributions import Artifact, fetch
    from replicator.metastore.java import find_java, locked

    bundle = Artifact(f"org.apache.hudi:hudi-spark3.5-bundle_2.12:{release}", BUNDLES[release])
    with locked(home):
        fetch([bundle], home, find_java(os.environ), os.environ, "this test needs it")
    return home / bundle.file_name


def product_python() -> Path:
    """The environment's Python, with the product's dependencies."""
    return python_with_product(environment(), SPARK)


def product_settings() -> list[str]:
    """Settings of a product's Spark with Hudi."""
    own = [f"{key}={value}" for key, value in SETTINGS.items() if key != "spark.kryo.registrator"]
    return [f"spark.jars={jar_of(environment(), '1.2.0')}", *own]


SETTINGS = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}


class HudiSpark(IcebergSpark):
    """Spark with a release of Hudi against one metastore, as its own catalog."""

    program = __file__

    def __init__(self, uri: str, warehouse: Path, release: str = "1.2.0") -> None:
        self._release = release
        super().__init__(uri, warehouse)

    def environment(self) -> Path:
        return environment()

    def jars(self, home: Path) -> list[Path]:
        return [jar_of(home, self._release)]


def serve(uri: str, warehouse: str, jars: str) -> None:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": jars,
        **SETTINGS,
        "spark.sql.warehouse.dir": warehouse,
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.hadoop.hoodie.metadata.enable": "true",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]").enableHiveSupport()
    answer(builder.config(map=settings).getOrCreate())


if __name__ == "__main__":
    serve(*sys.argv[1:])
