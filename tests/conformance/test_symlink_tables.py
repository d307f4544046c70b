"""Symlink text tables: their files name other tables' files, on the replica the replica's.

`rows` reads a table as Hive's `SymlinkTextInputFormat` does, and knows nothing of the product: each line is a path,
taken as it is written, of a file or of a directory of files. Replicas are read while the source is moved away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Answer, command
from hive_sql import HiveSql
from lab import Lab
from metastores import MetastoreFactory, shared
from plain_tables import PlainDatabase, text_storage
from pool import Pool
from stores import moto_bucket, s3a_as_directories

from cmroot.store.place import Place
from replicator.core.formats.symlink_table import NOT_TEXT, SYMLINK, UNTRANSLATED, SymlinkTable
from replicator.core.model import EXTERNAL, Partition, Storage, Table
from replicator.replay.apply import named_places
from replicator.replay.apply.named_places import homes_of, translated
from replicator.replay.placement import Placement
from replicator.replay.plan import FileRules, TableRule

__all__ = ["moto_bucket"]

LINKS = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"


# ---- tables -------------------------------------------------------------------------------------------------------


def storage(place: object) -> Storage:
    return msgspec.structs.replace(text_storage(str(place)), input_format=LINKS)


def symlinks(db: PlainDatabase, name: str, files: Mapping[str, str] | None = None, **more: Any) -> None:
    """A symlink table. place: its directory, if not the usual one."""
    place = more.pop("place", db.home / name)
    about = {"kind": EXTERNAL, "parameters": {"EXTERNAL": "TRUE"}, **more}
    db.metastore.create_table(Table(db=db.name, name=name, storage=storage(place), **about))
    db.write(str(place), files or {})


def add(db: PlainDatabase, name: str, value: str, files: Mapping[str, str]) -> None:
    db.write(f"{name}/p={value}", files)
    made = Partition(values=(value,), storage=storage(db.home / name / f"p={value}"))
    db.metastore.add_partitions(db.name, name, [made])


def partitioned(db: PlainDatabase, name: str, partitions: Mapping[str, Mapping[str, str]]) -> None:
    symlinks(db, name, partition_keys=(msgspec.structs.replace(text_storage("/x").columns[0], name="p"),))
    for value, files in partitions.items():
        add(db, name, value, files)


def external(db: PlainDatabase, name: str, place: Path, files: Mapping[str, str]) -> None:
    """A table of text outside of the database's directory."""
    table = Table(
        db=db.name, name=name, kind=EXTERNAL, parameters={"EXTERNAL": "TRUE"}, storage=text_storage(str(place))
    )
    db.metastore.create_table(table)
    db.write(str(place), files)


def rows(db: PlainDatabase, name: str) -> list[str]:
    table = db.metastore.table(db.name, name)
    places = [table.location]
    if table.partition_keys:
        names = db.metastore.partition_names(db.name, name)
        places = [each.location for page in db.metastore.partitions(db.name, name, names) for each in page]
    return sorted(row for place in places if place for link in seen(path_of(place)) for row in rows_of(link))


def rows_of(link: Path) -> list[str]:
    found = []
    for line in re.split(r"\r\n|\r|\n", link.read_bytes().decode()):
        place = path_of(line) if line else None
        for file in () if place is None else seen(place) if place.is_dir() else (place,):
            found += file.read_text().split()
    return found


def path_of(text: str) -> Path:
    """Hadoop's path of a local file."""
    return Path(re.sub("^file:(//)?", "", text))


def seen(place: Path) -> list[Path]:
    return [each for each in sorted(place.iterdir()) if each.name[0] not in "._"]


# ---- runs ---------------------------------------------------------------------------------------------------------


def sides(fixture: Lab, name: str | None = None) -> list[str]:
    return ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", name or fixture.name]


def verified(fixture: Lab, *more: str) -> Answer:
    return command("verify", *sides(fixture), "--engine", "local", *more)


def repaired(fixture: Lab, *more: str) -> Answer:
    roots = ["--cmroot", str(fixture.cmroot), "--target-cmroot", str(fixture.target_cmroot)]
    return command("repair", *sides(fixture), *roots, "--engine", "local", *more)


def replicated(fixture: Lab, *more: str) -> None:
    """A dump of the changes since the last one, loaded and found equal."""
    dumped = fixture.dump(since=fixture.last if fixture.dumps else None)
    assert dumped.code == 0, dumped
    loaded = fixture.load(None, *more)
    assert (loaded.code, loaded.output["not_replicated"]) == (0, []), loaded
    found = verified(fixture, *more)
    assert (found.code, found.output["status"]) == (0, "same"), found


def gaps(answer: Answer) -> dict[str, str]:
    """The objects that are not replicated, with the reasons."""
    found = {}
    for each in answer.output["not_replicated"]:
        found[each["object"].partition(".")[2] + (f"/{each['partition']}" if each["partition"] else "")] = each[
            "reason"
        ]
    return found


def gap(fixture: Lab, name: str, place: str) -> None:
    """A dump of the changes, whose load and comparison name one object, with a place."""
    assert fixture.dump(since=fixture.last if fixture.dumps else None).code == 0
    for answer in (fixture.load(), verified(fixture)):
        assert (answer.code, answer.output["status"], list(gaps(answer))) == (3, "incomplete", [name]), answer
        assert place in gaps(answer)[name], answer


def without_source(fixture: Lab, name: str) -> list[str]:
    with fixture.without_source():
        return rows(fixture.target, name)


# ---- replication --------------------------------------------------------------------------------------------------


def test_a_replica_of_a_symlink_table_reads_the_replicas_files(fixture: Lab) -> None:
    db = fixture.source
    db.table("events", {"a": "1 2", "b": "3", "c": "4"})
    db.table("days", {"x": "5", "y": "6"})
    symlinks(
        db, "links", {"one": f"file:{db.home}/events/a\n\nfile://{db.home}/events/b", "two": f"{db.home}/days\r\n"}
    )
    replicated(fixture)
    assert without_source(fixture, "links") == rows(db, "links") == ["1", "2", "3", "5", "6"]
    there = fixture.target.home
    assert (there / "links/one").read_text() == f"file:{there}/events/a\n\nfile://{there}/events/b"
    assert (there / "links/two").read_bytes() == f"{there}/days\r\n".encode()

    db.write("events", {"d": "7"})  # a file of links that changes
    db.write("links", {"one": f"file:{db.home}/events/d\n"})
    replicated(fixture)
    assert without_source(fixture, "links") == ["5", "6", "7"]
    db.write("links", {"one": f"file:{db.home}/events/c\n"})  # and one whose data does not
    (db.home / "links/two").unlink()
    replicated(fixture)
    assert without_source(fixture, "links") == ["4"]
    db.rename("links", "shown")
    replicated(fixture)
    assert without_source(fixture, "shown") == ["4"]


def test_partitions_of_links_are_added_changed_and_dropped(fixture: Lab) -> None:
    db = fixture.source
    db.partitioned("events", {"1": {"a": "1"}, "2": {"a": "2", "b": "3"}})
    partitioned(db, "links", {"1": {"l": f"{db.home}/events/p=1/a\n"}, "2": {"l": f"{db.home}/events/p=2\n"}})
    replicated(fixture)
    assert without_source(fixture, "links") == ["1", "2", "3"]
    db.add("events", {"3": {"a": "4"}})
    add(db, "links", "3", {"l": f"file:{db.home}/events/p=3/a"})
    db.write("links/p=2", {"l": f"{db.home}/events/p=2/b"})
    db.drop_partitions("links", ["1"])
    replicated(fixture)
    assert without_source(fixture, "links") == rows(db, "links") == ["3", "4"]


def test_links_to_tables_outside_of_the_database_follow_them(fixture: Lab, tmp_path: Path) -> None:
    """The range that changes the links need not contain the table."""
    db, place = fixture.source, tmp_path / "elsewhere/ext"
    external(db, "ext", place, {"a": "1", "b": "2"})
    symlinks(db, "links", {"l": f"file:{place}/a\n"})
    replicated(fixture)
    db.write("links", {"l": f"file:{place}/b\n"})
    replicated(fixture)
    place.rename(place.with_name("away"))
    assert without_source(fixture, "links") == ["2"]


def test_links_are_read_in_the_manifests_of_a_delta_table(fixture: Lab) -> None:
    """As Delta's documentation has it: the table of links is in the directory of the other."""
    db = fixture.source
    manifests = db.home / "events/_symlink_format_manifest"
    db.table("events", {"part-0": "1", "part-1": "2"}, kind=EXTERNAL)
    symlinks(db, "links", {"manifest": f"file:{db.home}/events/part-0\n"}, place=manifests)
    replicated(fixture)
    assert without_source(fixture, "links") == ["1"]
    db.write(str(manifests), {"manifest": f"file:{db.home}/events/part-1\n"})
    replicated(fixture)
    assert without_source(fixture, "links") == ["2"]


def test_roles_change_and_links_are_translated_back(pair: Lab) -> None:
    db, there = pair.db("a"), pair.replica("a")
    db.table("events", {"a": "1", "b": "2"})
    symlinks(db, "links", {"l": f"file:{db.home}/events/a\n"})
    run = pair.sync()
    assert (run.status, run.not_replicated) == ("synced", [])
    assert rows(there, "links") == ["1"]
    pair.turn()
    there.write("links", {"l": f"file:{there.home}/events/b\n"})
    run = pair.sync()
    assert (run.status, run.reverse, run.not_replicated) == ("synced", True, [])
    assert (db.home / "links/l").read_text() == f"file:{db.home}/events/b\n"
    assert rows(db, "links") == ["2"]


def test_a_past_state_is_restored_with_links_to_it(fixture: Lab, tmp_path: Path) -> None:
    """Lines to data outside of the database stay: of the database itself they are right."""
    db = fixture.source
    db.table("events", {"a": "1", "b": "2"})
    db.write(str(tmp_path / "elsewhere"), {"x": "7"})
    symlinks(db, "links", {"l": f"file:{db.home}/events/a\n{tmp_path}/elsewhere/x\n"})
    assert fixture.capture().code == 0
    event = db.metastore.current_event_id()
    db.table("later")
    db.write("events", {"a": "9", "c": "3"})
    db.write("links", {"l": f"file:{db.home}/events/c\n"})
    assert fixture.capture().code == 0
    into = PlainDatabase(db.metastore, f"{fixture.name}_old", db.home.parent)
    about = ["--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event), "--engine", "local"]
    restored = command("restore", *about, "--target", fixture.source_uri, "--into", into.name)
    assert (restored.code, list(gaps(restored))) == (3, ["links"]), restored
    assert f"{tmp_path}/elsewhere/x" in gaps(restored)["links"]
    assert rows(into, "links") == ["1", "7"] and rows(db, "links") == ["3"]
    alone = command("restore", *about, "--target", fixture.source_uri, "--into", f"{into.name}er", "--table", "links")
    assert (alone.code, list(gaps(alone))) == (3, ["links"]), alone
    assert f"{db.home}/events/a" in gaps(alone)["links"]  # the table that it names is not there
    forced = command("restore", *about, "--target", fixture.source_uri, "--into", fixture.name, "--force")
    assert (forced.code, forced.output["not_replicated"]) == (0, []), forced
    assert rows(db, "links") == ["1", "7"]


def test_links_are_published_after_the_data_that_they_name(fixture: Lab) -> None:
    """A load that fails leaves the lines that readers had."""
    db = fixture.source
    db.table("events", {"a": "1"})
    symlinks(db, "links", {"l": f"{db.home}/events/a\n"})
    replicated(fixture)
    db.write("events", {"b": "2"})
    db.write("links", {"l": f"{db.home}/events/b\n", "m": f"{db.home}/events/b\n"})
    assert fixture.dump(since=fixture.last).code == 0
    damaged = db.home / "events/b"  # and in the root, which has the same file
    with damaged.open("r+b") as file:
        file.write(b"X")
    loaded = fixture.load()
    assert (loaded.code, loaded.error) == (1, "FilesMissing"), loaded
    assert without_source(fixture, "links") == ["1"]
    with damaged.open("r+b") as file:
        file.write(b"2")
    assert fixture.load().code == 0
    assert without_source(fixture, "links") == ["2", "2"]


def test_a_dump_with_data_has_all_that_links_need(fixture: Lab) -> None:
    db = fixture.source
    db.table("events", {"a": "1"})
    symlinks(db, "links", {"l": f"file:{db.home}/events/a\n"})
    assert fixture.dump("--with-data").code == 0
    with fixture.without_source():
        loaded = fixture.load()
        assert (loaded.code, loaded.output["not_replicated"]) == (0, []), loaded
        assert rows(fixture.target, "links") == ["1"]


def test_links_lead_to_a_bucket_where_the_replica_is_in_one(
    fixture: Lab, moto_bucket: str, metastore_factory: MetastoreFactory, tmp_path: Path
) -> None:
    db, place = fixture.source, tmp_path / "elsewhere/ext"
    db.table("events", {"a b": "1"})
    external(db, "ext", place, {"x": "2"})
    symlinks(db, "links", {"l": f"{db.home}/events/a b\nfile:{place}/x\n"})
    mounts = tmp_path / "mounts"
    mounts.mkdir()
    target = metastore_factory("target", settings=s3a_as_directories(mounts, [moto_bucket]))
    warehouse = f"{moto_bucket}/{fixture.name}"
    assert fixture.dump().code == 0
    about = ["--target", target.uri, "--engine", "local"]
    loaded = command("load", str(fixture.last), *about, "--warehouse", warehouse)
    assert (loaded.code, loaded.output["not_replicated"]) == (0, []), loaded
    found = command("verify", "--source", fixture.source_uri, *about, "--db", fixture.name)
    assert (found.code, found.output["status"]) == (0, "same"), found
    lines = Place(f"{warehouse}/{fixture.name}.db/links/l").read_bytes().decode().splitlines()
    assert [line[: len(warehouse)] for line in lines] == [warehouse] * 2
    assert [Place(line).read_bytes() for line in lines] == [b"1", b"2"]


def test_hive_reads_a_replicas_links(pool: Pool, tmp_path: Path) -> None:
    with shared(pool) as metastore:
        source = metastore("symlink-source", hive="3.1", host="0.0.0.0")
        target = metastore("symlink-target", hive="3.1", host="0.0.0.0")
        lab = Lab(source, target, tmp_path)
        db = lab.source
        db.create()
        db.table("events", {"a %20b": "1\x01one\n", "c": "2\x01two\n"})
        db.table("days", {"x": "3\x01three\n", "y": "4\x01four\n"})
        symlinks(db, "links", {"l": f"file:{db.home}/events/a %20b\n{db.home}/days"})
        replicated(lab)
        with HiveSql(target.uri, lab.warehouse) as hive, lab.without_source():
            assert hive(f"select a, b from {lab.name}.links") == [["1", "one"], ["3", "three"], ["4", "four"]]


# ---- gaps ---------------------------------------------------------------------------------------------------------


def test_a_place_that_is_not_replicated_is_named_until_no_line_names_it(fixture: Lab, tmp_path: Path) -> None:
    db, place = fixture.source, tmp_path / "elsewhere"
    db.table("events", {"a": "1"})
    db.write(str(place), {"x": "2"})
    symlinks(db, "links", {"l": f"{db.home}/events/a\nfile:{place}/x\nfile:{place}/y\n"})
    gap(fixture, "links", f"file:{place}/x")
    db.write("events", {"b": "3"})  # a range without the table
    gap(fixture, "links", f"file:{place}/x")
    db.write("links", {"m": f"{db.home}/events/b\n"})  # one without the file
    gap(fixture, "links", f"file:{place}/x")
    db.write("links", {"l": f"{db.home}/events/a\n"})
    replicated(fixture)
    assert without_source(fixture, "links") == ["1", "3"]


def test_a_mapping_of_a_place_makes_it_replicated(fixture: Lab, tmp_path: Path) -> None:
    db, place, there = fixture.source, tmp_path / "elsewhere", tmp_path / "shared"
    db.write(str(place), {"x": "2"})
    symlinks(db, "links", {"l": f"file:{place}/x\n"})
    gap(fixture, "links", f"file:{place}/x")
    db.write(str(there), {"x": "2"})
    assert verified(fixture, "--map-location", f"file:{place}=file:{place}").code == 0  # both sides read one place
    mapped = "--map-location", f"file:{place}=file:{there}"
    found = verified(fixture, *mapped)
    assert [(each["kind"], each["field"]) for each in found.output["differences"]] == [("file content", "l")]
    assert repaired(fixture, *mapped).code == 0
    assert verified(fixture, *mapped).code == 0
    place.rename(place.with_name("away"))
    assert without_source(fixture, "links") == ["2"]


def test_links_to_another_database_need_a_mapping(pair: Lab) -> None:
    """Its replica may be any policy's."""
    a, b, other = pair.db("a"), pair.db("b"), pair.replica("b")
    b.table("events", {"a": "1"})
    symlinks(a, "links", {"l": f"{b.home}/events/a\n"})
    assert [each.object for each in pair.sync().not_replicated] == [f"{a.name}.links"]
    pair.keys["map_location"] = {f"file:{b.home}": f"file:{other.home}"}
    a.write("links", {"l": f"file:{b.home}/events/a\n"})
    assert pair.sync().not_replicated == []
    checked = command("--config", str(pair.config()), "verify", pair.name, "--engine", "local")
    assert (checked.code, checked.output["status"]) == (0, "same"), checked
    b.home.rename(b.home.with_name("away"))
    assert rows(pair.replica("a"), "links") == ["1"]


def test_a_table_that_the_replica_lacks_is_a_place_that_is_not_replicated(fixture: Lab) -> None:
    db = fixture.source
    db.table("events", {"a": "1"})
    symlinks(db, "links", {"l": f"{db.home}/events/a\n"})
    assert fixture.dump("--exclude", "events").code == 0
    loaded = fixture.load()
    assert (loaded.code, list(gaps(loaded))) == (3, ["links"]), loaded
    found = verified(fixture, "--exclude", "events")
    assert (found.code, list(gaps(found)), found.output["differences"]) == (3, ["links"], []), found


@pytest.mark.parametrize("before", ["mirror", "snapshot"])
def test_links_are_not_translated_where_each_load_moves_tables(pair: Lab, before: str) -> None:
    """Partitions, and not always their table."""
    pair.keys["publish"] = before
    db = pair.db("a")
    db.partitioned("events", {"1": {"a": "1"}})
    symlinks(db, "links", {"l": f"{db.home}/events/p=1/a\n"})
    assert len(pair.sync().not_replicated) == (before == "snapshot")
    pair.keys["publish"] = "snapshot"
    for number in range(3):
        db.write("events/p=1", {"b": str(number)})
        db.write("links", {"l": f"{db.home}/events/p=1/b\n" * (number + 1)})
        assert [each.object for each in pair.sync().not_replicated] == [f"{db.name}.links"]
        checked = command("--config", str(pair.config()), "verify", pair.name, "--engine", "local")
        assert (checked.code, list(gaps(checked)), checked.output["differences"]) == (3, ["links"], []), checked


def test_links_to_a_table_that_loads_no_longer_bring_are_named(fixture: Lab) -> None:
    db = fixture.source
    db.table("events", {"a": "1"}, kind=EXTERNAL)
    symlinks(db, "links", {"l": f"{db.home}/events/a\n"})
    replicated(fixture)
    db.alter("events", **{"spark.sql.sources.provider": "hudi"})
    assert fixture.dump(since=fixture.last).code == 3
    assert list(gaps(fixture.load())) == ["events"]
    db.write("events", {"b": "2"})
    db.write("links", {"l": f"{db.home}/events/b\n"})
    assert fixture.dump(since=fixture.last).code == 3
    loaded = fixture.load()
    assert (loaded.code, sorted(gaps(loaded))) == (3, ["events", "links"]), loaded
    db.write("links", {"l": f"{db.home}/events/a\n"})  # a range without the table
    assert fixture.dump(since=fixture.last).code == 3
    loaded = fixture.load()
    assert (loaded.code, sorted(gaps(loaded))) == (3, ["events", "links"]), loaded
    assert verified(fixture).code == 4


@pytest.mark.parametrize(
    "content", [b"{home}/events/\xe4\n", b"{home}/events/a\n{home}/events/../../x\n", b"events/a\n"]
)
def test_a_file_with_a_line_that_is_not_understood_stays_as_it_is_and_is_named(fixture: Lab, content: bytes) -> None:
    db = fixture.source
    db.table("events", {"a": "1"})
    symlinks(db, "links")
    written = content.replace(b"{home}", str(db.home).encode())
    (db.home / "links/l").write_bytes(written)
    gap(fixture, "links", NOT_TEXT if b"\xe4" in content else written.decode().splitlines()[-1])
    found = (fixture.target.home / "links/l").read_bytes()
    assert found == written.replace(f"{db.home}/events/a\n".encode(), f"{fixture.target.home}/events/a\n".encode())


def test_a_file_that_is_too_large_is_named(fixture: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    db = fixture.source
    db.table("events", {"a": "1"})
    symlinks(db, "links", {"l": f"{db.home}/events/a\n"})
    monkeypatch.setattr(named_places, "LARGEST", 10)
    monkeypatch.setattr("replicator.compare.compare_files.LARGEST", 10)
    gap(fixture, "links", named_places.TOO_LARGE)
    assert (fixture.target.home / "links/l").read_text() == f"{db.home}/events/a\n"


def test_a_copy_that_names_the_source_differs_and_is_repaired(fixture: Lab) -> None:
    db = fixture.source
    db.table("events", {"a": "1"})
    symlinks(db, "links", {"l": f"{db.home}/events/a\n"})
    replicated(fixture)
    fixture.target.write("links", {"l": f"{db.home}/events/a\n"})
    for level in ("size", "checksum"):
        found = verified(fixture, "--level", level)
        about = [(each["object"], each["kind"], each["field"]) for each in found.output["differences"]]
        assert (found.code, about) == (4, [(f"{fixture.name}.links", "file content", "l")]), found
    assert repaired(fixture).code == 0
    assert verified(fixture).code == 0
    assert without_source(fixture, "links") == ["1"]


def test_one_who_asks_for_formats_as_they_are_gets_the_sources_lines(fixture: Lab) -> None:
    db, asked = fixture.source, ("--formats", "as-they-are")
    db.table("events", {"a": "1"})
    symlinks(db, "links", {"l": f"{db.home}/events/a\n"})
    assert fixture.dump(*asked).code == fixture.load(None, *asked).code == verified(fixture, *asked).code == 0
    assert (fixture.target.home / "links/l").read_text() == f"{db.home}/events/a\n"


def test_a_policy_brings_symlink_tables_that_an_earlier_release_left_out(pair: Lab) -> None:
    """Though they have not changed since."""
    db = pair.db("a")
    db.table("events", {"a": "1"})
    symlinks(db, "links", {"l": f"{db.home}/events/a\n"})
    with pytest.MonkeyPatch().context() as earlier:
        earlier.setattr(SymlinkTable, "problems", lambda *about: iter([UNTRANSLATED]))
        run = pair.sync()
        assert [(each.object, each.reason) for each in run.not_replicated] == [(f"{db.name}.links", UNTRANSLATED)]
    assert pair.sync().not_replicated == []
    assert rows(pair.replica("a"), "links") == ["1"]
    assert pair.sync().status == "nothing"


# ---- spellings ----------------------------------------------------------------------------------------------------

LOCAL = homes_of([("file:/src/shop.db/t t", "file:/dst/x.db/t t")])
HDFS = homes_of([("hdfs://nn:8020/w/t", "hdfs://mm:8020/v/t")])
BUCKET = homes_of([("s3a://b/k/t", "s3a://c/k/t")])


@pytest.mark.parametrize(
    ("homes", "text", "there", "left"),
    [
        (LOCAL, "/src/shop.db/t t/a", "/dst/x.db/t t/a", ""),
        (LOCAL, "file:///src/shop.db/t t/a b%20c#d?é ", "file:///dst/x.db/t t/a b%20c#d?é ", ""),
        (LOCAL, "\n \n/src//shop.db/t t/\r\n\r", "\n \n/dst/x.db/t t/\r\n\r", ""),
        (LOCAL, "/src/shop.db/t t/a\x0bb\u2028c", "/dst/x.db/t t/a\x0bb\u2028c", ""),
        (LOCAL, "/src/shop.db/t%20t/a", None, "/src/shop.db/t%20t/a"),
        (LOCAL, "/src/shop.db/t tt", None, "/src/shop.db/t tt"),
        (LOCAL, " /src/shop.db/t t/a", None, " /src/shop.db/t t/a"),
        (LOCAL, "/src/shop.db/t t/./a", None, "/src/shop.db/t t/./a"),
        (LOCAL, "/src/shop.db/t t/a\n/x\n/y", "/dst/x.db/t t/a\n/x\n/y", "/x"),
        (LOCAL, "file://host/src/shop.db/t t/a", None, "file://host/src/shop.db/t t/a"),
        (LOCAL, "hdfs://nn/src/shop.db/t t/a", None, "hdfs://nn/src/shop.db/t t/a"),
        (HDFS, "hdfs://nn/w/t/a\n/w/t/b", "hdfs://mm:8020/v/t/a\nhdfs://mm:8020/v/t/b", ""),
        (HDFS, "hdfs://other/w/t/a", None, "hdfs://other/w/t/a"),
        (BUCKET, "s3a://b/k/t/a\ns3://b/k/t/", "s3a://c/k/t/a\ns3a://c/k/t/", ""),
        (BUCKET, "/k/t/a\nhdfs://nn/k/t", "s3a://c/k/t/a\nhdfs://nn/k/t", "hdfs://nn/k/t"),
        (HDFS + BUCKET, "/k/t/a", None, "/k/t/a"),
        (BUCKET, "s3a://bb/k/t/a", None, "s3a://bb/k/t/a"),
        (homes_of([("s3a://b", "s3a://c")], roots=True), "s3a://b/x", "s3a://c/x", ""),
        (homes_of([("/a", "/a"), ("/b", "/c")]), "/a/x\n/b/y", "/a/x\n/c/y", ""),
    ],
)
def test_lines_are_hadoops_paths(homes: Any, text: str, there: str | None, left: str) -> None:
    wanted = text if there is None else there
    assert translated("l", text.encode(), homes, SYMLINK, homes[0][0]) == (wanted.encode(), left)


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("/w/shop.db/t/a", "hdfs://mm:8020/v/shop.db/t/a"),
        ("hdfs:///w/shop.db/t/a", "hdfs://mm:8020/v/shop.db/t/a"),
        ("hdfs://nn/w/shop.db/t/a ", "hdfs://mm:8020/v/shop.db/t/a "),
        ("hdfs://nn:8020/w/shop.db/t", "hdfs://mm:8020/v/shop.db/t"),
        ("hdfs://nn:8020/w/shop.db/tt/a", None),
        ("hdfs://nn:8020/w/shop.db", None),
        ("hdfs://oo:8020/x/ext/a", "hdfs://mm:8020/v/external/shop.db/oo_8020/x/ext/a"),
        ("s3a://b/k/a", "hdfs://mm:8020/v/external/shop.db/b/k/a"),
        ("s3://b/k/a", "hdfs://mm:8020/v/external/shop.db/b/k/a"),
        ("s3a://b/l/a", None),
        ("s3a://m/a", "s3a://n/a"),
        ("/w/shop.db/.published/1/shop.t/a", None),
        ("file:/w/shop.db/t/a", None),
        ("/v/.cmroot/x", None),
        ("//host/w", None),
        ("x:y", None),
    ],
)
def test_a_line_is_placed_where_loads_put_tables(line: str, there: str | None) -> None:
    home = "hdfs://mm:8020/v"
    placement = Placement(
        databases={"shop": "shop"},
        source_locations={"shop": "hdfs://nn:8020/w/shop.db"},
        target_locations={"shop": f"{home}/shop.db"},
        external=f"{home}/external",
        mappings=[("s3a://m", "s3a://n"), ("s3a://m/d", "s3a://n/d")],
        root=f"{home}/.cmroot",
        apart=frozenset(["shop"]),
    )
    rule = TableRule(0, None, "shop", 0, "hdfs://nn:8020/w/shop.db/links", (), gone=False, format=SYMLINK.name)
    outside = f"{home}/external/shop.db"
    known = frozenset([f"{home}/shop.db/t", f"{outside}/oo_8020/x/ext", f"{outside}/b/k"])
    rules = FileRules(placement, {("shop", "links"): [rule]}, 0, frozenset([SYMLINK.name]), known)
    assert named_places._line_at((1, "shop", "links", "", ""), rules, line) == there


def test_readers_of_links_see_no_hidden_files() -> None:
    content = b"/src/shop.db/t t/a"
    assert translated("_note", content, LOCAL, SYMLINK) == (content, "/src/shop.db/t t")
