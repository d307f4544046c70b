"""Files that contain locations: the log of a streaming sink, manifests, markers of committers. Replicas name their own
files, and whatever a load cannot translate is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from faults import Fault, run_with
from lab import Lab
from spark_stream import stream
from warehouse import spark_of

from replicator.metastore.embedded.running import Running
from replicator.replay.apply.named_places import homes_of, moved, named_in, translated


def named(answer: Answer) -> list[str]:
    return sorted(each["object"] for each in answer.output["not_replicated"])


def verified(fixture: Lab, *more: str) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    return command("verify", *sides, "--engine", "local", "--level", "checksum", *more)


# ---- Spark's streaming sinks --------------------------------------------------------------------------------------


def feed(place: Path, *ids: int) -> None:
    place.mkdir(exist_ok=True)
    for each in ids:
        (place / f"{each}.json").write_text(json.dumps({"id": each}))


def rows(running: Running, table: str) -> list[Any]:
    return sorted(
        row[0]
        for row in spark_of(running.uri, running.warehouse).run(f"REFRESH TABLE {table}", f"SELECT * FROM {table}")
    )


def test_spark_reads_a_replica_of_a_streaming_sink_when_the_source_is_gone(
    pair: Lab, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    db, given, checkpoint = pair.db("a"), tmp_path / "given", tmp_path / "checkpoint"
    table, sink = f"{db.name}.events", db.home / "events"
    spark_of(source_metastore.uri, source_metastore.warehouse).run(
        f"CREATE TABLE {table} (id INT) USING parquet LOCATION '{sink}'"
    )
    feed(given, 1, 2)
    stream(given, sink, checkpoint)
    assert rows(source_metastore, table) == [1, 2] and (sink / "_spark_metadata/1").exists()
    run = pair.sync()
    assert (run.status, run.not_replicated) == ("synced", [])
    replica = pair.replica("a").home / "events"
    assert str(sink) not in (replica / "_spark_metadata/0").read_text()
    assert str(replica) in (replica / "_spark_metadata/0").read_text()
    assert pair.sync().status == "nothing"

    feed(given, 3, 4)  # the third batch writes 2.compact
    stream(given, sink, checkpoint)
    assert (sink / "_spark_metadata/2.compact").exists()
    assert pair.sync().status == "synced"
    checked = command("--config", str(pair.config()), "verify", pair.name, "--level", "checksum", "--engine", "local")
    assert (checked.code, checked.output["status"]) == (0, "same"), checked
    sink.rename(sink.with_name("gone"))
    assert rows(target_metastore, table) == [1, 2, 3, 4]

    # a replica whose log has another content than the translation differs
    log = replica / "_spark_metadata/3"
    log.write_text(log.read_text().replace("/events/part", "/events/other"))
    sink.with_name("gone").rename(sink)
    checked = command("--config", str(pair.config()), "verify", pair.name, "--engine", "local")
    assert [(each["kind"], each["field"]) for each in checked.output["differences"]] == [
        ("file content", "_spark_metadata/3")
    ]

    # and the log is translated back when the sides change their roles
    before = {path.name: path.read_bytes() for path in (sink / "_spark_metadata").iterdir() if path.name[0] != "."}
    assert pair.sync(scan=True, deep=True).status in ("nothing", "synced")
    command("--config", str(pair.config()), "repair", pair.name, "--engine", "local")
    pair.turn()
    part = next(replica.glob("part-*"))
    line = next(each for each in log.read_text().splitlines() if "path" in each)
    (replica / "part-new.parquet").write_bytes(part.read_bytes())
    about = json.loads(line) | {"path": f"file://{replica}/part-new.parquet"}
    (replica / "_spark_metadata/4").write_text("v1\n" + json.dumps(about))
    run = pair.sync()
    assert (run.status, run.reverse, run.not_replicated) == ("synced", True, [])
    after = {path.name: path.read_bytes() for path in (sink / "_spark_metadata").iterdir() if path.name[0] != "."}
    assert {name: data for name, data in after.items() if name != "4"} == before
    assert json.loads(after["4"].splitlines()[1])["path"] == f"file://{sink}/part-new.parquet"


# ---- other files --------------------------------------------------------------------------------------------------


def test_a_file_that_names_the_source_is_reported_until_it_is_gone(fixture: Lab) -> None:
    db, table = fixture.source, f"{fixture.name}.t"
    db.table("t", {"a": "1", "_index": f"first: file:{fixture.source.home}/t/a"})
    db.table("u", {"a": "1" * 1000})
    assert fixture.dump().code == 0
    loaded = fixture.load()
    assert (loaded.code, loaded.output["status"], named(loaded)) == (3, "incomplete", [table])
    assert "_index" in loaded.output["not_replicated"][0]["reason"]
    found = verified(fixture)
    assert (found.code, found.output["status"], named(found), found.output["differences"]) == (
        3,
        "incomplete",
        [table],
        [],
    )

    db.write("u", {"b": "2"})  # a range without the table
    assert fixture.dump(since=fixture.last).code == 0
    assert (loaded := fixture.load()).code == 3 and named(loaded) == [table]
    db.write("t", {"b": "2"})  # one with the table, but without the file
    db.rename("t", "renamed")
    assert fixture.dump(since=fixture.last).code == 0
    assert (loaded := fixture.load()).code == 3 and named(loaded) == [f"{fixture.name}.renamed"]
    assert "_index" in loaded.output["not_replicated"][0]["reason"]
    (db.home / "renamed" / "_index").unlink()
    db.write("renamed", {"c": "3"})
    assert fixture.dump(since=fixture.last).code == 0
    assert (loaded := fixture.load()).code == 0 and named(loaded) == []
    assert verified(fixture).code == 0


def test_every_run_of_a_policy_reports_such_a_file(pair: Lab) -> None:
    db = pair.db("a")
    db.partitioned("days", {"1": {"x": "one", "_files": f"{db.home}/days/p=1/x"}})
    for status in ("synced", "nothing"):
        run = pair.sync()
        assert [each.name for each in run.not_replicated] == [f"{db.name}.days/p=1"], status
        assert run.status == "incomplete"
    told = command("--config", str(pair.config()), "status", pair.name)
    assert "_files" in str(told.output)


def test_markers_and_manifests_are_translated(fixture: Lab) -> None:
    db, home = fixture.source, fixture.source.home
    marker = {"committer": "magic", "filenames": [f"{home}/t/a", "elsewhere"]}
    db.table("t", {"a": "1", "_SUCCESS": json.dumps(marker)})
    db.write("t/_symlink_format_manifest/p=1", {"manifest": f"file:{home}/t/a\n{home}/t/b c\n"})
    assert fixture.dump().code == fixture.load().code == 0
    there = fixture.target.home / "t"
    assert json.loads((there / "_SUCCESS").read_text()) == marker | {"filenames": [f"{there}/a", "elsewhere"]}
    manifest = (there / "_symlink_format_manifest/p=1/manifest").read_text()
    assert manifest == f"file:{there}/a\n{there}/b c\n"
    assert verified(fixture).code == 0
    changed = (there / "_SUCCESS").stat().st_mtime_ns
    assert fixture.load(fixture.last, "--overwrite").code == 0
    assert (there / "_SUCCESS").stat().st_mtime_ns == changed


def test_a_load_killed_between_two_files_translates_them_when_it_runs_again(fixture: Lab) -> None:
    """The bytes that a load has translated are not the recorded ones: it does not copy the original over them."""
    db = fixture.source
    db.table("t", {"a": "1", "_SUCCESS": json.dumps({"filenames": [f"{db.home}/t/a"]})})
    assert fixture.dump().code == 0
    ended = run_with(Fault("before", "any", "create table", 1), fixture.load_arguments(fixture.last))
    assert ended.killed
    written = fixture.target.home / "t/_SUCCESS"
    there = written.stat().st_ino
    assert fixture.load().code == 0
    assert written.stat().st_ino == there and str(fixture.target.home) in written.read_text()
    assert verified(fixture).code == 0


# ---- spellings ----------------------------------------------------------------------------------------------------

LOCAL = homes_of([("file:/src/shop.db/t t", "file:/dst/x.db/t t"), ("file:/src/shop.db", "file:/dst/x.db")])
HDFS = homes_of([("hdfs://nn:8020/w/shop.db", "hdfs://mm:8020/v/shop.db")])
BUCKET = homes_of([("s3a://b/k/shop.db", "s3a://c/k/shop.db")])
INSIDE = homes_of([("/w", "/w/copy")])


@pytest.mark.parametrize(
    ("homes", "content", "found"),
    [
        (LOCAL, b"x /src/shop.db/t", True),
        (LOCAL, b'"file:///src/shop.db"', True),
        (LOCAL, b"file://localhost/src/shop.db/t", True),
        (LOCAL, b"file%3A%2F%2F%2Fsrc%2Fshop.db%2Ft", True),
        (LOCAL, b"file:///src/shop.db/t%20t/part", True),
        (LOCAL, rb'"\/src\/shop.db\/t"', True),
        (LOCAL, b"\0d/src/shop.db/t\0", True),
        (LOCAL, b"in /src/shop.db.", True),
        (LOCAL, b"/src/shop.dbx /src/shop.db-2 /other/src/shop.db /dst/x.db", False),
        (HDFS, b"hdfs://nn/w/shop.db/t", True),
        (HDFS, b"hdfs://nn:8020/w/shop.db/t", True),
        (HDFS, b"hdfs:///w/shop.db/t", True),
        (HDFS, b"/w/shop.db/t", True),
        (HDFS, b"hdfs://mm:8020/v/shop.db/t", False),
        (BUCKET, b"s3://b/k/shop.db/t", True),
        (BUCKET, b"s3n%3A%2F%2Fb%2Fk%2Fshop.db", True),
        (BUCKET, b"/k/shop.db/t s3a://c/k/shop.db/t", False),
        (INSIDE, b"/w/copy/t", False),
        (INSIDE, b"/w/copier/t", True),
    ],
)
def test_a_location_is_found_in_any_spelling(homes: Any, content: bytes, found: bool) -> None:
    assert bool(named_in(content, homes)) is found


@pytest.mark.parametrize(
    ("homes", "value", "there"),
    [
        (LOCAL, "/src/shop.db/u", "/dst/x.db/u"),
        (LOCAL, "file:///src/shop.db", "file:///dst/x.db"),
        (LOCAL, "file:/src/shop.dbx", "file:/src/shop.dbx"),
        (HDFS, "hdfs://nn/w/shop.db/t", "hdfs://mm:8020/v/shop.db/t"),
        (HDFS, "hdfs:///w/shop.db/t", "hdfs://mm:8020/v/shop.db/t"),
        (BUCKET, "s3://b/k/shop.db/t/", "s3a://c/k/shop.db/t/"),
        (homes_of([("/src", "s3a://c/k")]), "file:///src/a", "s3a://c/k/a"),
        (homes_of([("s3a://c/k", "/dst")]), "s3a://c/k/a", "file:///dst/a"),
        (homes_of([("/a/b", "/a/b"), ("/a", "/c")]), "/a/b/x", "/a/b/x"),
        (LOCAL, "no path", "no path"),
    ],
)
def test_a_path_is_translated_to_the_targets_form(homes: Any, value: str, there: str) -> None:
    assert moved(value, homes) == there


def test_a_stream_log_has_uris_and_keeps_all_other_bytes() -> None:
    log = b'v1\n{"path":"file:///src/shop.db/t%20t/p%25/part-0","size":1, "action":"add"}\n{ "path" : "x" }'
    assert translated("_spark_metadata/0", log, LOCAL) == (log.replace(b"/src/shop.db/", b"/dst/x.db/"), "")
    assert translated("_index", log, LOCAL) == (log, "/src/shop.db")
    assert translated("_spark_metadata/0", b"\xff/src/shop.db/", LOCAL) == (b"\xff/src/shop.db/", "/src/shop.db")
