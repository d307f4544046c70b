"""The library in somebody else's Spark: it works there, stops only what it started, and sets no environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from spark_cluster import bare_python

import replicator
from replicator.metastore.embedded.distributions import pyspark_jars
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment

SCRIPT = Path(__file__).parents[1] / "support/notebook.py"
SUBMIT = pyspark_jars().parent / "bin" / "spark-submit"


@pytest.mark.parametrize(
    ("how", "launcher"),
    [
        ("given", [sys.executable]),
        pytest.param(
            *("found", [str(SUBMIT), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]),
            marks=pytest.mark.long,
        ),
        ("own", [sys.executable]),
    ],
)
def test_a_library_call_leaves_the_callers_spark_at_work(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, how: str, launcher: list[str]
) -> None:
    environment = {**os.environ, **spark_environment(find_java(os.environ)), "SPARK_LOCAL_IP": "127.0.0.1"}
    if how == "own":  # a Java on the path is enough
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [
            *launcher,
            str(SCRIPT),
            source_metastore.uri,
            target_metastore.uri,
            str(source_metastore.warehouse),
            str(tmp_path / "cmroot"),
            how,
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "well", done.stderr[-5000:]


@pytest.mark.long
def test_a_session_of_spark_connect_is_refused() -> None:
    """Its client needs pandas and grpc, which the tests' Python lacks."""
    try:
        python = bare_python("pandas<3", "grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no Python with Spark Connect can be made here: {error}")
    above = f"{Path(replicator.__file__).parents[1]}:{sysconfig.get_path('purelib')}"
    environment = {**os.environ, **spark_environment(find_java(os.environ)), "PYTHONPATH": above}
    script = SCRIPT.with_name("remote_session.py")
    done = subprocess.run([python, script], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "no SparkContext in SparkSession" in done.stdout and "Spark Connect" in done.stdout
