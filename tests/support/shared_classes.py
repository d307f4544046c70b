"""Spark's classes as Java has read them once: a Spark of a test starts in half the time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import MutableMapping
from pathlib import Path

from replicator.errors import Error
from replicator.metastore.embedded import running as embedded
from replicator.metastore.java import cache_directory, find_java, locked, spark_environment

FORMAT = 1  # of the work that is done once: other work, other classes

_WORK = """
import sys
from pyspark.sql import SparkSession
place, uri = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "hive",
    "spark.hadoop.hive.metastore.uris": uri,
    "spark.sql.warehouse.dir": place + "/warehouse",
}
builder = SparkSession.builder.master("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
session.sparkContext.parallelize([1, 2], 2).map(lambda number: number + 1).collect()
session.sql("CREATE TABLE p (id BIGINT, name STRING) PARTITIONED BY (k BIGINT) STORED AS PARQUET")
session.sql("INSERT INTO p PARTITION (k = 1) SELECT id, cast(id AS STRING) FROM range(100)")
session.sql("CREATE TABLE o STORED AS ORC AS SELECT * FROM p WHERE id > 10")
session.sql("SELECT p.id, count(*) FROM p JOIN o USING (id) GROUP BY p.id ORDER BY p.id").collect()
session.table("p").write.json(place + "/json")
session.stop()
"""


def use_shared_classes(environment: MutableMapping[str, str]) -> None:
    """Let each Spark that is started in this environment take its classes from this machine's archive; makes it the
    first time. Where Java can make none, nothing changes."""
    try:
        java = find_java(environment)
    except Error:
        return
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    path = "\n".join(map(str, sorted(jars.iterdir())))
    options = environment.get("JAVA_TOOL_OPTIONS", "")
    key = hashlib.blake2s(f"{path}\n{java.home}\n{options}".encode(), digest_size=8).hexdigest()
    name = f"spark-{pyspark.__version__}-java-{java.version}-{FORMAT}-{key}.jsa"
    kept = cache_directory(environment) / "classes" / name
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with locked(kept.parent):
            if not kept.exists():
                try:
                    _make(kept, {**environment, **spark_environment(java)})
                except (OSError, subprocess.SubprocessError) as error:
                    warnings.warn(f"Sparks of tests start slowly: {error}", stacklevel=2)
    if kept.exists():
        given = environment.get("SPARK_SUBMIT_OPTS", "")
        environment["SPARK_SUBMIT_OPTS"] = f"{given} -XX:SharedArchiveFile={kept} -Xshare:auto -Xlog:disable".strip()


def _make(kept: Path, environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".new.") as aside:
        metastore, archive = Path(aside) / "metastore", Path(aside) / "classes.jsa"
        options = f"-XX:ArchiveClassesAtExit={archive} -Djava.io.tmpdir={aside} -Xlog:disable"
        metastore.mkdir()
        running = embedded.start(metastore, env=os.environ)
        try:
            subprocess.run(
                [sys.executable, "-c", _WORK, aside, running.uri],
                env={**environment, "SPARK_SUBMIT_OPTS": options},
                cwd=aside,
                capture_output=True,
                check=True,
                timeout=300,
            )
        finally:
            embedded.stop(metastore)
        if archive.exists():
            os.replace(archive, kept)
