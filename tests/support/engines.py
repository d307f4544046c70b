"""Threads instead of Spark, for tests of what is done and not where; and Spark for a metastore of Hive 4."""

from __future__ import annotations

import os
from typing import Any

from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine
from replicator.metastore.embedded import distributions
from replicator.metastore.java import find_java


def local_engine() -> AutoEngine:
    return AutoEngine(LocalEngine(2), SparkEngine("local[2]"), choice="local")


def local_runtime(**more: Any) -> Runtime:
    """more: fields of the runtime."""
    return Runtime(local_engine(), **more)


def client_of_hive_4() -> list[str]:
    """Options by which Spark speaks to a metastore of Hive 4, whose jars are those of an embedded one."""
    distribution = distributions.distribution(distributions.hive("4.0"), find_java(os.environ, 21), os.environ)
    jars = [jar for jar in distribution.rglob("*.jar") if not jar.name.startswith(("hadoop-", "log4j", "slf4j"))]
    settings = {
        "spark.sql.hive.metastore.version": "4.0.1",
        "spark.sql.hive.metastore.jars": "path",
        "spark.sql.hive.metastore.jars.path": ",".join(f"file://{jar}" for jar in jars),
        "spark.driver.extraClassPath": str(next(distribution.glob("hadoop-hdfs-*.jar"))),
    }
    options = [part for key, value in settings.items() for part in ("--spark-conf", f"{key}={value}")]
    return ["--master", "local[1]", *options]
