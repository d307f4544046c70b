"""The address of Spark's driver: loopback only where its executors are certain to be its own threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import CEILING

from replicator.metastore.java import find_java, spark_environment

PROGRAM = """
import sys
from replicator.core.spark import SparkEngine
engine = SparkEngine(sys.argv[1] or None)
print(engine.context.master, engine.context._jvm.System.getenv("SPARK_LOCAL_IP"))
engine.stop()
"""


@pytest.mark.parametrize(
    ("master", "defaults", "address"),
    [("", "spark.master local[1]", "None"), ("local[1]", "spark.master yarn", "127.0.0.1")],
)
def test_a_master_of_the_defaults_file_may_be_elsewhere(
    tmp_path: Path, master: str, defaults: str, address: str
) -> None:
    """SPARK_LOCAL_IP is the address that executors of a cluster would connect to."""
    (tmp_path / "spark-defaults.conf").write_text(f"{defaults}\n")
    env = {**os.environ, **spark_environment(find_java(os.environ)), "SPARK_CONF_DIR": str(tmp_path)}
    env.pop("SPARK_LOCAL_IP", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, master], env=env, capture_output=True, text=True, timeout=CEILING
    )
    assert done.stdout.split() == ["local[1]", address], done.stderr
