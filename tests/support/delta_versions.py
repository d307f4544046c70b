"""Delta tables with many versions, of known ages, and `retention run` on them, in a process of a Spark with Delta,
which may be killed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import gobblin_examples as examples
import pyarrow as pa
from command_line import Answer
from delta_spark import DeltaSpark, delta_settings
from iceberg_spark import with_product
from lab import Lab
from plain_tables import PlainDatabase

from replicator.core.model import EXTERNAL
from replicator.metastore.java import find_java

ROOT = Path(__file__).parents[2]
DAY = 86_400
POLICY = "gobblin.data.management.policy."


def newest(keeps: int) -> list[str]:
    """Options of a policy that keeps the newest versions."""
    prefix = "gobblin.retention.selection"
    given = {f"{prefix}.policy.class": f"{POLICY}NewestKSelectionPolicy"}
    given[f"{prefix}.newestK.versionsNotSelected"] = str(keeps)
    return settings(given)


def settings(given: dict[str, str]) -> list[str]:
    return [part for key, value in given.items() for part in ("--set", f"{key}={value}")]


def arguments(lab: Lab, *tables: str, db: PlainDatabase | None = None) -> list[str]:
    job = lab.here / "job.conf"
    listed = (db or lab.source).name + (f".{'|'.join(tables)}" if tables else "")
    job.write_text(f'{examples.HIVE}hive.dataset.whitelist = "{listed}"\n')
    return ["retention", "run", str(job), "--metastore", lab.source_uri, "--cmroot", str(lab.cmroot)]


def retained(
    given: Iterable[str],
    *more: str,
    killed: tuple[str, str] | None = None,
    python: Path | None = None,
    spark: Iterable[str] | None = None,
) -> Answer:
    """The command in a Spark with Delta, or in that of a `python` with these settings. killed: the step and the moment,
    see `killed_retention`."""
    python = python or with_product()[0]
    own = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    own |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(find_java(os.environ).home)}
    session = ["--master", "local[1]", "--spark-conf", "spark.sql.shuffle.partitions=1"]
    session += [part for each in (spark or delta_settings()) for part in ("--spark-conf", each)]
    program = [str(ROOT / "tests/support/killed_retention.py"), *killed] if killed else ["-m", "replicator"]
    called = [str(python), *program, *given, *more, *session, "--json"]
    done = subprocess.run(called, capture_output=True, text=True, env=own)
    if killed and killed[1] != "meets":
        assert done.returncode == -9, done
        return Answer(-9, {})
    assert done.stdout, done.stderr[-3000:]
    return Answer(done.returncode, json.loads(done.stdout))


def make(spark: DeltaSpark, db: PlainDatabase, name: str, more: str = "", last: int = 13, **properties: str) -> Path:
    """A table with the versions 0 to 13, or to `last`, one for each day until today; some remove files. Returns
    its location."""
    table, place = f"{db.name}.{name}", db.home / name
    given = {"delta.deletedFileRetentionDuration": "interval 0 hours", **properties}
    text = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    columns = f"(id bigint, note string) using delta {more} location 'file://{place}'"

    def added(first: int) -> str:
        row = "id, concat('of ', cast(id % 3 as string), '%/=é')"
        return f"insert into {table} select /*+ coalesce(1) */ {row} from range({first}, {first + 50})"

    merged = "when matched then update set note = 'merged' when not matched then insert (id, note) values (s.id, 'new')"
    statements = (
        f"create table {table} {columns} tblproperties ({text})",
        added(0),
        added(50),
        f"delete from {table} where id < 7",
        f"merge into {table} t using (select id from range(40, 130)) s on t.id = s.id {merged}",
        f"update {table} set note = 'updated' where id % 10 = 3",
        f"delete from {table} where id >= 120",
        added(200),
        added(300),
        f"update {table} set note = 'late' where id = 301",
        added(400),
        f"delete from {table} where id % 2 = 0",
        added(500),
        f"delete from {table} where id = 501",
    )
    for statement in statements[: last + 1]:
        spark(statement)
    age(place)
    return place


def age(place: Path, newest: int = 1) -> None:
    """Gives each commit the time of a day of its own, the last one that of so many days ago."""
    last = max(commits(place))
    for version in commits(place):
        then = time.time() - (last - version + newest) * DAY
        os.utime(place / f"_delta_log/{version:020}.json", (then, then))


def commits(place: Path) -> list[int]:
    return sorted(int(path.stem) for path in (place / "_delta_log").glob("*.json") if path.stem.isdigit())


def rows(place: Path, version: int) -> list[tuple[Any, ...]]:
    """What delta-rs reads of a version."""
    found = deltalake.DeltaTable(str(place), version=version).to_pyarrow_table()
    return sorted(zip(*(found[name].to_pylist() for name in ("id", "note")), strict=True))


def named(place: Path, versions: Iterable[int]) -> set[str]:
    """The data files that delta-rs names for versions."""
    uris = (each for version in versions for each in deltalake.DeltaTable(str(place), version=version).file_uris())
    return {os.path.relpath(each.removeprefix("file://"), place) for each in uris}


def on_disk(place: Path) -> set[str]:
    """All files of a table that are not of its log, without Hadoop's checksums."""
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and path.suffix != ".crc"}
    return {each for each in found if not each.startswith("_delta_log/")}


def written(db: PlainDatabase, name: str, count: int = 6, **properties: str) -> Path:
    """A table that delta-rs wrote, with that many versions, each of which replaces all rows."""
    place = db.home / name
    db.table(name, kind=EXTERNAL)
    db.alter(name, **{"spark.sql.sources.provider": "delta"})
    for number in range(count):
        data = pa.table({"id": pa.array([number], pa.int64()), "note": ["one"]})
        deltalake.write_deltalake(str(place), data, mode="overwrite")
    first = place / f"_delta_log/{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] |= properties
    first.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    age(place)
    return place
