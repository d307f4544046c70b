"""What Spark leaves in the temporary directory: nothing that its Hive client made, whoever stops it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import CEILING, eventually

from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment

ENGINE = """
import sys
from replicator.core.spark import SparkEngine, hive_settings
engine = SparkEngine("local[1]")
session = engine.session(hive_settings(sys.argv[1], sys.argv[2]))
session.sql("SHOW DATABASES").collect()
print(session.sparkContext.getConf().get("spark.ui.showConsoleProgress"))
"""
STORY = """
import sys
from pathlib import Path
from replicator.commands.demos.spark_sql import SparkSql
from replicator.commands.demos.story import own_environment
with SparkSql(sys.argv[1], sys.argv[2], environment=own_environment(Path.cwd())) as spark:
    assert spark.run("SHOW DATABASES")
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """With a short name, as sockets in it require."""
    with tempfile.TemporaryDirectory(prefix="t") as name:
        yield Path(name)


@pytest.mark.parametrize(
    "program", [ENGINE + "engine.stop()", ENGINE, STORY], ids=["stopped", "ends without stop", "of the demo"]
)
def test_nothing_of_a_hive_session_remains(
    source_metastore: Running, tmp_path: Path, temporary: Path, program: str
) -> None:
    env = {**os.environ, **spark_environment(find_java(os.environ))}
    env |= {"TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
    arguments = [sys.executable, "-c", program, source_metastore.uri, str(tmp_path / "warehouse")]
    done = subprocess.run(arguments, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=CEILING)
    assert done.returncode == 0, done.stderr
    eventually(lambda: left(temporary) == [], lambda: left(temporary))
    assert not list(tmp_path.rglob("*_resources"))
    if program is STORY:
        assert not list(temporary.iterdir()), "all of it is below the demo's directory"
    else:
        assert "Setting" not in done.stderr and done.stdout.split() == ["false"], "no lines and bars of Spark"


def left(temporary: Path) -> list[str]:
    """Spark removes its own directories when its process ends."""
    return [each.name for each in temporary.iterdir() if each.name.startswith("replicator-") or "_res" in each.name]
