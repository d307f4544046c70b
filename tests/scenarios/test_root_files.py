"""Files in the directory of a partitioned table that are in none of its partitions: markers, manifests, the log of a
streaming sink."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from command_line import Answer, command
from gateways import guarded
from lab import Lab
from plain_tables import KEYS

from replicator.core.model import EXTERNAL
from replicator.metastore.embedded.running import Running


@pytest.fixture
def pair(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Lab:
    found = Lab(source_metastore, target_metastore, tmp_path)
    found.guarded = source_metastore  # type: ignore[attr-defined]
    found.source.create()
    found.source.partitioned("t", {"x": {"f": "1\tx\n"}, "y": {"f": "2\ty\n"}})
    found.source.write("t", {"_SUCCESS": "", "notes.txt": "of all partitions\n"})
    (found.source.home / "t/_temporary").mkdir()
    (found.source.home / "t/_temporary/part").write_text("unfinished")
    return found


def of_root(pair: Lab) -> dict[str, str]:
    """The files of the replica that are in none of its partitions."""
    home = Path(str(pair.target.metastore.table(pair.name, "t").location).removeprefix("file:"))
    files = (path for path in home.rglob("*") if path.is_file() and "p=" not in str(path.relative_to(home)))
    return {str(path.relative_to(home)): path.read_text() for path in files}


def verify(pair: Lab) -> Answer:
    sides = ("--source", pair.source_uri, "--target", pair.target_uri)
    return command("verify", *sides, "--db", pair.name, "--engine", "local")


def test_they_are_replicated_and_verified(pair: Lab) -> None:
    pair.bootstrap()
    assert of_root(pair) == {"_SUCCESS": "", "notes.txt": "of all partitions\n"}
    assert verify(pair).code == 0, verify(pair)

    pair.source.write("t", {"notes.txt": "others\n"})
    (pair.source.home / "t/_SUCCESS").unlink()
    differing = [(each["kind"], each["field"]) for each in verify(pair).output["differences"]]
    assert differing == [("file extra", "_SUCCESS"), ("file size", "notes.txt")]
    pair.source.add("t", {"z": {"f": "3\tz\n"}})
    pair.catch_up()
    assert of_root(pair) == {"notes.txt": "others\n"}
    assert verify(pair).code == 0, verify(pair)

    pair.source.rename("t", "s")
    pair.source.rename("s", "t")
    pair.catch_up()
    assert of_root(pair) == {"notes.txt": "others\n"}
    assert pair.dump(since=pair.last).output["records"] == 0


def test_a_log_of_a_streaming_sink_names_the_replicas_files(pair: Lab) -> None:
    def log(home: Path) -> str:
        return 'v1\n{"path":"file://' + f"{home}/t/p=x/f" + '","size":4,"isDir":false,"action":"add"}'

    pair.source.write("t/_spark_metadata", {"0": log(pair.source.home)})
    pair.bootstrap()
    assert of_root(pair)["_spark_metadata/0"] == log(pair.target.home)
    assert verify(pair).code == 0, verify(pair)


def test_snapshots_publish_partitions_and_keep_the_directory_of_the_table(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path, publish="snapshot")
    db, replica = pair.db(), pair.replica()
    db.partitioned("t", {"x": {"f": "1\tx\n"}})
    db.write("t", {"_SUCCESS": "", "notes.txt": "first\n"})

    def notes() -> str:
        location = str(replica.metastore.table(db.name, "t").location)
        return (Path(location.removeprefix("file:")) / "notes.txt").read_text()

    assert (pair.sync().status, notes()) == ("synced", "first\n")
    db.write("t", {"notes.txt": "second\n"})
    db.write("t/p=x", {"g": "2\tx\n"})
    assert (pair.sync().status, notes()) == ("synced", "second\n")
    checked = command("--config", str(pair.config()), "verify", pair.name, "--engine", "local")
    assert checked.code == 0, checked


def test_a_repair_removes_what_only_the_replica_has_and_no_partition(pair: Lab) -> None:
    pair.bootstrap()
    home = pair.target.home / "t"
    (home / "more.txt").write_text("x")
    (home / "_spark_metadata").mkdir()
    (home / "_spark_metadata/0").write_text("x")
    (home / "notes.txt").write_text("changed here!!!!!\n")
    sides = ("--source", pair.source_uri, "--target", pair.target_uri, "--db", pair.name, "--engine", "local")
    repaired = command("repair", *sides, "--cmroot", str(pair.cmroot), "--warehouse", str(pair.warehouse))
    assert repaired.code == 0, repaired
    assert of_root(pair) == {"_SUCCESS": "", "notes.txt": "of all partitions\n"}
    assert sorted(path.name for path in home.glob("p=*/*")) == ["f", "f"]
    assert verify(pair).code == 0, verify(pair)


def test_a_table_whose_partitions_are_all_elsewhere_needs_no_directory(pair: Lab) -> None:
    db, elsewhere = pair.source, pair.here / "elsewhere"
    table = db.table("far", partition_keys=KEYS)
    shutil.rmtree(db.home / "far")
    elsewhere.mkdir()
    (elsewhere / "f").write_text("1\tz\n")
    db.metastore.add_partitions(db.name, "far", [db.partition("z", elsewhere)])
    assert table.location
    for since in (None, 1):
        dumped = pair.dump(since=pair.last if since else None)
        assert (dumped.code, dumped.output["not_replicated"]) == (0, []), dumped
        assert pair.load().code == 0
    db.write("far", {"_SUCCESS": ""})  # which makes the directory
    assert pair.dump(since=pair.last).code == 0 and pair.load().code == 0
    assert (pair.target.home / "far/_SUCCESS").exists()
    shutil.rmtree(db.home / "far")  # unknown now, not empty
    dumped = pair.dump(since=pair.last)
    assert [each["object"] for each in dumped.output["not_replicated"]] == [f"{db.name}.far"], dumped


def test_at_another_location_a_table_has_other_files(pair: Lab) -> None:
    pair.bootstrap()
    moved = pair.source.home / "moved"
    pair.source.write("moved", {"_NEW": ""})
    table = pair.source.metastore.table(pair.name, "t")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{moved}")
    pair.source.metastore.alter_table(pair.name, "t", msgspec.structs.replace(table, storage=storage))
    dumped, loaded = pair.dump(since=pair.last), pair.load()
    assert dumped.code == loaded.code == 0, (dumped, loaded)
    assert (pair.target.home / "moved/_NEW").exists()
    assert verify(pair).code == 0, verify(pair)
    assert sorted(path.name for path in (pair.target.home / "t").rglob("*") if path.is_file()) == ["f", "f"]
    kept = [path.read_text() for path in (pair.target_cmroot / "files").rglob("*") if path.is_file()]
    assert "of all partitions\n" in kept


def relocate(pair: Lab, name: str = "t") -> Answer:
    """Points the table at another directory, and loads that."""
    pair.source.write("moved", {"_NEW": ""})
    table = pair.source.metastore.table(pair.name, name)
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{pair.source.home / 'moved'}")
    pair.source.metastore.alter_table(pair.name, name, msgspec.structs.replace(table, storage=storage))
    assert pair.dump(since=pair.last).code == 0
    return pair.load()


def test_a_linked_directory_that_a_table_leaves_keeps_its_files(pair: Lab) -> None:
    pair.bootstrap()
    home, disk = pair.target.home / "t", pair.here / "disk"
    home.rename(disk)
    home.symlink_to(disk)
    loaded = relocate(pair)
    assert loaded.code == 3 and "symbolic link" in str(loaded.output["not_replicated"]), loaded
    assert sorted(path.name for path in disk.iterdir() if path.is_file()) == ["_SUCCESS", "notes.txt"]


def test_a_link_in_a_directory_that_a_table_leaves_is_named_once(pair: Lab) -> None:
    pair.bootstrap()
    aside = pair.here / "aside"
    aside.write_text("of another owner\n")
    link = pair.target.home / "t" / "link"
    link.symlink_to(aside)
    loaded = relocate(pair)
    assert loaded.code == 3, loaded
    assert "1 file not published by a load" in str(loaded.output["not_replicated"])
    assert link.is_symlink() and aside.read_text() == "of another owner\n"
    assert not (pair.target.home / "t/notes.txt").exists()
    pair.catch_up()


def test_an_empty_directory_that_a_table_leaves_stays_if_another_table_has_it(pair: Lab) -> None:
    db, replica = pair.source, pair.target.metastore
    db.table("t2", partition_keys=KEYS)
    pair.bootstrap()
    there = replica.table(pair.name, "t2")
    other = msgspec.structs.replace(there, name="other", kind=EXTERNAL, parameters={"EXTERNAL": "TRUE"})
    replica.create_table(other)
    loaded = relocate(pair, "t2")
    assert loaded.code == 0, loaded
    assert (pair.target.home / "t2").is_dir()
    replica.drop_table(pair.name, "other")


def test_what_the_source_dropped_comes_from_its_root(pair: Lab) -> None:
    assert pair.dump().code == 0
    pair.source.drop("t")
    loaded = pair.load()
    assert loaded.code == 0, loaded
    assert of_root(pair) == {"_SUCCESS": "", "notes.txt": "of all partitions\n"}
    pair.catch_up()
    assert not (pair.target.home / "t").exists()


def test_a_drop_through_the_gateway_keeps_those_that_no_capture_has_seen(pair: Lab) -> None:
    pair.bootstrap()
    with guarded(pair.guarded, pair.here, cmroot=pair.cmroot) as guard:  # type: ignore[attr-defined]
        source = pair.source
        source.partitioned("young", {"x": {"f": "1\tx\n"}})
        source.write("young", {"_SUCCESS": "", "notes.txt": "young\n"})
        source.write("young/_spark_metadata", {"0": "v1\n"})
        source.write("young/elsewhere", {"f": "of no partition"})
        made = source.metastore.current_event_id()
        guard.call("drop_table", pair.name, "young", True)
    first = pair.last
    assert pair.dump("--until", str(made), since=first).code == 0
    loaded = pair.load()
    assert (loaded.code, loaded.output["missing"]) == (0, []), loaded
    found = {str(path.relative_to(pair.target.home / "young")) for path in (pair.target.home / "young").rglob("*")}
    assert found == {"_SUCCESS", "notes.txt", "_spark_metadata", "_spark_metadata/0", "p=x", "p=x/f"}
    pair.catch_up()


def test_a_renamed_table_keeps_them_in_snapshots(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path, publish="snapshot")
    db, replica = pair.db(), pair.replica()
    db.partitioned("t", {"x": {"f": "1\tx\n"}})
    db.write("t", {"notes.txt": "first\n"})
    assert pair.sync().status == "synced"
    db.rename("t", "s")
    assert pair.sync().status == "synced"
    location = Path(str(replica.metastore.table(db.name, "s").location).removeprefix("file:"))
    assert (location / "notes.txt").read_text() == "first\n"
    checked = command("--config", str(pair.config()), "verify", pair.name, "--engine", "local")
    assert checked.code == 0, checked

    pair.keys["publish"] = "mirror"
    db.write("t", {})
    db.add("s", {"y": {"f": "2\ty\n"}})
    assert pair.sync().status == "synced"
    checked = command("--config", str(pair.config()), "verify", pair.name, "--engine", "local")
    assert checked.code == 0, checked


def test_a_partition_in_their_directory_moves_with_a_renamed_table(pair: Lab) -> None:
    db = pair.source
    shutil.rmtree(db.home / "t/_temporary")
    pair.bootstrap()
    db.metastore.add_partitions(db.name, "t", [db.partition("all", db.home / "t")])
    db.rename("t", "s")
    (found,) = next(iter(db.metastore.partitions(db.name, "s", ["p=all"])))
    assert str(found.location).endswith("/s")
    pair.catch_up()
    assert verify(pair).code == 0, verify(pair)


def test_they_stay_when_a_partition_in_their_directory_is_dropped(pair: Lab) -> None:
    db = pair.source
    shutil.rmtree(db.home / "t/_temporary")
    db.metastore.add_partitions(db.name, "t", [db.partition("all", db.home / "t")])
    pair.bootstrap()
    db.metastore.drop_partitions(db.name, "t", ["p=all"])  # an engine that keeps the data
    db.write("t", {"_SUCCESS": "", "notes.txt": "of all partitions\n"})
    for value in ("x", "y"):
        db.write(f"t/p={value}", {"f": f"{'xy'.index(value) + 1}\t{value}\n"})
    pair.catch_up()
    assert of_root(pair) == {"_SUCCESS": "", "notes.txt": "of all partitions\n"}
    assert verify(pair).code == 0, verify(pair)
