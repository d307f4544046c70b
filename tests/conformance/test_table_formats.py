"""Formats that a copy of their files does not copy: named and left out everywhere, and Delta, whose log has an order.

The metadata is what the formats' own writers leave in a metastore. Delta's logs are written and read by delta-rs.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Answer, command
from iceberg_tables import catalog, naming_source
from lab import Lab
from plain_tables import PlainDatabase
from pyiceberg.table import StaticTable

from cmroot.root import create_or_open
from cmroot.store.delta import last_version, named_files
from cmroot.store.listing import list_tree
from replicator.captures import left_out
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.manifest import Manifest
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.formats import format_of, pointer_of
from replicator.core.model import EXTERNAL, VIEW, ColumnStatistic, Statistics, Table
from replicator.core.runtime import Runtime
from replicator.metastore.codecs import struct_to_tjson
from replicator.metastore.embedded.running import Running

ICEBERG = {
    "table_type": "ICEBERG",
    "metadata_location": "file:/w/t/metadata/00001-a.metadata.json",
    "DO_NOT_UPDATE_STATS": "true",
}
ORC = "org.apache.hadoop.hive.ql.io.orc"
HUDI = {"spark.sql.sources.provider": "hudi"}
PAIMON = {"storage_handler": "org.apache.paimon.hive.PaimonStorageHandler"}
ACID = {"transactional": "true", "transactional_properties": "insert_only"}


@pytest.mark.parametrize(
    ("format", "parameters", "more"),
    [
        ("iceberg", ICEBERG, {}),
        ("iceberg", {"Metadata_Location": "s3://b/m.json"}, {}),
        ("iceberg", {"storage_handler": "org.apache.iceberg.mr.hive.HiveIcebergStorageHandler"}, {}),
        ("iceberg-view", {"table_type": "iceberg-view"}, {"kind": VIEW}),
        ("delta", {"spark.sql.sources.provider": "DELTA"}, {}),
        ("delta", {"storage_handler": "io.delta.hive.DeltaStorageHandler"}, {}),
        ("delta", {"spark.sql.sources.provider": "delta", "table_type": "ICEBERG"}, {}),
        ("delta-iceberg", {"spark.sql.sources.provider": "delta", **ICEBERG}, {}),
        ("hudi", HUDI, {}),
        ("hudi", {}, {"input_format": "org.apache.hudi.hadoop.HoodieParquetInputFormat"}),
        ("acid", ACID, {}),
        ("acid", {"TRANSACTIONAL": "True"}, {}),
        ("paimon", {"storage_handler": "org.apache.paimon.hive.PaimonStorageHandler"}, {}),
        ("symlink", {}, {"input_format": "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"}),
        ("handler", {"storage_handler": "org.apache.hadoop.hive.hbase.HBaseStorageHandler"}, {}),
        ("plain", {"transactional": "false", "spark.sql.sources.provider": "parquet"}, {}),
    ],
)
def test_a_tables_format_is_told_from_what_its_writers_leave_in_the_metastore(
    format: str, parameters: dict[str, str], more: dict[str, Any]
) -> None:
    table = Table(db="d", name="t", kind=more.get("kind", EXTERNAL), parameters=parameters)
    assert table.storage is not None
    storage = msgspec.structs.replace(table.storage, input_format=more.get("input_format"))
    table = msgspec.structs.replace(table, storage=storage)
    assert format_of(table).name == format
    replicated = format in ("plain", "delta", "delta-iceberg", "handler", "hudi", "acid", "symlink")
    replicated = replicated or (format == "iceberg" and bool(pointer_of(table)))
    assert bool(format_of(table).why_left_out(table)) != replicated


# ---- gaps ---------------------------------------------------------------------------------------------------------


def make_gaps(fixture: Lab) -> list[str]:
    """One table of each format beside a plain one; returns their names."""
    db = fixture.source
    db.table("orders", {"a": "1"})
    db.table("ice", {"data": "rows"}, kind=EXTERNAL)
    db.alter("ice", **ICEBERG)
    db.table("hudi", {"base.parquet": "rows"}, kind=EXTERNAL)
    db.alter("hudi", **HUDI)
    acid = db.table("plain")
    assert acid.storage
    storage = msgspec.structs.replace(
        acid.storage,
        location=f"file:{db.home}/acid",
        input_format=f"{ORC}.OrcInputFormat",
        output_format=f"{ORC}.OrcOutputFormat",
        bucket_columns=("a",),
        buckets=1,
    )
    db.metastore.create_table(Table(db=db.name, name="acid", storage=storage, parameters={"transactional": "true"}))
    db.write("acid/delta_0000001_0000001_0000", {"bucket_00000": "rows"})
    db.drop("plain")
    db.write("ice_view/metadata", {"00000-v.gz.metadata.json": "{}"})  # the server asks for the directory
    view = db.table("ice_view", kind=VIEW, view_original="select 1", view_expanded="select 1")
    parameters = {**view.parameters, "table_type": "ICEBERG-VIEW", "metadata_location": "file:/w/v/metadata/0.json"}
    db.metastore.alter_table(db.name, "ice_view", msgspec.structs.replace(view, parameters=parameters))
    return [f"{db.name}.{name}" for name in ("acid", "hudi", "ice", "ice_view")]


def named(answer: Answer) -> list[str]:
    return sorted(each["object"] for each in answer.output["not_replicated"])


def verified(fixture: Lab, *more: str) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    return command("verify", *sides, "--engine", "local", *more)


def repaired(fixture: Lab, *more: str) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    roots = ["--cmroot", str(fixture.cmroot), "--target-cmroot", str(fixture.target_cmroot)]
    return command("repair", *sides, *roots, "--engine", "local", *more)


def test_tables_that_a_copy_does_not_copy_are_left_out_by_name_and_the_exit_code_says_so(fixture: Lab) -> None:
    gaps = make_gaps(fixture)
    dumped = fixture.dump()
    assert (dumped.code, named(dumped)) == (3, gaps)
    planned = fixture.load(fixture.last, "--dry-run")
    assert (planned.code, named(planned)) == (3, gaps)
    loaded = fixture.load()
    assert (loaded.code, loaded.output["status"], named(loaded)) == (3, "incomplete", gaps)
    assert fixture.target.metastore.table_names(fixture.name) == ["orders"]
    assert not (fixture.target.home / "ice").exists()
    found = verified(fixture)
    assert (found.code, found.output["status"], named(found)) == (3, "incomplete", gaps)
    (fixture.target.home / "orders" / "a").write_text("another")
    for more in ("--dry-run",), (), ():  # the second has nothing to repair
        mended = repaired(fixture, *more)
        assert (mended.code, named(mended)) == (3, gaps), mended

    # and so is a range of changes
    fixture.source.write("orders", {"b": "2"})
    fixture.source.write("ice", {"more": "rows"})
    fixture.source.alter("ice", metadata_location="file:/w/t/metadata/00002-b.metadata.json")
    before = fixture.last
    assert (dumped := fixture.dump(since=before)).code == 3 and named(dumped) == gaps
    assert (loaded := fixture.load()).code == 3 and named(loaded) == gaps
    assert loaded.output["files_copied"] == 1
    assert fixture.target.metastore.table_names(fixture.name) == ["orders"]
    found = verified(fixture)
    assert (found.code, found.output["differences"], named(found)) == (3, [], gaps)


# ---- Delta --------------------------------------------------------------------------------------------------------


def make_delta(fixture: Lab, name: str = "events") -> Path:
    """A Delta table, registered as Spark does; returns its directory."""
    db = fixture.source
    db.table(name, kind=EXTERNAL)
    db.alter(name, **{"spark.sql.sources.provider": "delta"})
    place = db.home / name
    append(place, 0)
    return place


def append(place: Path, *ids: int) -> None:
    deltalake.write_deltalake(str(place), pa.table({"id": pa.array(ids, pa.int64())}), mode="append")


def ids(place: Path) -> list[int]:
    """As an independent reader sees them."""
    return sorted(deltalake.DeltaTable(str(place)).to_pyarrow_table()["id"].to_pylist())


def commit(place: Path, version: int) -> Path:
    return place / "_delta_log" / f"{version:020}.json"


def test_a_delta_table_is_replicated_whatever_its_writers_do_between_two_loads(fixture: Lab) -> None:
    place, replica = make_delta(fixture), fixture.target.home / "events"
    assert fixture.dump().code == 0 and fixture.load().code == 0
    assert ids(replica) == [0]
    for number in range(1, 12):
        append(place, number)
    table = deltalake.DeltaTable(str(place))
    table.create_checkpoint()
    table.delete("id = 3")
    table.optimize.compact()
    assert fixture.dump(since=fixture.last).code == 0 and fixture.load().code == 0
    assert ids(replica) == ids(place) == [0, 1, 2, *range(4, 12)]
    assert verified(fixture).code == 0
    deltalake.DeltaTable(str(place)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert fixture.dump(since=fixture.last).code == 0 and fixture.load().code == 0
    assert (ids(replica), verified(fixture).code) == (ids(place), 0)


def test_a_delta_log_is_listed_before_the_data_that_it_names_and_cut_at_a_hole(tmp_path: Path) -> None:
    """Whoever lists while others commit has all files of the last version that they list."""
    place = tmp_path / "t"
    append(place, 0)

    def write() -> None:
        log = place / "_delta_log"
        for version in range(1, 400):
            (place / f"part-{version}").write_bytes(b"rows")
            aside = log / f".{version}.writing"
            aside.write_text(json.dumps({"add": {"path": f"part-{version}", "size": 4}}) + "\n")
            aside.rename(commit(place, version))

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while writer.is_alive() or not seen:
        listing = list_tree(str(place))
        assert listing
        found = {file.path_relative for file in listing.files}
        names = [path.partition("/")[2] for path in found if path.startswith("_delta_log/")]
        last = last_version(names)
        assert last is not None and len(names) == last + 1
        assert named_files(names, lambda name: (place / "_delta_log" / name).open("rb")) <= found
        seen.add(last)
    writer.join()
    assert len(seen) > 1, "nothing was listed while it was written"


def test_versions_after_a_hole_are_left_to_the_next_listing(fixture: Lab) -> None:
    place, replica = make_delta(fixture), fixture.target.home / "events"
    for number in (1, 2, 3):
        append(place, number)
    hole = commit(place, 2).rename(place / "kept-aside")
    assert fixture.dump().code == 0 and fixture.load().code == 0
    assert ids(replica) == [0, 1]
    assert not commit(replica, 3).exists()
    hole.rename(commit(place, 2))
    assert fixture.dump(since=fixture.last).code == 0 and fixture.load().code == 0
    assert ids(replica) == [0, 1, 2, 3]


def test_a_load_that_fails_leaves_the_version_that_readers_had(fixture: Lab) -> None:
    """A data file is damaged at the source and in its $cmroot, which is the same file: the load finds out as it
    copies it."""
    place, replica = make_delta(fixture), fixture.target.home / "events"
    assert fixture.dump().code == 0 and fixture.load().code == 0
    append(place, 1)
    append(place, 2)
    assert fixture.dump(since=fixture.last).code == 0
    damaged = max(place.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    content, mode = damaged.read_bytes(), damaged.stat().st_mode
    damaged.chmod(0o644)
    with damaged.open("r+b") as file:
        file.write(b"X")
    loaded = fixture.load()
    assert (loaded.code, loaded.error) == (1, "FilesMissing"), loaded
    assert ids(replica) == [0]
    with damaged.open("r+b") as file:
        file.write(content[:1])
    damaged.chmod(mode)
    assert fixture.load().code == 0
    assert ids(replica) == [0, 1, 2]


def test_a_log_is_published_version_by_version_and_up_to_what_is_to_be_had(fixture: Lab) -> None:
    place, replica = make_delta(fixture), fixture.target.home / "events"
    assert fixture.dump().code == 0 and fixture.load().code == 0
    for number in (1, 2, 3):
        append(place, number)
    assert fixture.dump(since=fixture.last).code == 0
    with commit(place, 2).open("r+b") as file:
        file.write(b"X")
    loaded = fixture.load()
    assert (loaded.code, loaded.error) == (1, "FilesMissing"), loaded
    assert ids(replica) == [0, 1]
    assert [commit(replica, version).exists() for version in (1, 2, 3)] == [True, False, False]


def test_a_commit_of_somebody_else_on_the_replica_is_not_replaced_unasked(fixture: Lab) -> None:
    place, replica = make_delta(fixture), fixture.target.home / "events"
    assert fixture.dump().code == 0 and fixture.load().code == 0
    append(replica, 100)
    theirs = commit(replica, 1).read_bytes()
    append(place, 1)
    assert fixture.dump(since=fixture.last).code == 0
    loaded = fixture.load()
    assert (loaded.code, loaded.error) == (6, "Refused"), loaded
    assert str(commit(replica, 1)) in loaded.message
    assert (ids(replica), commit(replica, 1).read_bytes()) == ([0, 100], theirs)
    assert [each["kind"] for each in verified(fixture).output["differences"]]
    assert fixture.load(fixture.last, "--overwrite").code == 0
    assert ids(replica) == [0, 1]
    kept = [path.read_bytes() for path in (fixture.target_cmroot / "files").rglob("*") if path.is_file()]
    assert theirs in kept


def test_a_replica_whose_last_version_names_missing_files_differs(fixture: Lab) -> None:
    """Both sides the same, and both unreadable: files that nobody has are no files that are equal."""
    place, replica = make_delta(fixture), fixture.target.home / "events"
    append(place, 1)
    assert fixture.dump().code == 0 and fixture.load().code == 0
    gone = next(replica.glob("*.parquet"))
    gone.unlink()
    (place / gone.name).unlink()
    found = verified(fixture)
    assert found.code == 4
    assert [(each["kind"], each["field"]) for each in found.output["differences"]] == [("file missing", gone.name)]


FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
COORDINATOR = {"delta.coordinatedCommits.commitCoordinator-preview": "dynamodb"}


@pytest.mark.parametrize(
    "action",
    [
        {"protocol": {**FEATURES, "writerFeatures": ["coordinatedCommits-preview"]}},
        {"protocol": {**FEATURES, "readerFeatures": ["catalogManaged"]}},
        {"protocol": {**FEATURES, "readerFeatures": ["catalogOwned-preview"]}},
        {"metaData": {"id": "5f", "configuration": COORDINATOR}},
    ],
)
@pytest.mark.parametrize("where", ["commit", "checkpoint"])
def test_a_delta_table_whose_commits_a_coordinator_has_is_left_out_by_name(
    fixture: Lab, action: dict[str, dict[str, Any]], where: str
) -> None:
    """The newest commits are in `_staged_commits` or `_commits`, in a number and order that the coordinator knows."""
    place = make_delta(fixture)
    if where == "commit":
        commit(place, 1).write_text(json.dumps(action) + "\n")
    else:
        fields = {key: pa.array([value]) for key, value in action.items()}
        if "metaData" in action:
            kind = pa.struct({"id": pa.string(), "configuration": pa.map_(pa.string(), pa.string())})
            fields = {"metaData": pa.array([{"id": "5f", "configuration": list(COORDINATOR.items())}], kind)}
        pq.write_table(pa.table(fields), commit(place, 0).with_suffix(".checkpoint.parquet"))
    (dumped, loaded), name = (fixture.dump(), fixture.load()), [f"{fixture.name}.events"]
    assert [(each.code, named(each)) for each in (dumped, loaded, verified(fixture))] == [(3, name)] * 3
    assert "coordinator" in dumped.output["not_replicated"][0]["reason"]
    assert fixture.target.metastore.table_names(fixture.name) == []


def test_a_delta_table_with_other_features_is_replicated(fixture: Lab) -> None:
    place = make_delta(fixture)
    (place / "_delta_log" / "_staged_commits").mkdir()  # as Spark leaves it with every table
    found = {**FEATURES, "writerFeatures": ["deletionVectors", "inCommitTimestamp", "domainMetadata"]}
    commit(place, 1).write_text(json.dumps({"protocol": found}) + "\n")
    assert (fixture.dump().code, fixture.load().code, verified(fixture).code) == (0, 0, 0)


@pytest.mark.parametrize("rest", ["", " " * (2 << 20)])
def test_iceberg_metadata_in_a_delta_table_is_named_as_long_as_it_names_the_source(fixture: Lab, rest: str) -> None:
    """Without a pointer in the metastore, its readers find it by its place, and would read the source."""
    place, replica = make_delta(fixture), fixture.target.home / "events"
    (place / "metadata").mkdir()
    pointer = place / "metadata" / "00001-5f.metadata.json"
    pointer.write_text(json.dumps({"format-version": 2, "location": f"file:{place}"}) + rest)
    dumped, loaded, found = fixture.dump(), fixture.load(), verified(fixture)
    for answer in (loaded, found):
        assert (answer.code, named(answer)) == (3, [f"{fixture.name}.events"])
        assert f"metadata/{pointer.name}" in answer.output["not_replicated"][0]["reason"]
    assert (dumped.code, ids(replica)) == (0, [0])

    append(place, 1)  # an increment without a file that names the source
    assert fixture.dump(since=fixture.last).code == 0
    assert named(fixture.load()) == named(verified(fixture)) == [f"{fixture.name}.events"]
    pointer.unlink()
    assert fixture.dump(since=fixture.last).code == 0
    loaded = fixture.load(None, "--max-share", "1")
    assert (loaded.code, named(loaded), verified(fixture).code, ids(replica)) == (0, [], 0, [0, 1])


# ---- replicas of such tables, and the choice to have them ---------------------------------------------------------


def test_one_who_asks_for_formats_as_they_are_gets_them_and_an_iceberg_view_stops_nobody(fixture: Lab) -> None:
    make_gaps(fixture)
    asked = ("--formats", "as-they-are")
    dumped, loaded = fixture.dump(*asked), fixture.load(None, *asked)
    assert [(each.code, named(each)) for each in (dumped, loaded)] == [(0, [])] * 2, loaded
    assert fixture.target.metastore.table_names(fixture.name) == ["acid", "hudi", "ice", "ice_view", "orders"]
    found = verified(fixture, *asked)
    assert [each for each in found.output["differences"] if each["field"] == "DO_NOT_UPDATE_STATS"] == []
    assert not [each for each in found.output["differences"] if each["object"].endswith((".ice", ".orders"))], (
        found.output
    )


def test_a_replica_that_an_earlier_release_made_is_different_and_stays_until_its_table_is_dropped(fixture: Lab) -> None:
    """A table of a format that metadata alone tells, and that was copied as it is."""
    fixture.source.table("orders", {"a": "1"})
    for name in ("lake", "other"):
        fixture.source.table(name, {"data": "rows"}, kind=EXTERNAL)
        fixture.source.alter(name, **PAIMON)
    asked = ("--formats", "as-they-are")
    assert fixture.dump(*asked).code == fixture.load(None, *asked).code == 0
    found = verified(fixture)
    differing = {each["object"] for each in found.output["differences"] if each["kind"] == "format"}
    assert found.code == 4
    assert differing == set(named(found)) == {f"{fixture.name}.{name}" for name in ("lake", "other")}
    fixture.source.write("lake", {"more": "rows"})
    fixture.source.alter("lake", note="x")
    assert fixture.dump(since=fixture.last).code == 3 and fixture.load().code == 3
    assert not (fixture.target.home / "lake" / "more").exists()
    marked = fixture.target.metastore.table(fixture.name, "lake").parameters
    assert "Paimon" in marked["replicator.left.out"]

    # an increment would not bring what earlier loads left out
    table = fixture.source.metastore.table(fixture.name, "lake")
    parameters = {key: value for key, value in table.parameters.items() if key not in PAIMON}
    fixture.source.metastore.alter_table(fixture.name, "lake", msgspec.structs.replace(table, parameters=parameters))
    fixture.source.alter("orders", note="x")
    fixture.dump(since=fixture.last)
    assert fixture.load().error == "BootstrapNeeded"
    fixture.dump()
    assert fixture.load().code == 3
    assert (fixture.target.home / "lake" / "more").exists()
    assert "replicator.left.out" not in fixture.target.metastore.table(fixture.name, "lake").parameters

    fixture.source.drop("other")
    assert fixture.dump(since=fixture.last).code == 0 and fixture.load().code == 0
    assert "other" not in fixture.target.metastore.table_names(fixture.name)


def test_a_policys_runs_checks_plans_and_drills_name_what_they_leave_out(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path, exclude="skipped")
    db = pair.db("a")
    db.table("orders", {"a": "1"})
    for name in ("lake", "skipped"):
        db.table(name, {"data": "rows"}, kind=EXTERNAL)
        db.alter(name, **PAIMON)
    gap = [f"{db.name}.lake"]
    config = ("--config", str(pair.config()))

    def asked(*arguments: str) -> Answer:
        return command(*config, *arguments)

    for arguments in (
        ("check", pair.name),
        ("plan", pair.name, "--out", str(tmp_path / "plan.json"), "--engine", "local"),
        ("apply", str(tmp_path / "plan.json"), "--engine", "local"),
        ("sync", pair.name, "--engine", "local"),
    ):
        answer = asked(*arguments)
        assert (answer.code, named(answer)) == (3, gap), (arguments, answer)
    assert pair.target.metastore.table_names(db.name) == ["orders"]
    idle = asked("sync", pair.name, "--engine", "local")
    assert (idle.code, idle.output["kind"], named(idle)) == (3, "nothing", gap)
    drill = asked("drill", pair.name, "--sample", "0")
    assert (drill.code, named(drill)) == (3, gap), drill

    pair.keys["formats"] = "as-they-are"
    pair.config()
    answer = asked("sync", pair.name, "--engine", "local")
    assert (answer.code, answer.output["kind"], named(answer)) == (0, "bootstrap", [])
    assert pair.target.metastore.table_names(db.name) == ["lake", "orders"]
    pair.keys["formats"] = "supported"
    pair.config()
    checked = asked("check", pair.name)
    health = [each["health"] for each in checked.output["findings"] if each["name"] == "formats"]
    assert (checked.code, health) == (3, ["warning", "critical"])


def test_a_restore_names_what_it_leaves_out_and_a_forced_one_drops_no_such_table(fixture: Lab) -> None:
    gaps = make_gaps(fixture)
    fixture.capture()
    event = fixture.source.metastore.current_event_id()
    arguments = (
        "restore",
        "--cmroot",
        str(fixture.cmroot),
        "--db",
        fixture.name,
        "--to",
        str(event),
        "--engine",
        "local",
        "--target",
        fixture.source_uri,
    )
    restored = command(*arguments, "--into", f"{fixture.name}_old")
    assert (restored.code, named(restored)) == (3, gaps), restored
    assert fixture.source.metastore.table_names(f"{fixture.name}_old") == ["orders"]
    fixture.source.table("later", {"data": "rows"}, kind=EXTERNAL)
    fixture.source.alter("later", **PAIMON)
    forced = command(*arguments, "--into", fixture.name, "--force")
    assert (forced.code, named(forced)) == (3, gaps), forced
    assert fixture.source.metastore.table_names(fixture.name) == ["acid", "hudi", "ice", "ice_view", "later", "orders"]
    assert (fixture.source.home / "ice" / "data").read_text() == "rows"


# ---- what properties name, and other differences ------------------------------------------------------------------


def test_a_file_of_another_property_that_no_load_copies_is_named_by_load_and_verify(fixture: Lab) -> None:
    db = fixture.source
    db.write("lib", {"rules.txt": "{}"})
    db.table("events", {"a": "1"})
    db.alter("events", rules=f"file:{db.home}/lib/rules.txt", doc="file:/elsewhere/doc")
    assert fixture.dump().code == 0
    loaded = fixture.load()
    assert (loaded.code, named(loaded)) == (3, [f"{fixture.name}.events"]), loaded
    reasons = " ".join(each["reason"] for each in loaded.output["not_replicated"])
    assert "rules.txt" in reasons and "elsewhere" not in reasons
    found = verified(fixture)
    assert found.code == 4
    assert [(each["object"], each["kind"], each["field"]) for each in found.output["differences"]] == [
        (f"{fixture.name}.events", "file missing", "rules")
    ]
    fixture.target.write("lib", {"rules.txt": "{}"})
    assert verified(fixture).code == 0


def test_column_statistics_that_were_deleted_at_the_source_go(fixture: Lab) -> None:
    db = fixture.source
    from hmsclient.genthrift.hive_metastore import ttypes

    db.table("t", {"a": "1"})

    def columns(side: PlainDatabase) -> list[str]:
        found = side.metastore.table_statistics(side.name, "t", ["a", "b"])
        return sorted(each.column for each in found.columns) if found else []

    data = ttypes.ColumnStatisticsData(
        longStats=ttypes.LongColumnStatsData(lowValue=1, highValue=9, numNulls=0, numDVs=3)
    )
    for column in ("a", "b"):
        counted = ColumnStatistic(column, "int", struct_to_tjson(data))
        db.metastore.set_table_statistics(Statistics(db.name, "t", None, (counted,), 1))
    fixture.dump()
    assert fixture.load().code == 0 and columns(fixture.target) == ["a", "b"]
    db.metastore.drop_statistics(db.name, "t", "", "b", "hive")
    fixture.dump(since=fixture.last)
    assert fixture.load().code == 0 and columns(fixture.target) == ["a"]
    assert verified(fixture).code == 0
    db.metastore.drop_statistics(db.name, "t", "", "a", "hive")
    fixture.dump(since=fixture.last)
    assert fixture.load().code == 0 and columns(fixture.target) == []
    assert verified(fixture).code == 0


def test_overwrite_covers_a_rename_that_meets_somebody_elses_table(fixture: Lab) -> None:
    fixture.source.table("t", {"a": "1"})
    assert fixture.dump().code == fixture.load().code == 0
    fixture.source.rename("t", "t2")
    fixture.target.table("t2", {"theirs": "9"})
    assert fixture.dump(since=fixture.last).code == 0
    refused = fixture.load()
    assert refused.code == 6 and f"{fixture.name}.t2" in refused.message and "(" not in refused.message, refused
    assert fixture.load(fixture.last, "--overwrite").code == 0
    assert fixture.target.metastore.table_names(fixture.name) == ["t2"]
    assert sorted(path.name for path in (fixture.target.home / "t2").iterdir()) == ["a"]
    assert verified(fixture).code == 0


def test_names_of_databases_may_be_written_in_any_case(fixture: Lab) -> None:
    fixture.source.table("t", {"a": "1"})
    assert fixture.dump().code == 0
    renamed = ("--rename-db", f"{fixture.name.upper()}={fixture.name}_Copy")
    assert fixture.load(None, *renamed).code == 0
    assert fixture.target.metastore.table_names(f"{fixture.name}_copy") == ["t"]
    assert verified(fixture, *renamed).code == 0


# ---- Delta tables with Iceberg metadata ---------------------------------------------------------------------------


class Uniform:
    """A Delta table, and Iceberg metadata beside its log that lists the same files, as UniForm leaves them: `delta-rs`
    writes the rows, and PyIceberg the metadata, which another table's pointer leads to."""

    def __init__(self, fixture: Lab) -> None:
        self.lab, self.place = fixture, make_delta(fixture)
        self._known = set[str]()
        schema = pa.schema([("id", pa.int64())])
        at = f"file://{self.place}"
        fixture.db("other")
        self.iceberg = catalog(fixture.source_uri).create_table(f"{fixture.db('other').name}.t", schema, location=at)
        self.convert()

    def append(self, *ids: int) -> None:
        append(self.place, *ids)
        self.convert()
        self.point()

    def convert(self) -> None:
        files = {f"file://{path}" for path in self.place.glob("*.parquet")}
        self.iceberg.add_files(sorted(files - self._known))
        self._known = files

    def point(self) -> None:
        pointer = self.iceberg.metadata_location
        self.lab.source.alter("events", table_type="ICEBERG", metadata_location=pointer)

    def replicated(self) -> None:
        before = self.lab.last if self.lab.dumps else None
        assert [each.code for each in (self.lab.dump(since=before), self.lab.load(), verified(self.lab))] == [0] * 3

    def shown(self) -> list[list[int]]:
        """The replica's rows as both readers see them, without the source."""
        aside = self.place.rename(self.place.with_name("aside"))
        table = self.lab.target.metastore.table(self.lab.name, "events")
        iceberg = StaticTable.from_metadata(table.parameters["metadata_location"])
        found = [ids(self.lab.target.home / "events"), sorted(iceberg.scan().to_arrow()["id"].to_pylist())]
        aside.rename(self.place)
        assert naming_source(self.lab) == []
        return found


def test_iceberg_metadata_that_a_delta_table_points_to_is_translated(fixture: Lab) -> None:
    uniform = Uniform(fixture)
    assert [fixture.dump().code, fixture.load().code] == [0, 3], "without its pointer, its metadata is copied"
    uniform.point()
    uniform.replicated()
    assert uniform.shown() == [[0], [0]]
    uniform.append(1, 2)
    append(uniform.place, 3)  # Delta's commit precedes its conversion
    uniform.replicated()
    assert uniform.shown() == [[0, 1, 2, 3], [0, 1, 2]]
    uniform.convert()
    uniform.point()
    uniform.replicated()
    assert uniform.shown() == [[0, 1, 2, 3]] * 2

    list_of_files = next((fixture.target.home / "events/metadata").glob("snap-*.avro"))
    kept = list_of_files.read_bytes()
    list_of_files.unlink()
    assert verified(fixture).code == 4
    list_of_files.write_bytes(kept)

    there = fixture.target.metastore.table(fixture.name, "events")
    other = {**there.parameters, "metadata_location": f"{there.location}/metadata/9-other.metadata.json"}
    fixture.target.metastore.alter_table(fixture.name, "events", msgspec.structs.replace(there, parameters=other))
    uniform.append(4)
    assert fixture.dump(since=fixture.last).code == 0 and fixture.load().code == 6, "another program has committed"
    assert (fixture.load(None, "--overwrite").code, verified(fixture).code) == (0, 0)
    assert uniform.shown() == [[0, 1, 2, 3, 4]] * 2


def test_iceberg_metadata_of_a_delta_table_that_names_files_elsewhere_is_a_gap(fixture: Lab, tmp_path: Path) -> None:
    uniform = Uniform(fixture)
    uniform.point()
    place = tmp_path / "elsewhere.parquet"
    pq.write_table(pa.table({"id": pa.array([9], pa.int64())}), place)
    uniform.iceberg.add_files([f"file://{place}"])
    fixture.source.alter("events", metadata_location=uniform.iceberg.metadata_location)
    dumped, loaded, found = fixture.dump(), fixture.load(), verified(fixture)
    for answer in (dumped, loaded, found):
        assert (answer.code, named(answer)) == (3, [f"{fixture.name}.events"])
        assert "elsewhere.parquet is outside of its location" in answer.output["not_replicated"][0]["reason"]


@pytest.mark.parametrize("into", ["_then", ""])
def test_a_delta_table_with_iceberg_metadata_is_restored(fixture: Lab, into: str) -> None:
    """Beside the live table, and over it, which has states that the restore ends."""
    uniform, into = Uniform(fixture), f"{fixture.name}{into}"
    uniform.point()
    event = fixture.dump().output["to_event"]
    uniform.append(1)
    assert fixture.capture().code == 0
    catalog(fixture.source_uri).drop_table(f"{fixture.db('other').name}.t")  # without its files
    arguments = ["restore", "--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event)]
    arguments += ["--into", into, "--force", "--target", fixture.source_uri, "--engine", "local"]
    assert (restored := command(*arguments)).code == 0, restored
    table = fixture.source.metastore.table(into, "events")
    place = Path(urlsplit(str(table.location)).path)
    iceberg = StaticTable.from_metadata(table.parameters["metadata_location"])
    assert [ids(place), iceberg.scan().to_arrow()["id"].to_pylist()] == [[0], [0]]
    assert urlsplit(iceberg.metadata.location).path == str(place)


# ---- what did not change ------------------------------------------------------------------------------------------


def test_logs_are_judged_again_only_after_a_change(
    fixture: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = list[str]()

    known = left_out.KnownTable

    def judging_one(manifest: Manifest, root: str, table: Table) -> left_out.KnownTable:
        judged.append(table.name)
        return known(manifest, root, table)

    monkeypatch.setattr(left_out, "KnownTable", judging_one)
    root = create_or_open(str(tmp_path / "in-process"))
    place = make_delta(fixture)
    at = f"file://{fixture.source.home}/ice"
    schema = pa.schema([("id", pa.int64())])
    iceberg = catalog(fixture.source_uri).create_table(f"{fixture.name}.ice", schema, location=at)
    fixture.source.table("hudi", {"base.parquet": "rows"}, kind=EXTERNAL)
    fixture.source.alter("hudi", **HUDI)

    def captured() -> tuple[set[str], dict[str, str]]:
        judged.clear()
        settings = CaptureSettings([fixture.name])
        formats = capture(
            fixture.source.metastore,
            root,
            settings,
            Runtime(AutoEngine(LocalEngine(1), LocalEngine(1), choice="local")),
        ).formats
        return set(judged), {name.partition(".")[2]: why for name, why in formats.items()}

    judging, found = captured()
    assert (judging, list(found)) == ({"events", "ice", "hudi"}, ["hudi"])
    assert captured() == ({"hudi"}, found), "one with a problem each time: its bytes may be there now"
    iceberg.append(pa.table({"id": pa.array([1], pa.int64())}))
    assert captured() == ({"hudi", "ice"}, found)
    commit(place, 1).write_text(json.dumps({"protocol": {"writerFeatures": ["catalogManaged"]}}) + "\n")
    judging, found = captured()
    assert (judging, set(found)) == ({"hudi", "events"}, {"hudi", "events"}), found
