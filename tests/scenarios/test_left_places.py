"""What a table or partition of a replica leaves for another location goes to `$cmroot`, but for what others have."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from command_line import Answer, command
from faults import Fault, run_with
from lab import Lab
from plain_tables import KEYS, PlainDatabase
from purges import DESCRIPTOR, Warehouse

from replicator.core.model import EXTERNAL
from replicator.metastore.embedded.running import Running

OLD = b"rows of before"


def sync(pair: Lab, code: int = 0) -> dict[str, object]:
    answer = command("--config", str(pair.config()), "sync", pair.name)
    assert answer.code == code, answer
    return answer.output


def stays(pair: Lab, *tables: str) -> list[str]:
    """Of the next run, which must name these tables: why their files stay."""
    output = sync(pair, 3)
    named = output["not_replicated"]
    assert isinstance(named, list) and output["status"] == "incomplete"
    assert [each["object"] for each in named] == [f"{pair.name}_{table}" for table in tables], output
    return [each["reason"] for each in named]


def relocate(db: PlainDatabase, table: str, place: str, files: dict[str, str]) -> None:
    """What a job does that writes a new directory and points the table at it."""
    db.write(place, files)
    there = db.metastore.table(db.name, table)
    assert there.storage
    storage = msgspec.structs.replace(there.storage, location=f"file:{db.home / place}")
    db.metastore.alter_table(db.name, table, msgspec.structs.replace(there, storage=storage))


def relocate_partition(db: PlainDatabase, table: str, value: str, place: str) -> None:
    db.write(place, {"one": "rows of now"})
    (there,) = next(iter(db.metastore.partitions(db.name, table, [f"p={value}"])))
    assert there.storage
    storage = msgspec.structs.replace(there.storage, location=f"file:{db.home / place}")
    db.metastore.alter_partitions(db.name, table, [msgspec.structs.replace(there, storage=storage)])


def show(db: PlainDatabase, name: str, place: Path) -> None:
    """A table of somebody's own at a place."""
    table = db.metastore.table(db.name, "t")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{place}")
    db.metastore.create_table(
        msgspec.structs.replace(table, name=name, kind=EXTERNAL, parameters={"EXTERNAL": "TRUE"}, storage=storage)
    )


def outside_root(pair: Lab, text: bytes = OLD) -> set[str]:
    """Files of the replica's disk that hold a text, those of its `$cmroot` left out."""
    disk, root = pair.here / "target", Path(pair.keys["target_cmroot"])
    found = (path for path in disk.rglob("*") if path.is_file() and not path.is_relative_to(root))
    return {str(path.relative_to(disk)) for path in found if text in path.read_bytes()}


def made_by_purges(pair: Lab) -> set[Path]:
    """Directories that purges have put beside others, on the replica's disk, empty ones too."""
    return set((pair.here / "target").rglob("_purge-*"))


def kept(pair: Lab, text: bytes = OLD) -> int:
    files = (Path(pair.keys["target_cmroot"]) / "files").rglob("*")
    return sum(text in path.read_bytes() for path in files if path.is_file())


def test_a_purge_leaves_no_erased_row_on_the_replicas_disk(pair: Lab, warehouse: Warehouse) -> None:
    db = f"{pair.name}_a"
    columns, rows = "(id BIGINT, v STRING)", "SELECT id, concat('member-of-the-club-', id)"
    stored = f"ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})"
    warehouse.sql(
        f"CREATE DATABASE {db} LOCATION '{pair.here}/source/{db}.db'",
        f"CREATE TABLE {db}.managed {columns} {stored}",
        f"CREATE EXTERNAL TABLE {db}.outer {columns} {stored} LOCATION '{pair.here}/far/outer'",
        f"CREATE EXTERNAL TABLE {db}.days {columns} PARTITIONED BY (k INT) {stored} LOCATION '{pair.here}/far/days'",
        *(f"INSERT INTO {db}.{table} {rows} FROM range(0, 200, 1, 2)" for table in ("managed", "outer")),
        f"INSERT INTO {db}.days {rows}, int(id DIV 100) FROM range(0, 200, 1, 2)",
    )
    sync(pair)
    erased = b"member-of-the-club-40"
    assert len(outside_root(pair, erased)) == 3

    def purge() -> Answer:
        return command(
            "purge",
            "run",
            "--metastore",
            pair.source_uri,
            "--cmroot",
            pair.keys["cmroot"],
            "--ids",
            warehouse.ids,
            "--table-whitelist",
            db,
            "--field-path",
            "privacy.column",
            "--master",
            "local[2]",
        )

    purged = purge()
    assert (purged.code, purged.output["rows_erased"]) == (0, 30)
    sync(pair)
    assert outside_root(pair, erased) == set()
    assert kept(pair, erased) and len(outside_root(pair, b"member-of-the-club-41")) == 3
    assert made_by_purges(pair) == set()
    warehouse.sql(*(f"INSERT INTO {db}.{table} {rows} FROM range(0, 200, 1, 2)" for table in ("managed", "outer")))
    warehouse.sql(f"INSERT INTO {db}.days {rows}, int(id DIV 100) FROM range(0, 200, 1, 2)")
    sync(pair)
    assert purge().code == 0
    sync(pair)
    assert outside_root(pair, erased) == set()
    assert made_by_purges(pair) == set()


@pytest.mark.parametrize("kind", ["MANAGED_TABLE", EXTERNAL])
@pytest.mark.parametrize("place", ["new", "t/new", "."])
def test_what_a_table_leaves_is_recycled(pair: Lab, kind: str, place: str) -> None:
    a = pair.db("a")
    a.table("t", {"one": OLD.decode(), "two": OLD.decode() + " two"}, kind=kind)
    sync(pair)
    relocate(a, "t", f"{'' if place == '.' else place + '/'}v2", {"one": "rows of now"})
    planned = command("--config", str(pair.config()), "plan", pair.name, "--out", str(pair.here / "plan"))
    sync(pair)
    pair.are_same()
    assert outside_root(pair) == set() and kept(pair) == 2
    assert "left for another location" in str(planned.output), planned


def test_what_others_have_in_a_left_directory_stays(pair: Lab) -> None:
    a, replica = pair.db("a"), pair.replica("a")
    a.table("t", {"one": OLD.decode()})
    sync(pair)
    replica.write("t/own", {"mine": "own"})
    table = replica.metastore.table(replica.name, "t")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{replica.home}/t/own")
    own = msgspec.structs.replace(table, name="own", parameters={}, storage=storage)
    replica.metastore.create_table(own)
    relocate(a, "t", "new", {"one": "rows of now"})
    sync(pair)
    assert outside_root(pair) == set()
    assert (replica.home / "t" / "own" / "mine").read_text() == "own"


def test_a_directory_that_another_table_shows_is_left_and_told(pair: Lab) -> None:
    a, replica = pair.db("a"), pair.replica("a")
    a.table("t", {"one": OLD.decode()})
    sync(pair)
    show(replica, "own", replica.home / "t")
    relocate(a, "t", "new", {"one": "rows of now"})
    (why,) = stays(pair, "a.t")
    assert outside_root(pair) == {f"{replica.home.name}/t/one"}
    assert str(replica.home / "t") in why and "own also uses them" in why


def test_what_another_replica_of_the_source_shows_is_no_gap(pair: Lab) -> None:
    a = pair.db("a")
    a.table("t", {"one": OLD.decode()})
    show(a, "own", a.home / "t")
    sync(pair)
    relocate(a, "t", "new", {"one": "rows of now"})
    run = sync(pair)
    pair.are_same()
    assert any("own also uses them" in str(text) for text in run["warnings"]), run["warnings"]


def test_a_dropped_table_whose_files_another_table_shows_is_named(pair: Lab) -> None:
    a, replica = pair.db("a"), pair.replica("a")
    a.table("t", {"one": OLD.decode()})
    a.partitioned("days", {"1": {"one": OLD.decode()}, "2": {"one": "stays"}})
    sync(pair)
    show(replica, "own_t", replica.home / "t")
    show(replica, "own_days", replica.home / "days" / "p=1")
    a.metastore.drop_table(a.name, "t")
    a.metastore.drop_partitions(a.name, "days", ["p=1"])
    days, whole = stays(pair, "a.days", "a.t")
    assert "own_days also uses them" in days and "own_t also uses them" in whole
    assert len(outside_root(pair)) == 2


def test_a_load_names_what_stays(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> None:
    fixture = Lab(source_metastore, target_metastore, tmp_path)
    fixture.source.create()
    fixture.source.table("t", {"one": OLD.decode()})
    fixture.bootstrap()
    show(fixture.target, "own", fixture.target.home / "t")
    relocate(fixture.source, "t", "new", {"one": "rows of now"})
    assert fixture.dump(since=fixture.last).code == 0
    loaded = fixture.load()
    assert (loaded.code, loaded.output["status"]) == (3, "incomplete"), loaded
    (named,) = loaded.output["not_replicated"]
    assert named["object"] == f"{fixture.name}.t" and f"{fixture.name}.own also uses them" in named["reason"]


def test_what_a_snapshot_replaced_and_another_table_shows_is_named(pair: Lab) -> None:
    pair.keys["publish"] = "snapshot"
    a, replica = pair.db("a"), pair.replica("a")
    a.table("t", {"one": OLD.decode()})
    sync(pair)
    place = replica.metastore.table(replica.name, "t").location
    show(replica, "own", Path(str(place).removeprefix("file:")))
    a.write("t", {"one": "rows of now"})
    sync(pair)
    run = pair.sync(clock=lambda: time.time() + 1e6)  # after the delay
    (named,) = run.not_replicated
    assert (run.status, named.object) == ("incomplete", f"{a.name}.t") and "own also uses them" in named.reason
    assert len(outside_root(pair)) == 1


def test_a_table_that_is_renamed_too_leaves_nothing(pair: Lab) -> None:
    a = pair.db("a")
    a.table("t", {"one": OLD.decode()}, kind=EXTERNAL)
    sync(pair)
    a.rename("t", "u")
    relocate(a, "u", "new", {"one": "rows of now"})
    sync(pair)
    pair.are_same()
    assert outside_root(pair) == set()


def test_an_external_partition_that_is_renamed_and_lies_elsewhere_leaves_nothing(pair: Lab) -> None:
    a = pair.db("a")
    a.table("days", partition_keys=KEYS, kind=EXTERNAL)
    a.add("days", {"1": {"one": OLD.decode()}})
    sync(pair)
    (there,) = next(iter(a.metastore.partitions(a.name, "days", ["p=1"])))
    a.metastore.rename_partition(a.name, "days", ("1",), msgspec.structs.replace(there, values=("2",)))
    relocate_partition(a, "days", "2", "days/new")
    sync(pair)
    pair.are_same()
    assert outside_root(pair) == set()


def test_an_external_table_that_is_dropped_where_it_lies_leaves_its_data(pair: Lab) -> None:
    a = pair.db("a")
    a.table("t", {"one": OLD.decode()}, kind=EXTERNAL)
    sync(pair)
    had = outside_root(pair)
    a.metastore.drop_table(a.name, "t")
    sync(pair)
    pair.are_same()
    assert len(had) == 1 and outside_root(pair) == had


def test_what_is_dropped_after_it_left_its_place_leaves_nothing(pair: Lab) -> None:
    a = pair.db("a")
    a.table("t", {"one": OLD.decode()}, kind=EXTERNAL)
    for name in ("days", "gone"):
        a.table(name, partition_keys=KEYS, kind=EXTERNAL)
        a.add(name, {"1": {"one": OLD.decode()}, "2": {"one": "stays"}})
    sync(pair)
    relocate(a, "t", "new", {"one": "rows of now"})
    for name in ("days", "gone"):
        relocate_partition(a, name, "1", f"{name}/new")
    a.metastore.drop_table(a.name, "t")
    a.metastore.drop_table(a.name, "gone")
    a.metastore.drop_partitions(a.name, "days", ["p=1"])
    sync(pair)
    pair.are_same()
    assert outside_root(pair) == set()
    assert len(outside_root(pair, b"stays")) == 2  # as at the source, where nobody took the data of what was dropped


def test_a_load_by_difference_takes_what_partitions_left(pair: Lab) -> None:
    a = pair.db("a")
    a.partitioned("days", {"1": {"one": OLD.decode()}, "2": {"one": "stays"}})
    sync(pair)
    relocate_partition(a, "days", "1", "days/moved")
    pair.keys["exclude"] = "nothing"
    assert sync(pair)["kind"] == "bootstrap"
    pair.are_same()
    assert outside_root(pair) == set()


def test_a_place_where_no_load_puts_tables_is_left_and_told(pair: Lab) -> None:
    a, replica = pair.db("a"), pair.replica("a")
    a.table("t", {"one": "1"})
    sync(pair)
    mine = pair.here / "mine"
    mine.mkdir()
    (mine / "f").write_text("mine")
    table = replica.metastore.table(replica.name, "t")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{mine}")
    replica.metastore.alter_table(replica.name, "t", msgspec.structs.replace(table, storage=storage))
    relocate(a, "t", "new", {"one": "rows of now"})
    (why,) = stays(pair, "a.t")
    assert (mine / "f").read_text() == "mine" and str(mine) in why


def test_what_was_adopted_where_it_lay_leaves_only_what_others_have_written(pair: Lab) -> None:
    a, replica = pair.db("a"), pair.replica("a")
    a.table("t", {"one": OLD.decode(), "two": OLD.decode() + " two"})
    replica.create()
    far = PlainDatabase(pair.target.metastore, f"{pair.name}_far", pair.here / "target" / "elsewhere")
    far.create()
    table = far.table("t", {"one": OLD.decode()}, kind=EXTERNAL)
    pair.target.metastore.create_table(msgspec.structs.replace(table, db=replica.name))
    pair.target.metastore.drop_table(far.name, "t")
    assert command("--config", str(pair.config()), "sync", pair.name, "--adopt").code == 0
    assert outside_root(pair) == {f"elsewhere/{far.name}.db/t/one", f"elsewhere/{far.name}.db/t/two"}
    far.write("t", {"notes": "a person's"})
    relocate(a, "t", "new", {"one": "rows of now"})
    (why,) = stays(pair, "a.t")
    assert outside_root(pair) == set() and kept(pair) == 2
    assert (far.home / "t" / "notes").read_text() == "a person's"
    assert "1 file not published by a load" in why


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "rename", "-left/"),
        Fault("after", "thrift", "alter table"),
        Fault("before", "thrift", "alter database", 2),
    ],
    ids=str,
)
def test_a_killed_load_is_ended_and_leaves_nothing(pair: Lab, fault: Fault) -> None:
    a = pair.db("a")
    a.table("t", {"one": OLD.decode()})
    sync(pair)
    relocate(a, "t", "new", {"one": "rows of now"})
    assert run_with(fault, ["--config", str(pair.config()), "sync", pair.name]).killed
    sync(pair)
    pair.are_same()
    assert outside_root(pair) == set() and kept(pair) == 1
    assert not (Path(pair.keys["target_cmroot"]) / "superseded").is_dir() or not list(
        (Path(pair.keys["target_cmroot"]) / "superseded").iterdir()
    )


# ---- directories that are symbolic links ----------------------------------------------------------------------------


def linked(directory: Path, elsewhere: Path) -> Path:
    """What an administrator does who moves a directory of the replica to another disk."""
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    directory.rename(elsewhere)
    directory.symlink_to(elsewhere)
    return elsewhere


@pytest.mark.parametrize("keys", [{}, {"publish": "snapshot", "publish_delay": "1ms"}], ids=["in place", "snapshot"])
def test_a_dropped_table_in_a_linked_directory_is_named_and_the_others_are_loaded(
    pair: Lab, keys: dict[str, str]
) -> None:
    pair.keys |= keys
    a = pair.db("a")
    for name in ("linked", "other"):
        a.table(name, {"one": OLD.decode()})
    sync(pair)
    where = Path(str(pair.replica().metastore.table(f"{pair.name}_a", "linked").location).removeprefix("file:"))
    disk = linked(where, pair.here / "disk" / "linked")
    a.drop("linked")
    a.write("other", {"two": "rows of now"})
    (why,) = stays(pair, "a.linked")
    assert "symbolic link" in why and str(where) in why
    assert (disk / "one").read_bytes() == OLD and where.is_symlink()
    assert pair.replica().shown().keys() == {"other"}
    assert pair.replica().shown()["other"]["files"] == a.shown()["other"]["files"]


def test_a_dropped_partition_in_a_linked_directory_is_named(pair: Lab) -> None:
    a = pair.db("a")
    a.partitioned("t", {"1": {"one": OLD.decode()}, "2": {"one": OLD.decode()}})
    sync(pair)
    disk = linked(pair.replica().home / "t" / "p=1", pair.here / "disk" / "p=1")
    a.drop_partitions("t", ["1"])
    a.add("t", {"3": {"one": "rows of now"}})
    (why,) = stays(pair, "a.t")
    assert "symbolic link" in why and (disk / "one").read_bytes() == OLD
    pair.are_same()


def test_a_table_created_over_a_linked_directory_with_files_is_named_and_tried_again(pair: Lab) -> None:
    """Its old files would be rows of the new table; the next run compares them one by one."""
    a = pair.db("a")
    for name in ("t", "other"):
        a.table(name, {"one": OLD.decode()})
    sync(pair)
    disk = linked(pair.replica().home / "t", pair.here / "disk" / "t")
    a.drop("t")
    a.table("t", {"two": "rows of now"})
    a.write("other", {"two": "rows of now"})
    for reason in stays(pair, "a.t"):
        assert "symbolic link" in reason
    assert (disk / "one").read_bytes() == OLD and not (disk / "two").exists()
    assert pair.replica().shown()["other"] == a.shown()["other"]
    sync(pair)
    assert [each.name for each in disk.iterdir()] == ["two"] and kept(pair) == 1
    pair.are_same()


def test_a_new_table_is_loaded_into_an_empty_linked_directory(pair: Lab) -> None:
    a = pair.db("a")
    a.table("first")
    sync(pair)
    disk = pair.here / "disk"
    disk.mkdir()
    (pair.replica().home / "t").symlink_to(disk)
    a.table("t", {"one": "rows of now"})
    sync(pair)
    assert (disk / "one").read_text() == "rows of now"
    pair.are_same()


def test_new_and_removed_files_of_a_table_in_a_linked_directory_are_replicated(pair: Lab) -> None:
    a = pair.db("a")
    a.table("t", {"one": OLD.decode()})
    sync(pair)
    disk = linked(pair.replica().home / "t", pair.here / "disk" / "t")
    a.write("t", {"two": "rows of now"})
    (a.home / "t" / "one").unlink()
    sync(pair)
    assert sorted(each.name for each in disk.iterdir()) == ["two"]
    pair.are_same()
