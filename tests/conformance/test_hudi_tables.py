"""Tables that Hudi's releases have written (versions 6 and 9, copy on write and merge on read), replicated, and read by
hudi-rs with the source moved away. `test_hudi.py` has Hudi's own Spark."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import hudi_tables
import pytest
from command_line import Answer, command
from hudi_tables import KINDS, VERSIONS, make, read, unpack
from lab import Lab
from lost_primary import nobody
from metastores import MetastoreFactory
from stores import moto_bucket, s3a_as_directories

from cmroot.store.hudi import translated
from cmroot.store.place import Place
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.role_changes.failback import FailbackSettings, failback
from replicator.policies.role_changes.failover import FailoverSettings, failover

__all__ = ["moto_bucket"]

EACH = [pytest.param(kind, version, id=f"{kind}-{version}") for version in VERSIONS for kind in KINDS]
FIRST = [(1, "z", "x"), (2, "b", "y"), (3, "c", "x")]
LAST = [(1, "z", "x"), (3, "c", "x"), *((id, "n", "y") for id in range(4, 8))]


def renamed(lab: Lab) -> tuple[str, str]:
    return "--rename-db", f"{lab.name}={lab.name}_r"


def replica(lab: Lab, table: str) -> Path:
    return lab.warehouse / f"{lab.name}_r.db" / table


def load(lab: Lab, *more: str) -> Answer:
    return lab.load(None, *renamed(lab), *more)


def verified(lab: Lab, *more: str) -> Answer:
    sides = ["--source", lab.source_uri, "--target", lab.target_uri, "--db", lab.name]
    return command("verify", *sides, *renamed(lab), "--engine", "local", *more)


def gaps(answer: Answer) -> dict[str, str]:
    return {each["object"].partition(".")[2]: each["reason"] for each in answer.output["not_replicated"]}


def timeline(place: Path, version: str) -> Path:
    return place / ".hoodie" / ("timeline" if version == "9" else "")


def instants(place: Path, version: str) -> list[str]:
    """The completed commits of a table, the newest last."""
    ended = (".commit", ".deltacommit", ".replacecommit")
    found = (path.name for path in timeline(place, version).iterdir() if path.suffix in ended)
    return sorted(found)


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind, version", EACH)
def test_a_replica_is_the_table_without_its_source(fixture: Lab, kind: str, version: str) -> None:
    place = make(fixture.source, kind, version)
    assert read(place) == FIRST
    assert (fixture.dump().code, load(fixture).code, verified(fixture).code) == (0, 0, 0)
    with fixture.without_source():
        assert read(replica(fixture, kind)) == FIRST
    unpack(kind, version, "last", place)
    assert read(place) == LAST
    assert (fixture.dump(since=fixture.last).code, load(fixture).code) == (0, 0)
    found = verified(fixture)
    assert found.code == 0, found.output["differences"]
    with fixture.without_source():
        assert read(replica(fixture, kind)) == LAST
        assert (
            files(place.parent.with_name(f"{place.parent.name}-away") / kind).keys()
            == files(replica(fixture, kind)).keys()
        )
    properties = (replica(fixture, kind) / ".hoodie/hoodie.properties").read_text()
    assert "hoodie.database.name=made" in properties  # the name of no database here


def test_three_tables_of_one_directory_are_read_once(fixture: Lab) -> None:
    place = make(fixture.source, "mor", "9")
    captured = fixture.capture()
    assert captured.output["files"] == 3 * len(files(place)), captured
    assert (fixture.dump().code, load(fixture).code) == (0, 0)
    target = fixture.target.metastore
    for name in ("mor", "mor_ro", "mor_rt"):
        table = target.table(f"{fixture.name}_r", name)
        assert table.storage and table.storage.location == table.storage.serde.parameters["path"]
        (some,) = target.partitions(f"{fixture.name}_r", name, ["d=x", "d=y"])
        assert [each.storage.location for each in some if each.storage] == [
            f"file:{replica(fixture, 'mor')}/d={value}" for value in "xy"
        ]


@pytest.mark.parametrize("kind, version", EACH)
def test_an_instant_that_is_not_completed_is_not_replicated(fixture: Lab, kind: str, version: str) -> None:
    """As if captured while the newest commit is being written: its files are there, its last file is not."""
    place = make(fixture.source, kind, version)
    newest = instants(place, version)[-1]
    done = timeline(place, version) / newest
    aside = done.rename(place.parent / newest)
    before = read(place)
    assert before != FIRST
    assert (fixture.dump().code, load(fixture).code, verified(fixture).code) == (0, 0, 0)
    time = newest.partition("_")[0].partition(".")[0]
    there = replica(fixture, kind)
    assert not any(path.name.startswith(time) for path in timeline(there, version).iterdir())
    assert read(there) == before
    aside.rename(done)
    assert (fixture.dump(since=fixture.last).code, load(fixture).code, verified(fixture).code) == (0, 0, 0)
    assert read(there) == FIRST


@pytest.mark.parametrize("kind, version", EACH)
def test_a_load_that_cannot_finish_leaves_an_earlier_instant(fixture: Lab, kind: str, version: str) -> None:
    place = make(fixture.source, kind, version)
    assert (fixture.dump().code, load(fixture).code) == (0, 0)
    unpack(kind, version, "last", place)
    assert fixture.dump(since=fixture.last).code == 0
    commits = instants(place, version)
    lost = timeline(place, version) / commits[0]
    content = lost.read_bytes()
    kept = [path for path in (fixture.cmroot / "files").rglob("*") if path.is_file() and path.read_bytes() == content]
    for path in (lost, *kept):
        path.unlink()
    assert load(fixture).code != 0
    there = replica(fixture, kind)
    assert commits[-1] not in instants(there, version)
    assert read(there)  # some instant's rows
    lost.write_bytes(content)
    for path in kept:
        path.write_bytes(content)
    assert (load(fixture).code, verified(fixture).code) == (0, 0)
    assert read(there) == LAST


def test_a_restore_gives_an_earlier_instant(fixture: Lab) -> None:
    place = make(fixture.source, "mor", "9")
    first = fixture.capture().output["position"]
    unpack("mor", "9", "last", place)
    assert fixture.capture().code == 0
    more = ["--db", fixture.name, "--to", f"@{first}", "--into", f"{fixture.name}_old", "--engine", "local"]
    done = command(
        "restore",
        "--cmroot",
        str(fixture.cmroot),
        "--target",
        fixture.target_uri,
        *more,
        "--warehouse",
        str(fixture.warehouse),
    )
    assert done.code == 0, done
    assert read(fixture.warehouse / f"{fixture.name}_old.db" / "mor") == FIRST


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_primary_comes_back_without_the_write_that_it_was_lost_in(pair: Lab, kind: str) -> None:
    pair.keys["rename_db"] = {f"{pair.name}_a": f"{pair.name}_r"}
    place, there = make(pair.db("a"), kind, "9"), pair.warehouse / f"{pair.name}_r.db" / kind
    pair.sync()
    assert read(there) == FIRST
    (timeline(place, "9") / "20991231000000000.deltacommit.inflight").write_bytes(b"")
    (place / "d=x" / f"{uuid4()}-0_0-1-2_20991231000000000.parquet").write_bytes(b"half")
    (place / ".hoodie/.temp/20991231000000000").mkdir(parents=True)
    with ThriftMetastore(nobody(), retries=0) as gone:
        failover(replace(pair.sides(), source=gone), (gone, pair.target.metastore), FailoverSettings(force=True))
    unpack(kind, "9", "last", there)
    assert failback(pair.sides(), FailbackSettings(patience=pair.policy.schedule * 0)).status == "done"
    assert read(place) == LAST
    assert not [path for path in place.rglob("*") if "20991231" in path.name and path.is_file()]


def test_a_replica_in_a_bucket(
    fixture: Lab, moto_bucket: str, metastore_factory: MetastoreFactory, tmp_path: Path
) -> None:
    place = make(fixture.source, "mor", "9")
    mounts = tmp_path / "mounts"
    mounts.mkdir()
    target = metastore_factory("target", settings=s3a_as_directories(mounts, [moto_bucket]))
    warehouse = f"{moto_bucket}/{fixture.name}"
    about = ["--target", target.uri, "--engine", "local"]
    assert fixture.dump().code == 0
    for state in ("first", "last"):
        unpack("mor", "9", state, place)
        assert fixture.dump(since=fixture.last).code == 0
    for dump in range(1, fixture.dumps + 1):
        loaded = command("load", str(fixture.here / f"dump{dump}"), *about, "--warehouse", warehouse)
        assert loaded.code == 0, loaded
    found = command("verify", "--source", fixture.source_uri, *about, "--db", fixture.name)
    assert (found.code, found.output["status"]) == (0, "same"), found
    top = f"{warehouse}/{fixture.name}.db/mor"
    there = {name: (Place(top) / name).read_bytes() for name in Place(top).find()}
    assert there == files(place)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_of_another_writer_is_refused_and_repaired(fixture: Lab, version: str) -> None:
    place = make(fixture.source, "cow", version)
    assert (fixture.dump().code, load(fixture).code) == (0, 0)
    there = replica(fixture, "cow")
    own = f"20991231000000000{'_20991231000000001' if version == '9' else ''}.commit"
    data = next(there.rglob("*.parquet"))
    theirs = data.with_name(f"{uuid4()}-0_0-0-0_20991231000000000.parquet")
    theirs.write_bytes(data.read_bytes())
    unpack("cow", version, "last", place)
    of_source = sorted(name for name in files(place).keys() & files(there).keys() if name.endswith(".parquet"))
    assert of_source
    paths = [str(theirs.relative_to(there)), *of_source, "../../untouched", "d=x/../../../untouched"]
    stats = {"partitionToWriteStats": {theirs.parent.name: [{"path": path} for path in paths]}}
    (untouched := there.parents[1] / "untouched").write_text("mine")
    (timeline(there, version) / own).write_text(json.dumps(stats))
    assert fixture.dump(since=fixture.last).code == 0
    refused = load(fixture)
    assert (refused.code, refused.output["foreign"]) == (6, [str(timeline(there, version) / own)]), refused
    assert (load(fixture, "--overwrite").code, verified(fixture).code) == (0, 0)
    assert read(there) == LAST
    assert not (timeline(there, version) / own).exists() and not theirs.exists()
    assert untouched.read_text() == "mine"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_instant_of_each_state_is_named(fixture: Lab, version: str) -> None:
    place = make(fixture.source, "cow", version)
    assert fixture.dump().code == 0
    unpack("cow", version, "last", place)
    assert fixture.dump(since=fixture.last).code == 0
    for dump, state in ((1, "first"), (2, "last")):
        unpack("cow", version, state, place)
        shown = command("show", str(fixture.here / f"dump{dump}"))
        moments = {each["moment"] for each in shown.output["records"] if each.get("moment")}
        assert moments == {f"instant {max(each.split('_')[0].split('.')[0] for each in instants(place, version))}"}


def test_a_dropped_table_is_dropped_and_kept(fixture: Lab) -> None:
    place = make(fixture.source, "cow", "6")
    assert (fixture.dump().code, load(fixture).code) == (0, 0)
    contents = set(files(place).values())
    fixture.source.drop("cow")
    assert (fixture.dump(since=fixture.last).code, load(fixture).code) == (0, 0)
    assert not replica(fixture, "cow").exists()
    kept = {path.read_bytes() for path in (fixture.target_cmroot / "files").rglob("*") if path.is_file()}
    assert {each for each in contents if b"hoodie.database.name" not in each} <= kept | {b""}


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"hoodie.table.version": "10"}, "a Hudi table of version 10, newer than 9"),
        ({"hoodie.bootstrap.base.path": "/other/t"}, "a Hudi table whose rows are in the files of another table"),
    ],
)
def test_a_table_that_cannot_be_replicated_is_named(fixture: Lab, change: dict[str, str], reason: str) -> None:
    place = make(fixture.source, "cow", "9")
    path = place / ".hoodie/hoodie.properties"
    ((key, value),) = change.items()
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}=")]
    path.write_text("\n".join([*lines, f"{key}={value}", ""]))
    dumped, loaded = fixture.dump(), load(fixture)
    assert (dumped.code, loaded.code) == (3, 3)
    assert gaps(loaded)["cow"].startswith(reason)
    assert not replica(fixture, "cow").exists()


def test_a_table_without_properties_is_named(fixture: Lab) -> None:
    place = make(fixture.source, "cow", "9")
    (place / ".hoodie/hoodie.properties").unlink()
    assert fixture.dump().code == 3
    assert gaps(load(fixture)) == {"cow": "a Hudi table whose .hoodie/hoodie.properties was not captured"}


def test_properties_that_are_being_replaced_are_their_backup(fixture: Lab) -> None:
    place = make(fixture.source, "cow", "9")
    (place / ".hoodie/hoodie.properties").rename(place / ".hoodie/hoodie.properties.backup")
    assert (fixture.dump().code, load(fixture).code, verified(fixture).code) == (0, 0, 0)
    assert (replica(fixture, "cow") / ".hoodie/hoodie.properties.backup").exists()


def test_verify_finds_a_file_of_the_newest_commit(fixture: Lab) -> None:
    place = make(fixture.source, "cow", "9")
    assert (fixture.dump().code, load(fixture).code) == (0, 0)
    newest = instants(place, "9")[-1].partition("_")[0]
    (lost,) = replica(fixture, "cow").rglob(f"*_{newest}.parquet")
    lost.unlink()
    found = verified(fixture)
    assert found.code == 4
    assert {(each["kind"], each["field"]) for each in found.output["differences"]} == {
        ("file missing", str(lost.relative_to(replica(fixture, "cow"))))
    }
    assert (
        command(
            "repair",
            "--source",
            fixture.source_uri,
            "--target",
            fixture.target_uri,
            "--db",
            fixture.name,
            *renamed(fixture),
            "--cmroot",
            str(fixture.cmroot),
            "--engine",
            "local",
        ).code
        == 0
    )
    assert read(replica(fixture, "cow")) == FIRST


def test_plans_name_the_replica(fixture: Lab) -> None:
    """A plan of a clean, a rollback or a clustering names files by absolute paths: in place of the source's, Hudi would
    delete the source's files."""
    place = make(fixture.source, "mor", "9", "last")
    here, made = str(place).encode(), f"{hudi_tables.MADE_AT}/mor".encode()
    assert any(made in content for content in files(place).values())
    for path, content in sorted(files(place).items()):
        above = (place / path).parent
        (place / path).write_bytes(_moved(path, content, made, here, above))
    assert (fixture.dump().code, load(fixture).code) == (0, 0)
    found = verified(fixture)
    assert found.code == 0, found.output["differences"]
    with fixture.without_source():
        assert read(replica(fixture, "mor")) == LAST
    there = files(replica(fixture, "mor"))
    assert not [path for path, content in there.items() if here in content]
    assert [path for path, content in there.items() if str(replica(fixture, "mor")).encode() in content]


def _moved(path: str, content: bytes, old: bytes, new: bytes, above: Path) -> bytes:
    """A file as Hudi would have written it at another location."""
    return translated(
        path,
        content,
        lambda text: text.replace(old.decode(), new.decode()),
        str,
        lambda name: (above / name).stat().st_size if (above / name).exists() else None,
    )


def test_another_table_s_location_is_left_alone(fixture: Lab) -> None:
    """`t` of Hudi beside a plain table of the same database."""
    place = make(fixture.source, "cow", "9")
    fixture.source.table("plain", {"a": "1,x\n"})
    assert (fixture.dump().code, load(fixture).code, verified(fixture).code) == (0, 0, 0)
    shutil.rmtree(place)
    fixture.source.metastore.drop_table(fixture.source.name, "cow")
    assert (fixture.dump(since=fixture.last).code, load(fixture).code, verified(fixture).code) == (0, 0, 0)
    assert (replica(fixture, "plain") / "a").read_text() == "1,x\n"
