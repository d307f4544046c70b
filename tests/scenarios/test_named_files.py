"""Avro schemas that properties name, and resources of functions: recorded, kept, copied into a hidden directory of the
database on the target, and named there."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Answer, command
from faults import Fault, run_with
from lab import UNLEASED, Lab
from plain_tables import KEYS, PlainDatabase, text_storage
from warehouse import spark_of

from replicator.captures import capture
from replicator.core.model import EXTERNAL, Function, Partition, Table
from replicator.core.named_files import SCHEMA_URL, property_file, resource_file
from replicator.metastore.embedded.running import Running


def schema(*names: str) -> str:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "event", "fields": fields})


def spark(running: Running, *statements: str) -> list[list[Any]]:
    return spark_of(running.uri, running.warehouse).run(*statements)


def url_of(db: PlainDatabase, table: str) -> str:
    return db.metastore.table(db.name, table).parameters[SCHEMA_URL]


def checked(pair: Lab) -> Answer:
    return command("--config", str(pair.config()), "verify", pair.name, "--level", "checksum", "--engine", "local")


def test_spark_reads_an_avro_table_whose_schema_is_a_file_when_the_source_is_gone(
    pair: Lab, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    db, replica, place = pair.db("a"), pair.replica("a"), tmp_path / "schemas"
    place.mkdir()
    (place / "event.avsc").write_text(schema("id", "note"))
    table = f"{db.name}.events"
    spark(
        source_metastore,
        f"CREATE EXTERNAL TABLE {table} ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.avro.AvroSerDe' STORED AS"
        " INPUTFORMAT 'org.apache.hadoop.hive.ql.io.avro.AvroContainerInputFormat' OUTPUTFORMAT"
        f" 'org.apache.hadoop.hive.ql.io.avro.AvroContainerOutputFormat' LOCATION '{db.home}/events'"
        f" TBLPROPERTIES ('{SCHEMA_URL}'='file:{place}/event.avsc')",
        f"INSERT INTO {table} VALUES ('1', 'one')",
    )
    run = pair.sync()
    assert (run.status, run.not_replicated) == ("synced", [])
    copy = Path(url_of(replica, "events").removeprefix("file:"))
    assert copy.parent.parent == replica.home / ".named" and copy.read_text() == schema("id", "note")
    assert (pair.sync().status, checked(pair).code) == ("nothing", 0)

    # a schema that changes in place
    (place / "event.avsc").write_text(schema("id", "note", "more"))
    run = pair.sync()
    assert (run.status, run.files_copied, copy.read_text()) == ("synced", 1, schema("id", "note", "more"))
    copy.write_text(schema("id"))
    found = checked(pair)
    assert [(each["kind"], each["field"]) for each in found.output["differences"]] == [("file content", SCHEMA_URL)]
    assert command("--config", str(pair.config()), "repair", pair.name, "--engine", "local").code == 0
    assert checked(pair).code == 0

    place.rename(tmp_path / "gone")
    db.home.rename(db.home.with_name("gone"))
    assert spark(target_metastore, f"SELECT * FROM {table}") == [["1", "one", None]]
    db.home.with_name("gone").rename(db.home)

    # and back: the old source gets the file into its table's directory, and names it there
    pair.turn()
    run = pair.sync()
    assert (run.reverse, run.not_replicated) == (True, [])
    own = Path(url_of(db, "events").removeprefix("file:"))
    assert own.read_text() == schema("id", "note", "more") and own.is_relative_to(db.home / ".named")
    copy.write_text(schema("id", "other"))
    assert pair.sync().files_copied == 1 and own.read_text() == schema("id", "other")
    assert spark(source_metastore, f"REFRESH TABLE {table}", f"SELECT id FROM {table}") == [["1"]]


# ---- other objects ------------------------------------------------------------------------------------------------


def name_schema(db: PlainDatabase, table: str, url: str) -> None:
    db.alter(table, **{SCHEMA_URL: url})


def with_url(storage: Any, url: str) -> Any:
    serde = msgspec.structs.replace(storage.serde, parameters={**storage.serde.parameters, SCHEMA_URL: url})
    return msgspec.structs.replace(storage, serde=serde)


def local(url: str) -> Path:
    return Path(url.removeprefix("file:"))


def test_partitions_and_serdes_name_the_copies_of_their_table(pair: Lab, tmp_path: Path) -> None:
    """Two partitions that share a schema have one copy; a path without a scheme is one of the table's filesystem."""
    db, replica = pair.db("a"), pair.replica("a")
    for name in ("one", "two"):
        (tmp_path / f"{name}.avsc").write_text(schema(name))
    db.table("days", partition_keys=KEYS)
    made = []
    for value, schema_name in (("1", "one"), ("2", "one"), ("3", "two")):
        db.write(f"days/p={value}", {"x": value})
        storage = with_url(text_storage(db.home / f"days/p={value}"), f"{tmp_path}/{schema_name}.avsc")
        made.append(Partition(values=(value,), storage=storage))
    db.metastore.add_partitions(db.name, "days", made)
    table = db.metastore.table(db.name, "days")
    assert table.storage
    url = f"file:{tmp_path}/one.avsc"
    db.metastore.alter_table(db.name, "days", msgspec.structs.replace(table, storage=with_url(table.storage, url)))
    run = pair.sync()
    assert (run.status, run.not_replicated, run.files_copied) == ("synced", [], 5)
    (found,) = replica.metastore.partitions(db.name, "days", ["p=1", "p=2", "p=3"])
    urls = [each.storage.serde.parameters[SCHEMA_URL] for each in found if each.storage]
    there = replica.metastore.table(db.name, "days").storage
    assert there and there.serde.parameters[SCHEMA_URL] == urls[0] == urls[1]
    assert [local(each).read_text() for each in urls] == [schema("one"), schema("one"), schema("two")]
    assert {local(each).parent.parent for each in urls} == {replica.home / ".named"}
    assert checked(pair).code == 0

    (tmp_path / "new.avsc").write_text(schema("new"))  # by an event alone
    db.write("days/p=4", {"x": "4"})
    storage = with_url(text_storage(db.home / "days/p=4"), f"{tmp_path}/new.avsc")
    db.metastore.add_partitions(db.name, "days", [Partition(values=("4",), storage=storage)])
    assert pair.sync(scan=False).files_copied == 2
    assert checked(pair).code == 0


def test_the_bytes_of_a_schema_are_kept_after_the_source_has_removed_it(fixture: Lab, tmp_path: Path) -> None:
    db, file = fixture.source, tmp_path / "event.avsc"
    file.write_text(schema("id"))
    db.table("t", {"a": "1" * 1000})
    name_schema(db, "t", f"file:{file}")
    assert fixture.dump().code == 0
    file.unlink()
    assert fixture.load().code == 0
    copy = local(url_of(fixture.target, "t"))
    assert copy.read_text() == schema("id")
    db.write("t", {"b": "2"})  # a listing of the table does not take it for a removed file
    assert fixture.dump(since=fixture.last).code == fixture.load().code == 0
    assert not copy.exists(), "the source has no such file any more"
    kept = [path.read_text() for path in (fixture.target_cmroot / "files").rglob("xxh3_128-*")]
    assert schema("id") in kept

    file.write_text(schema("back"))
    db.alter("t", note="x")
    assert fixture.dump(since=fixture.last).code == fixture.load().code == 0
    assert copy.read_text() == schema("back")
    fixture.roots_are_in_order(UNLEASED)


def test_a_dump_with_data_has_the_files_that_metadata_names(fixture: Lab, tmp_path: Path) -> None:
    """A complete one, and an increment that changes one of the files."""
    db, file, code = fixture.source, tmp_path / "event.avsc", jar(tmp_path / "a.jar")
    content = code.read_bytes()
    file.write_text(schema("id"))
    db.table("t", {"a": "1"})
    name_schema(db, "t", f"file:{file}")
    function(db, "f", ("JAR", f"file:{code}"))
    assert fixture.dump("--with-data").code == 0
    file.write_text(schema("id", "more"))
    assert fixture.dump("--with-data", since=fixture.last).code == 0
    file.unlink()
    code.unlink()
    with fixture.without_source():
        for number, wanted in enumerate((schema("id"), schema("id", "more")), 1):
            loaded = fixture.load(fixture.here / f"dump{number}")
            assert loaded.code == 0, loaded.output
            assert local(url_of(fixture.target, "t")).read_text() == wanted
        assert resources(fixture.target, "f")["JAR"].read_bytes() == content


def test_a_schema_whose_directory_is_away_stays_on_the_replica(fixture: Lab, tmp_path: Path) -> None:
    db, place = fixture.source, tmp_path / "mounted"
    place.mkdir()
    (place / "event.avsc").write_text(schema("id"))
    db.table("t", {"a": "1"})
    name_schema(db, "t", f"file:{place}/event.avsc")
    fixture.dump()
    fixture.load()
    place.rename(tmp_path / "away")
    db.write("t", {"b": "2"})
    assert fixture.dump(since=fixture.last).code == fixture.load().code == 0
    assert local(url_of(fixture.target, "t")).read_text() == schema("id")


def test_a_file_of_the_table_and_an_address_elsewhere_are_named_as_before(fixture: Lab) -> None:
    db = fixture.source
    db.table("t", {"a": "1", "schema.avsc": schema("id")})
    name_schema(db, "t", f"file:{db.home}/t/schema.avsc")
    db.table("web", {"a": "1"})
    name_schema(db, "web", "http://schemas.example/event.avsc")
    assert fixture.dump().code == fixture.load().code == 0
    assert url_of(fixture.target, "t") == f"file:{fixture.target.home}/t/schema.avsc"
    assert url_of(fixture.target, "web") == "http://schemas.example/event.avsc"


@pytest.mark.parametrize("partitioned", [False, True])
def test_published_and_renamed_tables_have_their_schema(pair: Lab, tmp_path: Path, partitioned: bool) -> None:
    pair.keys["publish"] = "snapshot"
    db, replica, file = pair.db("a"), pair.replica("a"), tmp_path / "event.avsc"
    file.write_text(schema("id"))
    if partitioned:
        db.partitioned("t", {"1": {"x": "one"}})
    else:
        db.table("t", {"x": "one"})
    name_schema(db, "t", f"file:{file}")
    assert pair.sync().status == "synced"
    assert local(url_of(replica, "t")).read_text() == schema("id")
    db.write("t/p=1" if partitioned else "t", {"y": "two"})
    run = pair.sync()
    assert (run.status, run.not_replicated) == ("synced", [])
    assert local(url_of(replica, "t")).read_text() == schema("id")
    file.write_text(schema("id", "more"))
    run = pair.sync()
    assert (run.status, run.not_replicated) == ("synced", [])
    assert local(url_of(replica, "t")).read_text() == schema("id", "more")
    db.rename("t", "u")
    run = pair.sync()
    assert (run.status, run.not_replicated) == ("synced", [])
    assert local(url_of(replica, "u")).read_text() == schema("id", "more")
    assert checked(pair).code == 0


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("file:/schemas/a.avsc", "/schemas/a.avsc"),
        ("/schemas/a.avsc", "/schemas/a.avsc"),
        ("hdfs://nn/schemas/../a.avsc", "hdfs://nn/a.avsc"),
        ("https://x/a.avsc", None),
        ("none", None),
        ("/w/.named/0123/a.avsc", "/w/.named/0123/a.avsc"),
        ("/w/t/a.avsc", None),
        ("/w/t/.hidden/a.avsc", "/w/t/.hidden/a.avsc"),
        ("/", None),
    ],
)
def test_a_file_that_a_property_names(url: str, place: str | None) -> None:
    table = Table(db="d", name="t", kind=EXTERNAL, storage=text_storage(Path("/w/t")))
    found = property_file("file:/w", table, "Avro.Schema.Url", url)
    assert (found and found.place) == place
    if found is not None:
        assert found.path.endswith("/a.avsc") and found.path.count("/") == 1
        assert found.path == "0123/a.avsc" or "0123" not in url
    assert property_file("file:/w", table, "path", url) is None


def test_a_path_without_a_scheme_is_one_of_the_databases_filesystem() -> None:
    found = resource_file("hdfs://nn:8020/w", "/schemas/a.avsc")
    assert found and found.place == "hdfs://nn:8020/schemas/a.avsc"


# ---- functions ----------------------------------------------------------------------------------------------------

LENGTH = "org.apache.hadoop.hive.ql.udf.generic.GenericUDFLength"


def jar(place: Path, content: str = "first") -> Path:
    with zipfile.ZipFile(place, "w") as file:
        file.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
        file.writestr("content", content)
    return place


def function(db: PlainDatabase, name: str, *resources: tuple[str, str]) -> None:
    db.metastore.create_function(Function(db.name, name, LENGTH, "me", "USER", resources=resources))


def resources(db: PlainDatabase, name: str) -> dict[str, Path]:
    (found,) = [each for each in db.metastore.functions(db.name) if each.name == name]
    return {kind: local(address) for kind, address in found.resources}


def test_spark_runs_a_function_of_a_replica_when_its_jar_is_gone_from_the_source(
    pair: Lab, target_metastore: Running, tmp_path: Path
) -> None:
    db, replica, place = pair.db("a"), pair.replica("a"), tmp_path / "jars"
    place.mkdir()
    first = jar(place / "length.jar")
    content = first.read_bytes()
    (place / "words.txt").write_text("words")
    function(db, "size_of", ("JAR", f"file:{first}"), ("FILE", f"{place}/words.txt"))
    function(db, "also", ("JAR", f"file:{first}"))
    function(db, "far", ("JAR", "ivy://org.example:udf:1.0"))
    run = pair.sync()
    assert (run.status, run.not_replicated, run.files_copied) == ("synced", [], 2)
    found = resources(replica, "size_of")
    assert found["JAR"].parent.parent == replica.home / ".named" and found["JAR"] == resources(replica, "also")["JAR"]
    assert (found["JAR"].read_bytes(), found["FILE"].read_text()) == (content, "words")
    assert str(resources(replica, "far")["JAR"]) == "ivy:/org.example:udf:1.0"
    assert (pair.sync().status, checked(pair).code) == ("nothing", 0)

    changed = jar(first, "second").read_bytes()
    assert (pair.sync().files_copied, found["JAR"].read_bytes()) == (1, changed)
    assert checked(pair).code == 0
    place.rename(tmp_path / "gone")
    assert spark(target_metastore, f"SELECT {replica.name}.size_of('four')") == [[4]]
    (tmp_path / "gone").rename(place)

    # and back: the old source's function names a copy in its own database
    pair.turn()
    run = pair.sync()
    assert (run.reverse, run.not_replicated) == (True, [])
    own = resources(db, "size_of")["JAR"]
    assert own.is_relative_to(db.home / ".named") and own.read_bytes() == changed
    assert command("--config", str(pair.config()), "verify", pair.name, "--engine", "local").code == 0
    replica.metastore.drop_function(replica.name, "also")
    pair.sync()
    assert own.exists(), "another function names it"
    replica.metastore.drop_function(replica.name, "size_of")
    pair.sync()
    assert not own.exists()
    kept = [path.read_bytes() for path in (pair.here / "cmroot/files").rglob("xxh3_128-*")]
    assert changed in kept


def test_resources_are_kept_dumped_and_removed_with_their_functions(fixture: Lab, tmp_path: Path) -> None:
    db, file = fixture.source, jar(tmp_path / "a.jar")
    content = file.read_bytes()
    db.table("t", {"a": "1" * 10_000})
    assert fixture.dump().code == fixture.load().code == 0
    function(db, "f", ("JAR", f"file:{file}"))
    assert fixture.dump("--no-scan", since=fixture.last).code == 0
    file.unlink()
    assert fixture.load().code == 0
    copy = resources(fixture.target, "f")["JAR"]
    assert copy.read_bytes() == content
    jar(file)
    some = fixture.dump("--include", "nothing", "--include", "t", out=tmp_path / "some")
    assert (some.code, some.output["files"]) == (0, 2), "functions are in every scope, and so are their files"
    db.metastore.drop_function(db.name, "f")
    assert fixture.dump(since=fixture.last).code == 0
    assert fixture.load().code == 0
    assert not copy.exists() and not copy.parent.exists()
    fixture.roots_are_in_order(UNLEASED)
    checks = command("cm", "check", "--cmroot", str(fixture.cmroot), "--engine", "local")
    assert (checks.code, checks.output["findings"]) == (0, [])


def test_a_resource_that_cannot_be_read_is_named(fixture: Lab, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    function(fixture.source, "f", ("ARCHIVE", f"file:{tmp_path}/archive"))
    fixture.source.table("t", {"a": "1"})
    captured = fixture.capture()
    assert captured.code == 3
    (named,) = captured.output["not_replicated"]
    assert named["object"] == f"{fixture.name}.f" and f"{tmp_path}/archive" in named["reason"]


def test_a_load_killed_while_it_replaces_a_function_is_completed(fixture: Lab, tmp_path: Path) -> None:
    """Servers change no resources of an existing function: it is dropped and created again."""
    db = fixture.source
    db.table("t", {"a": "1"})
    function(db, "f", ("JAR", f"file:{jar(tmp_path / 'a.jar')}"))
    assert fixture.dump().code == fixture.load().code == 0
    db.metastore.drop_function(db.name, "f")
    function(db, "f", ("JAR", f"file:{jar(tmp_path / 'b.jar')}"))
    assert fixture.dump(since=fixture.last).code == 0
    ended = run_with(Fault("before", "any", "create function", 2), fixture.load_arguments(fixture.last), must=False)
    assert ended.killed and fixture.target.metastore.functions(fixture.name) == []
    assert fixture.load().code == 0
    assert resources(fixture.target, "f")["JAR"].name == "b.jar" and resources(fixture.target, "f")["JAR"].exists()


def test_a_root_of_an_earlier_release_records_the_files_at_its_next_scan(
    fixture: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, file = fixture.source, tmp_path / "event.avsc"
    file.write_text(schema("id"))
    db.table("t", {"a": "1"})
    name_schema(db, "t", f"file:{file}")
    function(db, "f", ("JAR", f"file:{jar(tmp_path / 'a.jar')}"))
    with monkeypatch.context() as earlier:
        earlier.setattr(capture, "list_named", lambda *_, **__: None)
        assert fixture.dump().code == 0
        (fixture.cmroot / "manifest.sqlite").unlink()
    fixture.load()
    assert fixture.dump(since=fixture.last).code == 0
    assert (loaded := fixture.load()).code == 0 and loaded.output["files_copied"] == 2
    assert local(url_of(fixture.target, "t")).read_text() == schema("id")
    assert resources(fixture.target, "f")["JAR"].exists()


@pytest.mark.parametrize("address", ["hdfs://no-such-service/f.jar", "hdfs://127.0.0.1:1/f.jar"])
@pytest.mark.usefixtures("impatient")
def test_a_file_on_a_cluster_that_is_gone_stops_neither_capture_nor_load(fixture: Lab, address: str) -> None:
    function(fixture.source, "f", ("JAR", address))
    fixture.source.table("t", {"a": "1"})
    captured = fixture.capture()
    assert captured.code == 3 and "cannot be read" in str(captured.output["not_replicated"]), captured
    again = fixture.capture("--no-scan")  # named still, without waiting for the host again
    assert (
        again.output["not_replicated"] == captured.output["not_replicated"] and len(again.output["not_replicated"]) == 1
    )
    for answer in (fixture.dump(), fixture.load()):
        assert answer.code == 3 and "cannot be read" in str(answer.output["not_replicated"]), answer
    assert fixture.target.metastore.functions(fixture.target.name)[0].resources == (("JAR", address),)
    assert fixture.target.shown()["t"] == fixture.source.shown()["t"]


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_is_gone_is_asked_once_in_a_capture(fixture: Lab) -> None:
    """All of its files have the error of one of them."""
    for name in ("f", "g", "h"):
        function(fixture.source, name, ("JAR", f"hdfs://127.0.0.1:1/{name}.jar"))
    for answer in (fixture.capture(), fixture.dump()):
        assert answer.code == 3 and len(named := answer.output["not_replicated"]) == 3, answer
        assert len({each["reason"].partition(", which cannot be read: ")[2] for each in named}) == 1, named


def test_the_address_of_a_file_that_is_seen_nowhere_stays(fixture: Lab) -> None:
    """It may be on the nodes of both clusters."""
    db = fixture.source
    db.table("t", {"a": "1"})
    name_schema(db, "t", "/opt/of-the-nodes/event.avsc")
    function(db, "f", ("JAR", "/opt/of-the-nodes/f.jar"))
    assert fixture.dump().code == fixture.load().code == 0
    assert url_of(fixture.target, "t") == "/opt/of-the-nodes/event.avsc"
    assert resources(fixture.target, "f")["JAR"] == Path("/opt/of-the-nodes/f.jar")
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    assert command("verify", *sides, "--engine", "local").code == 0
