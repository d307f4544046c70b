"""Purges of tables with a log or tree of their own, by the command line in a Spark with their format; and the bytes of
all files below a table, read without it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import fastavro
import pyarrow.parquet as pq
from command_line import Answer, command
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
    this id; or `hudi:overlaps` and the place where the delete waits."""
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


def unpacked(data: bytes) -> bytes:
    """The bytes of all streams of gzip in a file, as in blocks of HFiles, and in log files with such blocks."""
    found, at = list[bytes](), data.find(b"\x1f\x8b\x08")
    while at >= 0:
        reader = zlib.decompressobj(31)
        with suppress(zlib.error):
            found.append(reader.decompress(data[at:]))
        at = data.find(b"\x1f\x8b\x08", at + 1)
    return b"".join(found)


def texts(place: Path) -> dict[Path, bytes]:
    """The contents of the files below a place: of Parquet and Avro the values, of others the bytes."""
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
            found[path] = data + unpacked(data)
    return found


def holding(place: Path) -> list[str]:
    """Files with the value of an erased row."""
    wanted = [text.encode() for each in GONE for text in (each, each.replace("person", "about"))]
    return [str(path) for path, data in texts(place).items() if any(each in data for each in wanted)]


def purged_everywhere(lab: Lab, warehouse: Warehouse, run: Callable[[], Answer], follows: Callable[[], bool]) -> None:
    """A table `t` of the policy's database is purged by `run`, and its replica follows: each copy of an erased row is
    named until it is gone. The certificate is made by the newest Spark, without the format."""
    source, target = lab.db(), lab.replica()
    lab.sync()
    assert holding(target.home) and holding(source.home)
    done = run()
    assert done.code == 0 and holding(source.home) == [], done

    behind = certified_by(lab, warehouse, source.name)
    held = {each["what"] for each in behind.holding}
    assert behind.status == "remaining" and held == {"$cmroot", "replica"}, behind.holding

    lab.sync()
    assert holding(target.home) == [] and follows()
    expedited = certified_by(lab, warehouse, source.name, expedited=True)
    lab.sync()
    certified = certified_by(lab, warehouse, source.name, expedited=True)
    assert certified.status == "certified", (expedited.holding, certified.holding, certified.gaps)
    assert holding(lab.cmroot / "files") == [] and holding(lab.target_cmroot / "files") == []

    sides = ["--metastore", lab.source_uri, "--cmroot", str(lab.cmroot)]
    undone = command("purge", "undo", f"{source.name}.t", *sides)
    assert (undone.code, undone.error) == (6, "Refused") and "no backup" in undone.message, undone
