"""Verify, against two real metastores: a fresh replica is the same, and each single change on it is found, exactly."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engines import local_runtime
from metastores import MetastoreFactory
from names import unique

from cmroot.root import ChangeRoot, create_or_open
from cmroot.store.place import local_path
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.dump import DumpSettings, write_dump
from replicator.compare import compare_files, verify
from replicator.compare.both_sides import Comparison
from replicator.compare.differences import Difference, Differences, Homes, compare
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.model import (
    EXTERNAL,
    VIEW,
    Column,
    ColumnStatistic,
    Database,
    Function,
    Partition,
    Serde,
    Skew,
    Statistics,
    Storage,
    Table,
)
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine
from replicator.errors import ObjectNotFound
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import Patterns
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.policies.status import status
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

RUNTIME = local_runtime()
COLUMNS = (Column(name="a", type="int", comment="the first"), Column(name="b", type="string"))
KEYS = (Column(name="day", type="string"),)
MARKED = {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true","COLUMN_STATS":{"a":"true"}}'}


def storage(location: Path, **more: Any) -> Storage:
    return Storage(
        columns=COLUMNS,
        location=f"file:{location}",
        input_format="org.apache.hadoop.mapred.TextInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        serde=Serde(name="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", parameters={"path": f"file:{location}"}),
        **more,
    )


def long_statistics(high: int) -> tuple[ColumnStatistic, ...]:
    values = {"1": {"i64": 1}, "2": {"i64": high}, "3": {"i64": 0}, "4": {"i64": 3}}
    return (ColumnStatistic(column="a", type="int", data={"2": {"rec": values}}),)


def write(place: Path, files: Mapping[str, str]) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
    return place


def build(metastore: ThriftMetastore, warehouse: Path, db: str) -> None:
    """A database with a table, a partitioned table, an external one elsewhere, a view and a function."""
    home = warehouse / f"{db}.db"
    metastore.create_database(
        Database(
            name=db,
            description="a shop",
            location=f"file:{home}",
            parameters={"kept": "yes"},
            owner="ann",
            owner_type="USER",
        )
    )
    plain = write(home / "plain", {"f1": "hello" * 50, "f2": "world"})
    metastore.create_table(
        Table(
            db=db,
            name="plain",
            owner="ann",
            storage=storage(plain, parameters={"s": "1"}),
            parameters={"comment": "plain rows", "colour": "red", "seen at": f"file:{plain}/f1", **MARKED},
        )
    )
    metastore.set_table_statistics(Statistics(db=db, table="plain", columns=long_statistics(9)))
    metastore.create_table(Table(db=db, name="days", storage=storage(home / "days"), partition_keys=KEYS))
    metastore.add_partitions(db, "days", [partition(home, str(day)) for day in range(1, 5)])
    metastore.set_partition_statistics([Statistics(db=db, table="days", partition="day=2", columns=long_statistics(2))])
    elsewhere = write(warehouse.parent / f"elsewhere-{db}", {"x": "external"})
    metastore.create_table(Table(db=db, name="outside", kind=EXTERNAL, storage=storage(elsewhere)))
    skewed = Skew(columns=("a",), values=(("1",),))
    metastore.create_table(Table(db=db, name="skewed", storage=storage(home / "skewed", skew=skewed, buckets=4)))
    text = f"SELECT a FROM {db}.plain"
    view = Storage(columns=COLUMNS[:1])
    metastore.create_table(Table(db=db, name="seen", kind=VIEW, storage=view, view_original=text, view_expanded=text))
    metastore.create_function(
        Function(
            db=db,
            name="plus",
            class_name="org.example.Plus",
            owner="ann",
            owner_type="USER",
            resources=(("JAR", f"file:{home}/plus.jar"),),
        )
    )


def partition(home: Path, day: str) -> Partition:
    place = write(home / "days" / f"day={day}", {"f": f"day {day}"})
    return Partition(values=(day,), storage=storage(place), parameters={"weather": "fine", **MARKED})


@dataclass
class Replica:
    """A database of the source and its replica; `verify()` compares them. `undo`: what takes a test's changes back."""

    source: ThriftMetastore
    target: ThriftMetastore
    db: str
    name: str  # on the target
    root: ChangeRoot
    options: dict[str, Any] = field(default_factory=dict)
    undo: list[Callable[[], object]] = field(default_factory=list)

    def verify(self, **options: Any) -> verify.Verified:
        return verify.verify(Comparison(self.source, self.target, **(self.options | options)), [self.db], RUNTIME)

    def only(self, **options: Any) -> Difference:
        """The one difference there is."""
        report = self.verify(**options)
        assert report.status == "different"
        assert (report.difference_count, len(report.differences)) == (1, 1), report.differences
        return report.differences[0]

    def table(self, name: str = "plain") -> Table:
        return self.target.table(self.name, name)

    def alter(self, table: Table, **changes: Any) -> None:
        self.target.alter_table(self.name, table.name, msgspec.structs.replace(table, **changes))
        self.undo.append(lambda: self.target.alter_table(self.name, table.name, table))

    def alter_day(self, day: Partition, **changes: Any) -> None:
        self.target.alter_partitions(self.name, "days", [msgspec.structs.replace(day, **changes)])
        self.undo.append(lambda: self.target.alter_partitions(self.name, "days", [day]))

    def overwrite(self, file: Path, content: bytes) -> None:
        before = file.read_bytes()
        file.write_bytes(content)
        self.undo.append(lambda: file.write_bytes(before))

    def day(self, day: str) -> Partition:
        return next(self.target.partitions(self.name, "days", [f"day={day}"]))[0]

    def path(self, table: str = "plain", file: str = "") -> Path:
        return Path(local_path(self.table(table).location or "")) / file


Replicate = Callable[..., Replica]


@pytest.fixture(scope="module")
def sides(source_metastore: Running, target_metastore: Running) -> Iterator[tuple[ThriftMetastore, ThriftMetastore]]:
    with connect(source_metastore.uri) as source, connect(target_metastore.uri) as target:
        yield source, target


@pytest.fixture(scope="module")
def replicate(
    source_metastore: Running, sides: tuple[ThriftMetastore, ThriftMetastore], tmp_path_factory: pytest.TempPathFactory
) -> Replicate:
    """Makes a database at the source and replicates it."""

    def make(rename: bool = False, mapped: bool = False) -> Replica:
        place = tmp_path_factory.mktemp("replica")
        return replicated(sides, source_metastore.warehouse, place, rename=rename, mapped=mapped)

    return make


def replicated(
    sides: tuple[ThriftMetastore, ThriftMetastore],
    warehouse: Path,
    place: Path,
    *,
    rename: bool = False,
    mapped: bool = False,
) -> Replica:
    (source, target), db = sides, unique("shop")
    build(source, warehouse, db)
    renames = [(db, f"{db}_copy")] if rename else []
    elsewhere = warehouse.parent / f"elsewhere-{db}"
    mappings = [(f"file:{elsewhere}", f"file:{place}/mapped")] if mapped else []
    root = create_or_open(str(place / "cmroot"))
    capture(source, root, CaptureSettings([db]), RUNTIME)
    dump = str(place / "dump")
    write_dump(root, dump, DumpSettings(source.uri, [db]), RUNTIME)
    options = LoadSettings(cmroot=str(place / "target-cmroot"), rename=renames, map_locations=mappings)
    load(dump, target, options, RUNTIME)
    return Replica(source, target, db, f"{db}_copy" if rename else db, root, {"rename": renames})


@pytest.fixture(scope="module")
def kept() -> list[Replica]:
    """The replica that the next test can have: making one takes seconds."""
    return []


@pytest.fixture
def replica(kept: list[Replica], replicate: Replicate) -> Iterator[Replica]:
    """One that is the same as its source."""
    mine = kept.pop() if kept else replicate()
    yield mine
    while mine.undo:
        mine.undo.pop()()
    if mine.verify().status == "same":
        kept.append(mine)


# ---- the same -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["metadata", "size", "checksum"])
def test_a_fresh_replica_is_the_same(replica: Replica, level: str) -> None:
    report = replica.verify(level=level)
    assert report.differences == []
    assert (report.status, report.difference_count) == ("same", 0)
    assert report.objects == 11  # database, function, five tables, four partitions
    assert report.files == (0 if level == "metadata" else 7)


def test_a_renamed_replica_is_the_same(replicate: Replicate) -> None:
    assert replicate(rename=True).verify().differences == []


def test_a_replica_with_mapped_locations_is_the_same_without_being_told_the_mapping(replicate: Replicate) -> None:
    replica = replicate(mapped=True)
    assert replica.path("outside").name == "mapped"
    assert replica.verify().differences == []


def test_only_chosen_tables_are_compared(replica: Replica) -> None:
    replica.path(file="f1").unlink()
    assert replica.verify(patterns=Patterns.parse(exclude=["pl.*"])).differences == []
    assert replica.verify(patterns=Patterns.parse(include=["PLAIN"])).difference_count == 2  # a property names it, too


# ---- files --------------------------------------------------------------------------------------------------------


def test_a_flipped_byte_is_found_by_checksum_alone(replica: Replica) -> None:
    file = replica.path(file="f1")
    before = file.stat()
    replica.overwrite(file, b"H" + file.read_bytes()[1:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = replica.only()
    assert (found.object, found.kind, found.field) == (f"{replica.db}.plain", "file content", "f1")
    assert found.source != found.target
    assert replica.verify(level="size").status == "same"


def test_a_missing_file_is_found(replica: Replica) -> None:
    replica.path("days", "day=2/f").unlink()
    found = replica.only()
    assert (found.object, found.kind, found.field) == (f"{replica.db}.days/day=2", "file missing", "f")
    assert (found.source, found.target) == ("5 bytes", None)


def test_an_extra_file_is_found(replica: Replica) -> None:
    write(replica.path(file="below"), {"more": "x"})
    found = replica.only(level="size")
    assert (found.kind, found.field, found.source) == ("file extra", "below/more", None)
    assert found == replica.only()


def test_a_longer_file_is_found(replica: Replica) -> None:
    replica.overwrite(replica.path(file="f2"), b"world!")
    found = replica.only()
    assert (found.kind, found.source, found.target) == ("file size", "5 bytes", "6 bytes")


def test_a_missing_directory_is_every_file_missing(replica: Replica) -> None:
    shutil.rmtree(replica.path())
    differences = replica.verify().differences
    assert [each.kind for each in differences] == ["file missing"] * 3
    assert {each.field for each in differences} == {"f1", "f2", "seen at"}  # a property names one of them


def test_contents_of_large_objects_are_shared_out(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "TASK_BYTES", 100)
    assert replica.verify().files == 7
    replica.overwrite(replica.path(file="f2"), b"WORLD")
    assert replica.only().field == "f2"


def test_executors_find_what_threads_find(replica: Replica) -> None:
    from replicator.metastore.java import find_java, spark_environment

    replica.overwrite(replica.path(file="f2"), b"WORLD")
    spark = AutoEngine(
        LocalEngine(2), SparkEngine("local[2]", {}, lambda: spark_environment(find_java(os.environ))), "spark"
    )
    try:
        report = verify.verify(Comparison(replica.source, replica.target), [replica.db], Runtime(spark))
    finally:
        spark.stop()
    assert report.differences == [replica.only()]
    assert report.files == 7


# ---- metadata -----------------------------------------------------------------------------------------------------


def with_columns(table: Table, *columns: Column) -> Storage:
    assert table.storage
    return msgspec.structs.replace(table.storage, columns=columns)


def test_a_column_comment_is_found(replica: Replica) -> None:
    table = replica.table()
    first, second = COLUMNS
    replica.alter(table, storage=with_columns(table, msgspec.structs.replace(first, comment="1st"), second))
    found = replica.only(level="metadata")
    assert found == Difference(f"{replica.db}.plain", "column comment", "the first", "1st", "a")


def test_a_column_type_is_found(replica: Replica) -> None:
    table = replica.table()
    first, second = COLUMNS
    replica.alter(table, storage=with_columns(table, first, msgspec.structs.replace(second, type="varchar(9)")))
    found = replica.only(level="metadata")
    assert found == Difference(f"{replica.db}.plain", "column type", "string", "varchar(9)", "b")


def test_a_missing_column_is_found(replica: Replica) -> None:
    table = replica.table("outside")
    replica.alter(table, storage=with_columns(table, COLUMNS[0]))
    found = replica.only(level="metadata")
    assert (found.kind, found.source, found.target) == ("columns", "a, b", "a")


def test_a_server_without_direct_sql_tells_a_column_with_statistics_that_is_missing(
    metastore_factory: MetastoreFactory, tmp_path: Path
) -> None:
    server = metastore_factory("plain", settings={"hive.metastore.try.direct.sql": "false"})
    with connect(server.uri) as client:
        replica = replicated((client, client), server.warehouse, tmp_path, rename=True)
        assert replica.verify().status == "same"
        for name in ("plain", "days"):
            table = replica.table(name)
            replica.alter(table, storage=with_columns(table, COLUMNS[1]))
        found = {(each.object, each.kind): (each.source, each.target) for each in replica.verify().differences}
    for name in ("plain", "days"):
        assert found[f"{replica.db}.{name}", "columns"] == ("a, b", "b")


def test_a_property_is_found(replica: Replica) -> None:
    table = replica.table()
    replica.alter(table, parameters=table.parameters | {"colour": "blue"})
    found = replica.only(level="metadata")
    assert found == Difference(f"{replica.db}.plain", "property", "red", "blue", "colour")


def test_an_extra_property_is_found(replica: Replica) -> None:
    table = replica.table("seen")
    replica.alter(table, parameters=table.parameters | {"more": "1"})
    found = replica.only(level="metadata")
    assert found == Difference(f"{replica.db}.seen", "property", None, "1", "more")


def test_a_table_comment_is_found(replica: Replica) -> None:
    table = replica.table()
    replica.alter(table, parameters=table.parameters | {"comment": "other rows"})
    found = replica.only(level="metadata")
    assert (found.kind, found.source, found.target) == ("comment", "plain rows", "other rows")


def test_an_owner_is_found(replica: Replica) -> None:
    replica.alter(replica.table(), owner="bob")
    found = replica.only(level="metadata")
    assert (found.kind, found.source, found.target) == ("owner", "ann", "bob")


def test_a_skew_and_buckets_are_found(replica: Replica) -> None:
    table = replica.table("skewed")
    assert table.storage
    changed = msgspec.structs.replace(table.storage, buckets=8, skew=Skew(columns=("a",), values=(("2",),)))
    replica.alter(table, storage=changed)
    assert {each.kind for each in replica.verify(level="metadata").differences} == {"buckets", "skew"}


def test_a_table_statistic_is_found(replica: Replica) -> None:
    statistics = Statistics(db=replica.name, table="plain", columns=long_statistics(8))
    replica.target.set_table_statistics(statistics)
    found = replica.only(level="metadata")
    assert (found.object, found.kind, found.field) == (f"{replica.db}.plain", "statistics", "a")
    assert found.source != found.target


def test_a_partition_statistic_is_found(replica: Replica) -> None:
    changed = Statistics(db=replica.name, table="days", partition="day=2", columns=long_statistics(3))
    replica.target.set_partition_statistics([changed])
    found = replica.only(level="metadata")
    assert (found.object, found.kind, found.field) == (f"{replica.db}.days/day=2", "statistics", "a")


def test_a_missing_partition_is_found(replica: Replica) -> None:
    replica.target.drop_partitions(replica.name, "days", ["day=3"])
    found = replica.only()
    assert found == Difference(f"{replica.db}.days/day=3", "partition missing", "day=3", None)


def test_an_extra_partition_is_found(replica: Replica) -> None:
    replica.target.add_partitions(replica.name, "days", [partition(replica.path("days").parent, "9")])
    found = replica.only()
    assert found == Difference(f"{replica.db}.days/day=9", "partition extra", None, "day=9")


def test_a_partition_property_is_found(replica: Replica) -> None:
    day = replica.day("1")
    replica.alter_day(day, parameters=day.parameters | {"weather": "foul"})
    found = replica.only()
    assert found == Difference(f"{replica.db}.days/day=1", "property", "fine", "foul", "weather")


def test_a_partition_elsewhere_in_its_table_is_found(replica: Replica) -> None:
    day = replica.day("1")
    assert day.storage
    place = write(replica.path("days", "day=one"), {"f": "day 1"})
    replica.alter_day(day, storage=msgspec.structs.replace(day.storage, location=f"file:{place}"))
    found = replica.only()
    assert (found.kind, found.target) == ("location", f"file:{place}")


def test_a_partition_at_the_source_is_found(replica: Replica) -> None:
    day = replica.day("1")
    assert day.storage
    theirs = next(replica.source.partitions(replica.db, "days", ["day=1"]))[0].location
    replica.alter_day(day, storage=msgspec.structs.replace(day.storage, location=theirs))
    found = replica.only()
    assert (found.kind, found.field, found.target) == ("names the source", "location", theirs)


def test_a_serde_parameter_that_names_the_source_is_found(replica: Replica) -> None:
    table = replica.table()
    assert table.storage
    theirs = replica.source.table(replica.db, "plain").location or ""
    serde = msgspec.structs.replace(table.storage.serde, parameters={"path": theirs})
    replica.alter(table, storage=msgspec.structs.replace(table.storage, serde=serde))
    found = replica.only()
    assert (found.kind, found.field, found.target) == ("names the source", "serde parameter path", theirs)


def test_a_view_text_is_found(replica: Replica) -> None:
    view = replica.table("seen")
    replica.alter(view, view_original=f"SELECT b FROM {replica.name}.plain")
    found = replica.only()
    assert (found.object, found.kind) == (f"{replica.db}.seen", "view text")


def test_a_view_that_reads_the_unrenamed_database_is_found(replicate: Replicate) -> None:
    replica = replicate(rename=True)
    view = replica.table("seen")
    replica.alter(view, view_expanded=f"SELECT a FROM {replica.db}.plain")
    found = replica.only()
    assert (found.kind, found.source) == ("expanded view text", f"SELECT a FROM {replica.name}.plain")


def test_a_function_class_is_found(replica: Replica) -> None:
    function = replica.target.functions(replica.name)[0]
    replica.target.drop_function(replica.name, "plus")
    replica.target.create_function(msgspec.structs.replace(function, class_name="org.example.Minus"))
    found = replica.only()
    wanted = Difference(f"{replica.db}.plus", "function class", "org.example.Plus", "org.example.Minus")
    assert found == wanted


def test_a_missing_function_is_found(replica: Replica) -> None:
    replica.target.drop_function(replica.name, "plus")
    assert replica.only().kind == "function missing"


def test_a_database_property_is_found(replica: Replica) -> None:
    database = replica.target.database(replica.name)
    changed = msgspec.structs.replace(database, parameters=database.parameters | {"kept": "no"})
    replica.target.alter_database(replica.name, changed)
    found = replica.only()
    assert found == Difference(replica.db, "property", "yes", "no", "kept")


def test_a_missing_and_an_extra_table_are_found(replica: Replica) -> None:
    table = replica.table("seen")
    replica.target.drop_table(replica.name, "seen")
    replica.target.create_table(msgspec.structs.replace(table, name="unseen"))
    assert {(each.object, each.kind) for each in replica.verify().differences} == {
        (f"{replica.db}.seen", "table missing"),
        (f"{replica.db}.unseen", "table extra"),
    }


def test_a_database_that_is_missing_is_a_difference_on_the_target_and_an_error_at_the_source(replica: Replica) -> None:
    found = replica.only(rename=[(replica.db, "nowhere")])
    assert (found.object, found.kind) == (replica.db, "database missing")
    with pytest.raises(ObjectNotFound):
        verify.verify(Comparison(replica.source, replica.target), ["nowhere"], RUNTIME)


# ---- without a metastore ------------------------------------------------------------------------------------------


def test_differences_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.compare.differences.LIMIT", 3)
    all_ = Differences()
    for _ in range(2):
        some = Differences()
        for number in range(4):
            some.add(Difference("t", "file extra", None, "1 bytes", str(number)))
        all_.merge(some)
    assert (len(all_.found), all_.count) == (3, 8)


def test_long_values_are_shown_where_they_part() -> None:
    a, b = (Table(db="d", name="t", view_original="x" * 5000 + end) for end in ("one", "two"))
    (found,) = compare("d.t", a, b, Homes(None, None, None))
    assert found.source and found.source.endswith("xone") and len(found.source) < 200


def test_what_lies_in_a_targets_database_below_the_sources_is_the_targets() -> None:
    homes = Homes("file:/w/t", "file:/w", "file:/w/copy")
    assert homes.cover("/w/t/p=1") and homes.cover("file:/w/other")
    assert not homes.cover("file:/w/copy/t") and not homes.cover("see /w/t") and not homes.cover("/wider/t")
    assert Homes(None, "/w/a.db", "/w").cover("/w/a.db/t")  # the target's lies above: no excuse
    assert Homes(None, "/w/a.db", "/w/a.db").cover("/w/a.db/t")


def test_a_file_that_vanishes_while_it_is_compared_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", {"f": "x"})
    write(tmp_path / "b", {"f": "x"})
    monkeypatch.setattr(compare_files, "checksum_at", _vanishing(tmp_path / "b"))
    pair = compare_files.FilePair("d.t", str(tmp_path / "a"), str(tmp_path / "b"))
    report = compare_files.compare_files(compare_files.FileTask([pair], "checksum", 1 << 30))
    assert [(each.kind, each.target) for each in report.differences.found] == [("file missing", None)]


def _vanishing(below: Path) -> Callable[[str], tuple[str, int]]:
    def checksum(path: str) -> tuple[str, int]:
        if Path(path).is_relative_to(below):
            raise FileNotFoundError(path)
        return "00", 1

    return checksum


# ---- status -------------------------------------------------------------------------------------------------------


def test_status_tells_how_far_a_target_is_and_the_lag(replicate: Replicate) -> None:
    replica = replicate()
    root = replica.root
    now = status(replica.target, replica.name, source=replica.source, root=root)
    assert (now.status, now.lag_events, now.lag_seconds, now.lag_bytes) == ("current", 0, 0.0, 0)
    assert now.event == replica.source.current_event_id() and now.time and now.source == root.id

    home = Path(local_path(replica.source.database(replica.db).location or ""))
    replica.source.add_partitions(replica.db, "days", [partition(home, "2026-01-01")])
    capture(replica.source, root, CaptureSettings(), RUNTIME)
    event = replica.source.next_events(now.event, 10)[0]
    later = status(replica.target, replica.name, source=replica.source, root=root, clock=lambda: event.time + 7.5)
    assert (later.status, later.lag_events, later.lag_seconds, later.lag_bytes) == ("behind", 1, 7.5, 14)
    assert later.event == now.event and later.warnings == []

    alone = status(replica.target, replica.name)
    assert (alone.status, alone.lag_events, alone.lag_bytes, alone.time) == ("replica", None, None, None)


def test_status_of_a_database_that_replication_did_not_make(replica: Replica) -> None:
    assert status(replica.target, "default").status == "no replica"
    with pytest.raises(ObjectNotFound):
        status(replica.target, "nowhere")
