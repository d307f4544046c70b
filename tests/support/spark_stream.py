"""A Spark structured streaming query with a file sink: `python spark_stream.py INPUT SINK CHECKPOINT`.

Writes each JSON file of INPUT that it has not read yet, one a batch, as Parquet into the directory SINK, whose log it
compacts at each third batch; then ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def stream(rows: Path, sink: Path, checkpoint: Path) -> None:
    """Runs the query to the end of its input."""
    arguments = [sys.executable, __file__, str(rows), str(sink), str(checkpoint)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=checkpoint.parent, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def run(rows: str, sink: str, checkpoint: str) -> None:
    from replicator.metastore.java import find_java, spark_environment

    os.environ.update(spark_environment(find_java(os.environ)))
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.streaming.fileSink.log.compactInterval": "3",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[1]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    source = session.readStream.schema("id INT").option("maxFilesPerTrigger", 1).json(rows)
    sinking = source.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    sinking.trigger(availableNow=True).start(sink).awaitTermination()
    session.stop()


if __name__ == "__main__":
    run(*sys.argv[1:])
