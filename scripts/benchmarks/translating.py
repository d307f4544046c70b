"""iceberg: translation of an Iceberg table against Iceberg's `rewrite_table_path`: the whole tree, and one commit; and
one commit end to end (capture, dump, load) in tables of several ages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from iceberg_spark import IcebergSpark
from pyiceberg.table import Table

from benchmarks import appending, ground
from benchmarks.measure import Outcome, Timed, interleaved, median, ratio, s, timed
from cmroot.root import create_or_open
from cmroot.store import iceberg
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.format_files import Mover
from replicator.replay.apply.load import load
from replicator.replay.apply.named_places import homes_of
from replicator.replay.apply.planning import LoadSettings

COMMITS = {"full": 1000, "small": 100}
AGES = {"full": (10, 100, 1000), "small": (10, 100)}  # commits before the one that is replicated
WHOLE, COMMIT, REWRITE = "translation, whole", "translation, a commit", "{}, rewrite_table_path"


def run(size: str, runs: int, directory: Path) -> Outcome:
    with ground.metastore(directory, "source") as source, ground.metastore(directory, "target") as target:
        table = appending.table(source, "lake", COMMITS[size])
        commits = {_end_to_end(age): _Commits(source, target, directory, age) for age in AGES[size]}
        with IcebergSpark(source.uri, ground.warehouse(source)) as spark:
            (read,) = spark("select count(*), count(distinct day), sum(id) from c.lake.t")
            assert read == [str(COMMITS[size] * appending.FILES), str(appending.FILES), "0"], read
            tree, rewriting = _Tree(table, directory / "translated"), _Rewriting(spark, directory)
            contestants: dict[str, Timed] = {
                WHOLE: lambda _: timed(tree.whole),
                REWRITE.format(WHOLE): lambda _: rewriting.whole(table),
                COMMIT: lambda _: timed(tree.last_commit),
                REWRITE.format(COMMIT): lambda _: rewriting.last_commit(table),
            }
            for name, each in commits.items():
                contestants |= {name: each.replicate, REWRITE.format(name): each.rewritten_by(rewriting)}
            for name, work in contestants.items():
                if name != WHOLE:
                    work(-1)
            took = interleaved(max(runs, 3), contestants)
    return _outcome(size, took, list(commits), len(tree.files), rewriting.written)


def _end_to_end(age: int) -> str:
    return f"end to end, a commit after {age:,}"


def _outcome(size: str, took: dict[str, list[float]], commits: list[str], files: int, rewritten: int) -> Outcome:
    outcome = Outcome(["what", "tool", "`rewrite_table_path`", "tool / Iceberg", "wanted"])
    for name in (WHOLE, COMMIT, *commits):
        own, theirs = took[name], took[REWRITE.format(name)]
        outcome.rows.append([name, s(own), s(theirs), ratio(own, theirs), "<= 0.33" if name == WHOLE else "< 1"])
    count = COMMITS[size]
    outcome.remarks.append(
        f"{count:,} snapshots, {count * appending.FILES:,} data files. The tool translates {files:,} files of the tree,"
        f" Iceberg {rewritten:,}: of metadata files those that the newest one names. A commit in the oldest"
        f" table takes {median(took[commits[-1]]) / median(took[commits[0]]):.2f} times as long as in the youngest one."
    )
    return outcome


class _Tree:
    """The files of a table's tree, and their translation by one process. Nothing is copied, as by Iceberg's action."""

    def __init__(self, table: Table, target: Path) -> None:
        self._source, self._target = urlsplit(table.location()).path, str(target)
        self._move, self._sizes = Mover(homes_of([(self._source, self._target)])), dict[str, int]()
        self._repeated = iceberg.Repeated()
        names = sorted(os.listdir(f"{self._source}/metadata"))
        self.files = [f"{iceberg.DIRECTORY}/{name}" for name in names]
        snapshot = table.metadata.snapshots[-1]
        lists = [urlsplit(snapshot.manifest_list).path]
        added = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
        manifests = [urlsplit(each.manifest_path).path for each in added]
        last = (*manifests, *lists, urlsplit(table.metadata_location).path)
        self._last = [path.removeprefix(f"{self._source}/") for path in last]
        self.whole()

    def whole(self) -> None:
        self._sizes.clear()
        self._repeated.clear()
        shutil.rmtree(self._target, ignore_errors=True)
        os.makedirs(f"{self._target}/{iceberg.DIRECTORY}")
        lists = [path for path in self.files if path.rpartition("/")[2].startswith("snap-")]
        metadata = [path for path in self.files if iceberg.is_metadata(path)]
        for path in (*(each for each in self.files if each not in {*lists, *metadata}), *lists, *metadata):
            self._translate(path)

    def last_commit(self) -> None:
        self._repeated.clear()
        for path in self._last:
            self._translate(path)

    def _translate(self, path: str) -> None:
        with open(f"{self._source}/{path}", "rb") as file:
            data = file.read()
        with open(f"{self._target}/{path}", "wb") as file:
            file.write(iceberg.translated(path, data, self._move, self._size_of, self._move.in_order, self._repeated))

    def _size_of(self, place: str, recorded: int) -> int:
        if place not in self._sizes:  # as a load does
            self._sizes[place] = os.path.getsize(urlsplit(place).path)
        return self._sizes[place]


class _Rewriting:
    """Iceberg's action, each time into a new staging directory."""

    def __init__(self, spark: IcebergSpark, directory: Path) -> None:
        self._spark, self._directory, self._count, self._last = spark, directory, 0, 0
        self.written = 0  # files, of the whole tree

    def whole(self, table: Table) -> float:
        seconds = self._rewrite(table, "")
        self.written = self._last
        return seconds

    def last_commit(self, table: Table) -> float:
        before = table.metadata.metadata_log[-1].metadata_file.rpartition("/")[2]
        return self._rewrite(table, f", start_version => '{before}'")

    def _rewrite(self, table: Table, since: str) -> float:
        self._count += 1
        staging = self._directory / f"staging-{self._count}"
        name = ".".join(table.name()[-2:])
        prefixes = f"source_prefix => '{table.location()}', target_prefix => 'file:///replica/t'"
        call = f"table => '{name}', {prefixes}, staging_location => 'file://{staging}'{since}"
        seconds = timed(lambda: self._spark(f"call c.system.rewrite_table_path({call})"))
        names = [path.name for path in staging.rglob("*") if path.suffix in (".json", ".avro")]
        assert any(name.endswith(".metadata.json") for name in names)
        self._last = len(names)
        shutil.rmtree(staging)
        return seconds


class _Commits:
    """A replicated table of some commits, and the replication of each that follows."""

    def __init__(self, source: ThriftMetastore, target: ThriftMetastore, directory: Path, age: int) -> None:
        self._source, self._target, self._directory, self._db = source, target, directory, f"lake_{age}"
        self._table = appending.table(source, self._db, age)
        self._root = create_or_open(str(directory / f"cmroot-{self._db}"))
        self._options = LoadSettings(cmroot=str(directory / f"target-{self._db}"))
        self._count, self._last = age, ""
        self._run()

    def replicate(self, _: int) -> float:
        """The seconds of one commit, which PyIceberg writes before."""
        appending.append(self._table, self._count)
        self._count += 1
        ground.settle(self._directory)
        return timed(self._run)

    def rewritten_by(self, rewriting: _Rewriting) -> Timed:
        return lambda _: rewriting.last_commit(self._table)

    def _run(self) -> None:
        out = str(self._directory / f"dump-{self._db}-{self._count}")
        ground.captured(self._source, self._root.place, [self._db], ground.engine())
        ground.dumped(self._source, self._root, Path(out), [self._db], since=self._last or None)
        loaded = load(out, self._target, self._options, Runtime(ground.engine()))
        assert loaded.status == "loaded" and loaded.files_copied >= appending.FILES, loaded
        self._last = out
