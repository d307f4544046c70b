"""Purges of tables with a log or tree of their own, by the command line in a Spark with their format; and the bytes of
all files below a table, read without it."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import fastavro
import pyarrow.parquet as pq
from command_line import Answer
from iceberg_spark import with_product
from lab import Lab
from purges import Warehouse

from cmroot.root import open_existing
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.certify import Replica
from replicator.lifecycle.purge.options import PurgeOptions
from replicator.metastore.java import find_java

ROOT = Path(__file__).parents[2]
GONE = ("person-0005", "person-0105")
DESCRIPTOR = '{"privacy": {"column": "who"}}'
EVERYONE = {f"person-{each:04}" for each in range(200)}


def make_ids(lab: Lab) -> None:
    """The table of ids."""
    lab.source.table("gone", {"ids": "".join(f"1\x01{each}\n" for each in GONE)})


def certified_by(lab: Lab, warehouse: Warehouse, db: str, **options: bool) -> Certificate:
    """The certificate about a database of the lab's policy and its replica."""
    policy = lab.policy
    replica = Replica(policy.name, lab.target.metastore, policy.target_cmroot, policy.target_name, lambda *_: True)
    asked = PurgeOptions(f"{lab.name}.gone:b", db, "privacy.column")
    return warehouse.certify(open_existing(str(lab.cmroot)), asked, replica, **options)


def iceberg_settings() -> list[str]:
    """Of a Spark with Iceberg."""
    return [f"spark.jars={with_product()[1]}"]


def purge(
    lab: Lab,
    *more: str,
    settings: Sequence[str] = (),
    killed: tuple[str, str] | None = None,
    met: tuple[str, str] | None = None,
    db: str = "",
    python: Path | None = None,
) -> Answer:
    """`purge run` in a process of the Spark that formats have builds for, or of another one's `python`, with these
    settings. killed: the step and the moment where it dies. met: the step before which another writer adds a row with
    this id."""
    python = python or with_product()[0]
    given = ["--metastore", lab.source_uri, "--cmroot", str(lab.cmroot), "--ids", f"{lab.name}.gone:b"]
    given += ["--table-whitelist", db or lab.name, "--field-path", "privacy.column"]
    given += ["--master", "local[1]", "--spark-conf", "spark.sql.shuffle.partitions=1"]
    given += [part for each in settings for part in ("--spark-conf", each)]
    own = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    own |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(find_java(os.environ).home)}
    steps = killed or met
    program = [str(ROOT / "tests/support/killed_purge.py"), *steps] if steps else ["-m", "replicator"]
    called = [str(python), *program, "purge", "run", *given, *more, "--json"]
    done = subprocess.run(called, capture_output=True, text=True, env=own)
    if killed:
        assert done.returncode == -9, done
        return Answer(-9, {})
    assert done.stdout, done.stderr[-3000:]
    return Answer(done.returncode, json.loads(done.stdout))


def texts(place: Path) -> dict[Path, bytes]:
    """The contents of the files below a place: of Parquet and Avro the values, of Puffin and JSON the bytes."""
    found = {}
    for path in (each for each in place.rglob("*") if each.is_file()):
        data = path.read_bytes()
        if data[:4] == b"PAR1":
            about = pq.ParquetFile(path).metadata
            statistics = repr([about.row_group(each).to_dict() for each in range(about.num_row_groups)]).encode()
            found[path] = data + repr(pq.read_table(path).to_pydict()).encode() + statistics
        elif data[:4] == b"Obj\x01":
            found[path] = data + repr(list(fastavro.reader(io.BytesIO(data)))).encode()
        else:
            found[path] = data + (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else b"")
    return found


def holding(place: Path) -> list[str]:
    """Files with the value of an erased row."""
    wanted = [text.encode() for each in GONE for text in (each, each.replace("person", "about"))]
    return [str(path) for path, data in texts(place).items() if any(each in data for each in wanted)]
