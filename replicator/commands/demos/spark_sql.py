"""A Spark SQL application on one metastore, as users run it: in a process of its own, controlled by lines of JSON.

`SparkSql(uri, warehouse).run("INSERT ...")` returns the rows. Run as a program it reads JSON strings (SQL) from
standard input and answers each with one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

ENDS = 60.0  # seconds in which an application ends


class SparkSql:
    """Spark SQL against a metastore. Slow to start (about 10 s): share one a module."""

    def __init__(
        self,
        uri: str,
        warehouse: str | Path,
        settings: dict[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: of its process; None: that of this one."""
        self.uri = uri
        place = Path(warehouse).absolute()  # Spark is at home above it
        arguments = [sys.executable, "-m", __name__, uri, str(place), json.dumps(settings or {})]
        home = place.parent
        self._log = home / "spark.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=home,
                env=environment,
            )

    def run(self, *statements: str) -> list[list[Any]]:
        """Runs statements in order; the rows of the last. Raises RuntimeError with Spark's message."""
        rows: list[list[Any]] = []
        for statement in statements:
            assert self._process.stdin and self._process.stdout
            self._process.stdin.write(json.dumps(statement) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"Spark ended: {self._log.read_text(errors='replace')[-3000:]}")
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(f"{statement}: {answer['error']}")
            rows = answer["rows"]
        return rows

    def close(self) -> None:
        """Ends its process, which is killed if it does not end in time."""
        try:
            self._process.communicate("", timeout=ENDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> SparkSql:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(uri: str, warehouse: str, settings: dict[str, str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark's output is sent to standard error

    from cmroot.store.place import scratch
    from replicator.core.spark import RESOURCES, resources_in
    from replicator.metastore.java import find_java, spark_environment

    os.environ.update(spark_environment(find_java(os.environ)))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").enableHiveSupport()
    defaults = {
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.warehouse.dir": warehouse,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
    }
    for key, value in (defaults | settings).items():
        builder = builder.config(key, value)
    with scratch("demo") as here:
        session = builder.config(RESOURCES, resources_in(here)).getOrCreate()
        answer_lines(session, answers)
        session.stop()


def answer_lines(session: Any, answers: TextIO) -> None:
    for line in sys.stdin:
        try:
            rows = [list(row) for row in session.sql(json.loads(line)).collect()]
            answer = {"rows": json.loads(json.dumps(rows, default=str))}
        except Exception as error:
            answer = {"error": str(error)[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
