"""iceberg: translation of an Iceberg table against Iceberg's `rewrite_table_path`: the whole tree, and one commit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from iceberg_spark import IcebergSpark
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, ratio, s, timed
from cmroot.store import iceberg
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.format_files import Mover
from replicator.replay.apply.named_places import homes_of

COMMITS = {"full": 1000, "small": 100}
FILES = 10  # of a commit


def run(size: str, runs: int, directory: Path) -> Outcome:
    with ground.metastore(directory) as client:
        ground.create_database(client, "lake")
        table = _table(client, COMMITS[size])
        with IcebergSpark(client.uri, ground.warehouse(client)) as spark:
            tree = _Tree(table, directory / "target")
            contestants = {
                "whole": lambda number: timed(tree.whole),
                "whole, rewrite_table_path": lambda number: timed(lambda: _rewrite(spark, table, directory, number)),
                "commit": lambda number: timed(tree.last_commit),
                "commit, rewrite_table_path": lambda number: timed(
                    lambda: _rewrite(spark, table, directory, number, start_version=tree.before)
                ),
            }
            for work in contestants.values():
                work(-1)
            took = interleaved(max(runs, 3), contestants)
    outcome = Outcome(["what", "tool", "`rewrite_table_path`", "tool / Iceberg", "wanted"])
    for name, wanted in (("whole", "<= 0.33"), ("commit", "< 1")):
        own, theirs = took[name], took[f"{name}, rewrite_table_path"]
        outcome.rows.append([name, s(own), s(theirs), ratio(own, theirs), wanted])
    commits = COMMITS[size]
    outcome.remarks.append(f"{commits:,} snapshots, {commits * FILES:,} files, {len(tree.files):,} files of the tree.")
    return outcome


def _table(client: ThriftMetastore, commits: int) -> Table:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    catalog = HiveCatalog("bench", uri=client.uri, **{"hive.hive2-compatible": "true"})
    location = f"file://{ground.warehouse(client)}/lake.db/t"
    table = catalog.create_table("lake.t", schema, location=location, properties={"format-version": "2"})
    with table.update_spec() as update:
        update.add_field("day", IdentityTransform())
    days = [f"d{number}" for number in range(FILES)]
    for number in range(commits):
        table.append(pa.table({"id": [number] * FILES, "day": days}, schema=schema))
    return table.refresh()


class _Tree:
    """The files of a table's tree, and their translation by one process. Nothing is copied, as by Iceberg's action."""

    def __init__(self, table: Table, target: Path) -> None:
        self._source, self._target = urlsplit(table.location()).path, str(target)
        self._move = Mover(homes_of([(self._source, self._target)]))
        self.pointer = urlsplit(table.metadata_location).path
        self.before = table.metadata.metadata_log[-1].metadata_file.rpartition("/")[2]
        names = sorted(os.listdir(f"{self._source}/metadata"))
        self.files = [f"{iceberg.DIRECTORY}/{name}" for name in names]
        snapshot = table.metadata.snapshots[-1]
        lists = [urlsplit(snapshot.manifest_list).path]
        added = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
        manifests = [urlsplit(each.manifest_path).path for each in added]
        self._last = [path.removeprefix(f"{self._source}/") for path in (*manifests, *lists, self.pointer)]

    def whole(self) -> None:
        shutil.rmtree(self._target, ignore_errors=True)
        os.makedirs(f"{self._target}/{iceberg.DIRECTORY}")
        lists = [path for path in self.files if path.rpartition("/")[2].startswith("snap-")]
        metadata = [path for path in self.files if iceberg.is_metadata(path)]
        for path in (*(each for each in self.files if each not in {*lists, *metadata}), *lists, *metadata):
            self._translate(path)

    def last_commit(self) -> None:
        for path in self._last:
            self._translate(path)

    def _translate(self, path: str) -> None:
        with open(f"{self._source}/{path}", "rb") as file:
            data = file.read()
        with open(f"{self._target}/{path}", "wb") as file:
            file.write(iceberg.translated(path, data, self._move, self._size_of))

    def _size_of(self, place: str, recorded: int) -> int:
        return os.path.getsize(urlsplit(place).path)


def _rewrite(spark: IcebergSpark, table: Table, directory: Path, number: int, start_version: str = "") -> None:
    staging = f"file://{directory}/staging-{number}-{bool(start_version)}"
    since = f", start_version => '{start_version}'" if start_version else ""
    prefixes = f"source_prefix => '{table.location()}', target_prefix => 'file:///replica/t'"
    spark(f"call c.system.rewrite_table_path(table => 'lake.t', {prefixes}, staging_location => '{staging}'{since})")
