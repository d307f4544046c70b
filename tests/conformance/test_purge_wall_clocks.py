"""Times of rows that stay mean what they meant, wherever a purge runs and whoever reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.metastore.embedded.running import Running

SCRIPT = Path(__file__).parents[1] / "support/purge_in_a_zone.py"
SKIPPED = "2026-03-08 02:30:00"
"""No clock of Los Angeles has ever said so."""


def in_los_angeles(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment["TZ"] = "America/Los_Angeles"
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=cwd, timeout=280
    )


@pytest.mark.long
def test_every_reader_sees_the_same_times(source_metastore: Running, tmp_path: Path) -> None:
    places = (source_metastore.uri, str(source_metastore.warehouse), str(tmp_path))
    done = in_los_angeles(str(SCRIPT), *places, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[done.stderr.find("Traceback") :][:4000]


def test_hours_that_a_zone_skips_stay_where_they_are(warehouse: Warehouse, tmp_path: Path) -> None:
    """RCFile and ORC go through Spark, which takes them for times of its Java's zone. Texts are as the files have
    them."""
    formats = {"SEQUENCEFILE": "2026-03-08 02:30:00.123456", "RCFILE": SKIPPED, "ORC": "9999-12-31 00:00:00"}
    serde = {"RCFILE": "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.columnar.ColumnarSerDe'"}
    warehouse.sql("CREATE DATABASE w")

    def create(name: str, table: str, type_: str, location: str) -> None:
        warehouse.sql(
            f"CREATE EXTERNAL TABLE w.{table} (id BIGINT, t {type_}) {serde.get(name, '')} STORED AS {name}"
            f" LOCATION '{location}' TBLPROPERTIES ({DESCRIPTOR})"
        )

    for name, time in formats.items():
        type_ = "TIMESTAMP" if name == "ORC" else "STRING"
        create(name, "written", type_, f"file:{tmp_path}/{name}")
        warehouse.sql(
            f"INSERT INTO w.written SELECT id, {type_}(if(id % 2 = 0, '{time}', '{SKIPPED}')) FROM range(0, 200, 1, 1)",
            "DROP TABLE w.written",
        )
        create(name, name, "TIMESTAMP", f"file:{tmp_path}/{name}")

    done = in_los_angeles(
        "-m",
        "replicator.cli.main",
        "purge",
        "run",
        "--metastore",
        warehouse.running.uri,
        "--cmroot",
        str(tmp_path / "cm"),
        "--ids",
        warehouse.ids,
        "--table-whitelist",
        "w",
        "--field-path",
        "privacy.column",
        cwd=tmp_path,
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    warehouse.session.conf.set("spark.sql.session.timeZone", "UTC")
    for name, time in formats.items():
        location = warehouse.metastore.table("w", name.lower()).location
        assert location and "/_purge-" not in location
        create(name, f"{name}_now", "TIMESTAMP" if name == "ORC" else "STRING", location)
        rows = warehouse.sql(f"SELECT int(id), string(t) FROM w.{name}_now")
        wanted = [(id_, time if id_ % 2 == 0 else SKIPPED) for id_ in range(200) if id_ >= 100 or id_ % 10]
        assert sorted((id_, text.removesuffix(".0")) for id_, text in rows) == wanted, name
