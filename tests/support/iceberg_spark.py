"""Iceberg's own implementation, in a Spark of its own: `IcebergSpark(uri, warehouse)("select ...")` returns the rows.

No build of Iceberg exists for the newest Spark: an environment with an older one is made once, in the cache. Run as a
program it reads JSON strings (SQL) from standard input and answers each with one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from types import TracebackType
from typing import Any

SPARK = "pyspark==4.1.1"
JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SHA256 = "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"


def environment() -> Path:
    """The directory with the environment and the jar, made when it is missing."""
    from replicator.metastore.embedded.distributions import Artifact, fetch
    from replicator.metastore.java import cache_directory, find_java, locked

    home = cache_directory(os.environ) / "iceberg"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        fetch([Artifact(JAR, SHA256)], home, find_java(os.environ), os.environ, "this test needs it")
        if not (home / "made").exists():
            venv.create(home / "spark", with_pip=True, clear=True)
            subprocess.run([home / "spark/bin/pip", "install", "--quiet", SPARK], check=True)
            (home / "made").touch()
    return home


def with_product() -> tuple[Path, Path]:
    """Its Python, which has the product's dependencies, too, for commands that change Iceberg tables; and the jar. The
    product itself is that of PYTHONPATH."""
    home = environment()
    (jar,) = home.glob("*.jar")
    return python_with_product(home, SPARK), jar


def python_with_product(home: Path, spark: str) -> Path:
    """The Python of an environment, with the product's dependencies."""
    from replicator.metastore.java import locked

    project = Path(__file__).parents[2]
    wanted = sorted(tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"])
    with locked(home):
        known = home / "dependencies.json"
        if not known.exists() or json.loads(known.read_text()) != wanted:
            subprocess.run([home / "spark/bin/pip", "install", "--quiet", spark, "-e", project], check=True)
            known.write_text(json.dumps(wanted))
    return home / "spark/bin/python"


class IcebergSpark:
    """Spark with Iceberg against one metastore, as the catalog `c`."""

    program = __file__

    def __init__(self, uri: str, warehouse: Path) -> None:
        home = self.environment()
        jars = ",".join(map(str, self.jars(home)))
        own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME")}
        self._process = subprocess.Popen(
            [home / "spark/bin/python", self.program, uri, f"file://{warehouse}", jars],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=own,
        )

    def environment(self) -> Path:
        return environment()

    def jars(self, home: Path) -> list[Path]:
        return list(home.glob("*.jar"))

    def __call__(self, statement: str) -> list[list[str]]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                assert "rows" in answer, (statement, answer)
                return answer["rows"]  # type: ignore[no-any-return]
        raise AssertionError("Spark ended")

    def __enter__(self) -> IcebergSpark:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(uri: str, warehouse: str, jars: str) -> None:
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = {
        "spark.jars": jars,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.c": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.c.type": "hive",
        "spark.sql.catalog.c.uri": uri,
        "spark.sql.catalog.c.warehouse": warehouse,
        "spark.sql.catalog.c.cache-enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    answer(SparkSession.builder.master("local[1]").config(map=settings).getOrCreate())


def answer(spark: Any) -> None:
    """Runs the statements of standard input."""
    for line in sys.stdin:
        try:
            rows = [[str(value) for value in row] for row in spark.sql(json.loads(line)).collect()]
            print(json.dumps({"rows": rows}), flush=True)
        except Exception as error:
            print(json.dumps({"error": str(error)[:1000]}), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
