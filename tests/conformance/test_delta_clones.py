"""Delta tables whose log names files of other tables by absolute paths, as shallow clones do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Answer, command
from lab import Lab
from plain_tables import PlainDatabase

from cmroot.store.delta import named_files
from replicator.core.model import EXTERNAL
from replicator.metastore.embedded.running import Running


def make_table(db: PlainDatabase, name: str, *ids: int) -> Path:
    """A Delta table, registered as Spark does, with a file for each row; returns its directory."""
    place = db.home / name
    db.table(name, kind=EXTERNAL)
    db.alter(name, **{"spark.sql.sources.provider": "delta"})
    for each in ids:
        deltalake.write_deltalake(str(place), pa.table({"id": pa.array([each], pa.int64())}), mode="append")
    return place


def log_of(place: Path) -> Path:
    return place / "_delta_log"


def commit(place: Path, version: int, *actions: Mapping[str, Any]) -> Path:
    log_of(place).mkdir(parents=True, exist_ok=True)
    path = log_of(place) / f"{version:020}.json"
    path.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in actions))
    return path


def actions_of(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(log_of(place).glob("*.json")) for line in path.read_text().splitlines()]


def make_clone(db: PlainDatabase, name: str, *sources: Path, scheme: str = "file:") -> Path:
    """A shallow clone of tables, as Spark writes it."""
    db.table(name, kind=EXTERNAL)
    db.alter(name, **{"spark.sql.sources.provider": "delta"})
    place, known = db.home / name, [each for source in sources for each in actions_of(source)]
    first = [next(each for each in known if kind in each) for kind in ("protocol", "metaData")]
    adds = [
        {"add": each["add"] | {"path": f"{scheme}{source}/{each['add']['path']}"}}
        for source in sources
        for each in actions_of(source)
        if "add" in each
    ]
    commit(place, 0, {"commitInfo": {"operation": "CLONE"}}, *first, *adds)
    return place


def ids(place: Path) -> list[int]:
    """The rows of the last version, by the files that its log names."""
    names = [str(path.relative_to(log_of(place))) for path in log_of(place).rglob("*") if path.is_file()]
    named = named_files(names, lambda name: (log_of(place) / name).open("rb"))
    paths = (each.removeprefix("file://").removeprefix("file:") for each in named)
    data = [place / path for path in paths if not path.endswith(".bin")]
    return sorted(pa.concat_tables([pq.read_table(path) for path in data])["id"].to_pylist())


def names(place: Path) -> list[str]:
    """All paths in the commits of a log."""
    return [each["path"] for action in actions_of(place) for kind, each in action.items() if kind in ("add", "remove")]


def log_bytes(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log_of(place).rglob("*") if path.is_file()}


def gaps(answer: Answer) -> dict[str, str]:
    return {each["object"]: each["reason"] for each in answer.output["not_replicated"]}


def verified(fixture: Lab, *more: str) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    return command("verify", *sides, "--engine", "local", *more)


def differences(answer: Answer) -> list[tuple[str, str]]:
    return [(each["kind"], each["field"]) for each in answer.output["differences"]]


@pytest.mark.parametrize("scheme", ["file:", "file://", ""])
def test_a_clone_names_the_replica_of_its_table_and_nothing_else_changes(fixture: Lab, scheme: str) -> None:
    table = make_table(fixture.source, "events", 0, 1)
    clone, target = make_clone(fixture.source, "clone", table, scheme=scheme), fixture.target.home
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    here, there = actions_of(clone), actions_of(target / "clone")
    assert names(target / "clone") == [each.replace(str(fixture.source.home), str(target)) for each in names(clone)]
    for action in (*here, *there):
        action.get("add", {}).pop("path", None)
    assert here == there
    assert log_bytes(target / "events") == log_bytes(table)
    assert verified(fixture).code == 0
    with fixture.without_source():
        assert ids(target / "clone") == [0, 1]

    # an increment in which the clone deletes a file of its table, and gets a row of its own
    gone = names(clone)[0]
    deltalake.write_deltalake(str(clone / "aside"), pa.table({"id": pa.array([7], pa.int64())}))
    (own,) = (clone / "aside").glob("*.parquet")
    own.rename(clone / "own.parquet")
    add = {"path": "own.parquet", "size": 1, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    commit(clone, 1, {"remove": {"path": gone, "dataChange": True}}, {"add": add})
    assert (fixture.dump(since=fixture.last).code, fixture.load().code) == (0, 0)
    assert verified(fixture).code == 0
    with fixture.without_source():
        assert ids(target / "clone") == [1, 7]


def test_a_repeated_load_takes_its_own_translation_for_no_commit_of_another_writer(fixture: Lab) -> None:
    table = make_table(fixture.source, "events", 0)
    clone, replica = make_clone(fixture.source, "clone", table), fixture.target.home / "clone"
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    commit(clone, 1, *actions_of(clone)[-1:])
    assert fixture.dump(since=fixture.last).code == 0
    mark = fixture.target.metastore.database(fixture.name).parameters
    assert fixture.load().code == 0
    before = log_bytes(replica)
    database = fixture.target.metastore.database(fixture.name)
    fixture.target.metastore.alter_database(fixture.name, msgspec.structs.replace(database, parameters=mark))
    assert fixture.load().code == 0  # as after a kill before the checkpoint
    assert log_bytes(replica) == before
    fixture.target.metastore.alter_database(fixture.name, msgspec.structs.replace(database, parameters=mark))
    commit(replica, 1, *actions_of(replica)[-1:], {"commitInfo": {}})
    refused = fixture.load()
    assert (refused.code, str(log_of(replica)) in refused.message) == (6, True)


def make_checkpoint(place: Path, version: int, kind: str) -> None:
    """A checkpoint of all adds of a log: classic, in parts, or of version 2 with sidecars."""
    actions = actions_of(place)
    rows = [{key: each[key]} for each in actions for key in ("add", "protocol", "metaData") if key in each]
    begin, adds = log_of(place) / f"{version:020}.checkpoint", [row for row in rows if "add" in row]
    others = [row for row in rows if "add" not in row]
    if kind == "classic":
        write_rows(begin.with_name(f"{begin.name}.parquet"), rows)
    elif kind == "parts":
        for part, some in enumerate((others, adds), 1):
            write_rows(begin.with_name(f"{begin.name}.{part:010}.{2:010}.parquet"), some)
    else:
        (log_of(place) / "_sidecars").mkdir()
        sidecar = log_of(place) / "_sidecars" / "5f.parquet"
        write_rows(sidecar, adds)
        named = f"file:{sidecar}" if kind.startswith("absolute") else sidecar.name
        about = {"path": named, "sizeInBytes": sidecar.stat().st_size, "modificationTime": 0}
        top = [*others, {"checkpointMetadata": {"version": version}}, {"sidecar": about}]
        name = f"{begin.name}.3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
        if kind.endswith("json"):
            begin.with_name(f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in top))
        else:
            write_rows(begin.with_name(f"{name}.parquet"), top)
    size, checkpoint = sum(path.stat().st_size for path in begin.parent.glob(f"{begin.name}*")), {"path": "x"}
    about = {"version": version, "size": len(rows), "sizeInBytes": size, "v2Checkpoint": checkpoint, "checksum": "5f"}
    (log_of(place) / "_last_checkpoint").write_text(json.dumps(about))
    for old in range(version + 1):
        (log_of(place) / f"{old:020}.json").unlink()


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """A checkpoint with times as Spark writes them (INT96), and paths that are required."""
    vector = pa.struct({"storageType": pa.string(), "pathOrInlineDv": pa.string()})
    values = pa.map_(pa.string(), pa.string())
    add = [
        pa.field("path", pa.string(), nullable=False),
        pa.field("partitionValues", values),
        pa.field("size", pa.int64()),
    ]
    add += [pa.field("deletionVector", vector), pa.field("stats_parsed", pa.struct({"at": pa.timestamp("us")}))]
    at = {"stats_parsed": {"at": datetime(2026, 1, 2)}}
    columns = {"add": pa.array([row["add"] | at if "add" in row else None for row in rows], pa.struct(add))}
    for name in ("protocol", "metaData", "checkpointMetadata", "sidecar"):
        given = [row.get(name) for row in rows]
        columns |= {name: pa.array([each and without_empty(each) for each in given])} if any(given) else {}
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True, store_schema=False)


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    nested = ((key, without_empty(value) if isinstance(value, dict) else value) for key, value in values.items())
    return {key: value for key, value in nested if value not in ({}, [])}


@pytest.mark.parametrize("kind", ["classic", "parts", "json", "parquet", "absolute json", "absolute parquet"])
def test_checkpoints_and_sidecars_of_a_clone_are_translated(fixture: Lab, kind: str) -> None:
    table = make_table(fixture.source, "events", 0, 1)
    clone, replica = make_clone(fixture.source, "clone", table), fixture.target.home / "clone"
    pq.write_table(pa.table({"id": pa.array([9], pa.int64())}), clone / "own.parquet")
    vector = {"storageType": "p", "pathOrInlineDv": f"file:{table}/deletion_vector_5f.bin", "sizeInBytes": 1}
    (table / "deletion_vector_5f.bin").write_bytes(b"rows")
    add = {"path": "own.parquet", "size": 1, "partitionValues": {}, "deletionVector": vector}
    commit(clone, 1, {"add": add})
    make_checkpoint(clone, 1, kind)
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    found = verified(fixture)
    assert found.code == 0, found
    with fixture.without_source():
        assert ids(replica) == [0, 1, 9]
    for path in log_of(replica).rglob("*"):
        assert path.is_dir() or str(fixture.source.home).encode() not in path.read_bytes()
    for path in log_of(replica).rglob("*.parquet"):
        here = log_of(clone) / path.relative_to(log_of(replica))
        one, other = (pq.ParquetFile(each) for each in (here, path))
        assert str(one.schema).partition(">")[2] == str(other.schema).partition(">")[2]
    (last,) = log_of(replica).glob("_last_checkpoint")
    assert json.loads(last.read_text()) == {"version": 1, "size": 5}
    for path in log_of(replica).glob("*.json"):
        (sidecar,) = [each["sidecar"] for each in map(json.loads, path.read_text().splitlines()) if "sidecar" in each]
        assert sidecar["sizeInBytes"] == (log_of(replica) / "_sidecars" / "5f.parquet").stat().st_size


def test_a_clone_of_a_table_that_the_load_does_not_have_is_left_out_by_name(fixture: Lab) -> None:
    elsewhere, moved = make_table(fixture.source, "elsewhere", 0), fixture.here / "moved"
    shutil.copytree(elsewhere, moved)
    fixture.source.drop("elsewhere")
    table = make_table(fixture.source, "events", 1)
    make_clone(fixture.source, "clone", table, moved)
    make_clone(fixture.source, "other", table)
    name, path = f"{fixture.name}.clone", names(fixture.source.home / "clone")[-1]
    dumped, loaded, found = fixture.dump(), fixture.load(), verified(fixture)
    for answer in (dumped, loaded, found):
        assert (answer.code, list(gaps(answer))) == (3, [name])
        assert path.removeprefix("file:") in gaps(answer)[name]
    assert fixture.target.metastore.table_names(fixture.name) == ["events", "other"]

    # where a mapping says that it is, it is named there
    (there := fixture.here / "there").mkdir()
    for each in moved.glob("*.parquet"):
        (there / each.name).write_bytes(each.read_bytes())
    mapped = ("--map-location", f"{moved}={there}")
    fixture.source.alter("clone", note="x")
    dumped = fixture.dump()
    loaded = fixture.load(None, *mapped, "--overwrite")
    assert (dumped.code, loaded.code, gaps(loaded)) == (3, 0, {}), loaded
    found = verified(fixture, *mapped)
    assert found.code == 0, found
    with fixture.without_source():
        moved.rename(fixture.here / "away")
        assert ids(fixture.target.home / "clone") == [0, 1]


def test_a_clone_is_left_out_with_its_table(fixture: Lab) -> None:
    """The table is excluded, or names files that no replicated table has."""
    table = make_table(fixture.source, "events", 0)
    make_clone(fixture.source, "clone", table)
    name = f"{fixture.name}.clone"
    dumped = fixture.dump("--exclude", "events")
    assert (dumped.code, list(gaps(dumped))) == (3, [name])
    (fixture.here / "x.parquet").write_bytes(b"rows")
    commit(table, 1, {"add": {"path": f"file:{fixture.here}/x.parquet"}})
    dumped = fixture.dump()
    assert (dumped.code, list(gaps(dumped))) == (3, [name, f"{fixture.name}.events"])


def test_verify_reads_the_files_of_other_tables_and_finds_paths_that_are_not_translated(fixture: Lab) -> None:
    table = make_table(fixture.source, "events", 0, 1)
    clone = make_clone(fixture.source, "clone", table)
    assert (fixture.dump().code, fixture.load().code, verified(fixture).code) == (0, 0, 0)
    replica = fixture.target.home / "clone"
    log = log_of(replica) / f"{0:020}.json"
    translated = log.read_bytes()
    log.write_bytes((log_of(clone) / log.name).read_bytes())
    for level in ("size", "checksum"):
        found = differences(verified(fixture, "--level", level))
        paths = [("names the source", each) for each in sorted(names(clone))]
        assert found == [*paths, ("file content", f"_delta_log/{log.name}")]
    log.write_bytes(translated)

    log.write_bytes((log_of(clone) / log.name).read_bytes())
    roots = ["--cmroot", str(fixture.cmroot), "--target-cmroot", str(fixture.target_cmroot)]
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    assert command("repair", *sides, *roots, "--engine", "local").code == 0
    assert log.read_bytes() == translated

    (path := fixture.target.home / "events" / Path(names(clone)[0]).name).unlink()
    (table / path.name).unlink()
    found = differences(verified(fixture, "--level", "size"))
    assert ("file missing", f"file:{path}") in found


def test_a_clone_of_a_table_of_another_database_is_replicated_by_one_policy(pair: Lab) -> None:
    table = make_table(pair.db("a"), "events", 0, 1)
    make_clone(pair.db("b"), "clone", table)
    run = pair.sync()
    assert run.not_replicated == [], run
    assert ids(pair.replica("b").home / "clone") == [0, 1]
    deltalake.write_deltalake(str(table), pa.table({"id": pa.array([2], pa.int64())}), mode="overwrite")
    pair.sync()
    assert ids(pair.replica("b").home / "clone") == [0, 1]


def test_a_clone_comes_as_soon_as_its_table_does(pair: Lab) -> None:
    """Without a change of the clone."""
    table, name = make_table(pair.db(), "events", 0), pair.db().name
    make_clone(pair.db(), "clone", table)
    pair.db().metastore.drop_table(name, "events")  # its files remain
    for _ in range(2):
        run = pair.sync()
        assert [each.object for each in run.not_replicated] == [f"{name}.clone"]
    make_table(pair.db(), "events")
    for _ in range(2):
        run = pair.sync()
        assert run.not_replicated == []
        assert ids(pair.replica().home / "clone") == [0]


def test_loads_that_move_tables_leave_out_their_clones(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path, publish="snapshot")
    make_clone(pair.db(), "clone", make_table(pair.db(), "events", 0))
    for _ in range(2):  # the second run has nothing to load
        run = pair.sync()
        assert [each.object for each in run.not_replicated] == [f"{pair.db().name}.clone"]
        assert "snapshots" in run.not_replicated[0].reason
    assert pair.replica().metastore.table_names(pair.replica().name) == ["events"]


def test_a_restored_clone_names_the_restored_table(fixture: Lab) -> None:
    table = make_table(fixture.source, "events", 0)
    clone = make_clone(fixture.source, "clone", table)
    event = fixture.dump().output["to_event"]
    into = f"{fixture.name}_old"
    arguments = ["restore", "--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event), "--into", into]
    restored = command(*arguments, "--target", fixture.source_uri, "--engine", "local")
    assert restored.code == 0, restored
    home = fixture.source.home.with_name(f"{into}.db")
    assert names(home / "clone") == [each.replace(str(fixture.source.home), str(home)) for each in names(clone)]
    alone = command(*arguments[:-1], f"{into}2", "--table", "clone", "--target", fixture.source_uri)
    assert (alone.code, list(gaps(alone))) == (3, [f"{fixture.name}.clone"])


def test_a_damaged_file_of_a_clones_log_is_copied_as_it_is(fixture: Lab) -> None:
    clone = make_clone(fixture.source, "clone", make_table(fixture.source, "events", 0))
    (log_of(clone) / f"{0:020}.crc").write_text("no JSON")
    assert (fixture.dump().code, fixture.load().code, verified(fixture).code) == (0, 0, 0)
    assert (log_of(fixture.target.home / "clone") / f"{0:020}.crc").read_text() == "no JSON"


def test_a_table_that_begins_to_name_files_of_another_is_translated_from_then_on(fixture: Lab) -> None:
    table, place = make_table(fixture.source, "events", 0), make_table(fixture.source, "own", *range(3))
    deltalake.DeltaTable(str(place)).create_checkpoint()
    last = log_of(place) / "_last_checkpoint"
    last.write_text(json.dumps(json.loads(last.read_text()) | {"checksum": "5f"}))
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    (add,) = [each for each in actions_of(table) if "add" in each]
    commit(place, 3, {"add": add["add"] | {"path": f"file:{table}/{add['add']['path']}"}})
    assert (fixture.dump(since=fixture.last).code, fixture.load().code) == (0, 0)
    found = verified(fixture)
    assert (found.code, differences(found)) == (0, [])
    with fixture.without_source():
        assert ids(fixture.target.home / "own") == [0, 0, 1, 2]


@pytest.mark.parametrize("level", ["size", "checksum"])
def test_places_of_equal_length_are_compared_too(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory, level: str
) -> None:
    """Then translated files have the size of the source's."""
    base, wanted = tmp_path_factory.getbasetemp(), len(str(source_metastore.warehouse))
    warehouse = base / (level[0] * (wanted - len(str(base)) - 1))
    lab = Lab(source_metastore, target_metastore, tmp_path_factory.mktemp("equal"), warehouse=warehouse)
    lab.source.create()
    clone = make_clone(lab.source, "clone", make_table(lab.source, "events", 0))
    assert (lab.dump().code, lab.load().code, verified(lab, "--level", level).code) == (0, 0, 0)
    log, here = log_of(lab.target.home / "clone") / f"{0:020}.json", log_of(clone) / f"{0:020}.json"
    assert len(log.read_bytes()) == len(here.read_bytes()) and log.read_bytes() != here.read_bytes()
    log.write_bytes(here.read_bytes())
    assert verified(lab, "--level", level).code == 4


def test_a_clone_of_an_excluded_table_is_named_by_each_run(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path, exclude="events")
    make_clone(pair.db(), "clone", make_table(pair.db(), "events", 0))
    for _ in range(3):
        run = pair.sync()
        assert [each.object for each in run.not_replicated] == [f"{pair.db().name}.clone"]
    assert pair.replica().metastore.table_names(pair.replica().name) == []
