"""Captures of an Iceberg table follow its tree: they record the files of one commit, whatever else its directory has.
PyIceberg, which shares no code with the product's reading of Avro, says which these are."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow.parquet as pq
import pytest
from engines import local_engine
from iceberg_tables import (
    SCHEMA,
    aged,
    catalog,
    data_file,
    delete_rows,
    expire,
    is_same,
    make,
    reachable,
    replica,
    replicated,
    rows,
    shown,
    verified,
)
from lab import Lab
from plain_tables import text_storage
from pyiceberg.table import Table
from s3_proxy import Proxy, counting
from stores import s3_server

import replicator
from cmroot.store.checksum import checksum_at
from replicator.captures import trees
from replicator.captures.manifest import Manifest
from replicator.core.formats import iceberg_tree
from replicator.core.formats.interface import POINTER
from replicator.core.model import EXTERNAL, Column, Database
from replicator.core.model import Table as ModelTable
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect


def recorded(lab: Lab, name: str = "t") -> dict[str, str | None]:
    """The checksums of a table's files, by path, as of the last capture."""
    with contextlib.closing(Manifest(lab.cmroot / "manifest.sqlite")) as manifest:
        obj = manifest.object(lab.name, name, "")
        assert obj is not None
        return {path: known.checksum for path, known in manifest.files(obj.table_id, 0).items()}


def is_recorded(lab: Lab, table: Table) -> None:
    """The files of the table's present commit are recorded, with their checksums, and no others."""
    home = f"{lab.source.home}/t/"
    there = {path for path in reachable(table.refresh()) if os.path.exists(path)}
    assert recorded(lab) == {path.removeprefix(home): checksum_at(path)[0] for path in there}


def orphan(lab: Lab, table: Table, number: int) -> None:
    """Leaves files that no commit names, as a failed commit does: copies of those that it names."""
    for path in sorted(reachable(table)):
        if path.endswith((".avro", ".parquet")):
            copy = Path(path).with_name(f"orphan-{number}-{Path(path).name}")
            copy.write_bytes(Path(path).read_bytes())
            return


def tag(table: Table, number: int) -> None:
    table.manage_snapshots().create_tag(snapshot_of(table), f"t{number}").commit()


@pytest.mark.parametrize("seed", range(4))
def test_any_commits_are_recorded_as_pyiceberg_reaches_them(
    fixture: Lab, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, deletes, overwrites, tags, expiries and files of nobody, with captures after some of them, in tasks of
    few files, on a host that knows the last state and on one that does not."""
    chance = random.Random(seed)
    monkeypatch.setattr(trees, "FILES", chance.choice([1, 3, 200]))
    monkeypatch.setattr(trees, "NAMES", chance.choice([0, 5, 50_000]))
    table = make(fixture, **{"write.metadata.previous-versions-max": str(chance.choice([1, 3, 100]))})
    table.append(rows(0))
    steps: dict[str, Callable[[int], Any]] = {
        "append": lambda number: table.append(rows(number, number + 1000)),
        "deletes": lambda number: delete_rows(table, data_file(table), [0]),
        "overwrite": lambda number: table.overwrite(rows(number)),
        "tag": lambda number: (
            table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, f"t{number}").commit()
        ),  # type: ignore[union-attr]
        "expire": lambda number: expire(table),
        "aged": lambda number: aged(fixture, 2),
        "orphan": lambda number: orphan(fixture, table, number),
    }
    for number in range(1, 25):
        name = chance.choice([*steps, "append", "append"])
        with contextlib.suppress(ValueError):  # an expiry of what a tag names
            steps[name](number)
        table = table.refresh()
        if chance.random() < 0.2:
            (fixture.cmroot / "manifest.sqlite").unlink(missing_ok=True)
        if chance.random() < 0.6:
            assert fixture.capture().code == 0
            is_recorded(fixture, table)
    replicated(fixture)
    is_recorded(fixture, table)
    is_same(fixture)


def test_a_pointer_that_is_set_back_and_forth(fixture: Lab) -> None:
    table = make(fixture)
    pointers = []
    for number in range(3):
        table.append(rows(number))
        pointers.append(table.metadata_location)
    replicated(fixture)
    for index in (0, 2, 1):
        there = fixture.source.metastore.table(fixture.name, "t")
        parameters = {**there.parameters, POINTER: pointers[index], f"previous_{POINTER}": pointers[max(0, index - 1)]}
        fixture.source.metastore.alter_table(fixture.name, "t", msgspec.structs.replace(there, parameters=parameters))
        assert fixture.dump(since=fixture.last).code == 0
        loaded = fixture.load(None, "--allow-removals")
        assert loaded.code == 0, loaded.output["not_replicated"]
        is_recorded(fixture, catalog(fixture.source_uri).load_table(f"{fixture.name}.t"))
        assert shown(replica(fixture)) == list(range(index + 1))


@pytest.mark.parametrize("kind", ["snap-*.avro", "*-m0.avro", "*.parquet"])
def test_a_missing_file_is_named_and_recorded_when_it_is_back(fixture: Lab, kind: str) -> None:
    table = make(fixture)
    table.append(rows(1))
    (file,) = (fixture.source.home / "t").rglob(kind)
    os.rename(file, fixture.here / "away")
    for _ in range(2):
        captured = fixture.capture()
        (warning,) = (
            each for each in captured.output["warnings"] if "do not exist" in each or "does not exist" in each
        )
        assert f"{fixture.name}.t: 1 file that its metadata names does not exist" in warning and str(file) in warning
    os.rename(fixture.here / "away", file)
    assert not fixture.capture().output["warnings"]
    is_recorded(fixture, table)
    replicated(fixture)
    is_same(fixture)


@pytest.mark.parametrize("kind", ["snap-*.avro", "*-m0.avro", "*.metadata.json"])
def test_a_damaged_file_is_read_again_until_it_can_be_read(fixture: Lab, kind: str) -> None:
    table = make(fixture)
    table.append(rows(1))
    file = max((fixture.source.home / "t").rglob(kind))
    content = file.read_bytes()
    file.write_bytes(b"damaged")
    records = []
    for _ in range(2):
        captured = fixture.capture()
        assert list(captured.output["formats"]) == [f"{fixture.name}.t"]
        records.append(captured.output["records"])
    assert records[1] == 0
    file.write_bytes(content)
    assert fixture.capture().output["formats"] == {}
    is_recorded(fixture, table)
    replicated(fixture)
    is_same(fixture)


def test_a_table_whose_metadata_file_is_missing_keeps_all_of_its_directory(fixture: Lab) -> None:
    """It is a gap, whose files are kept; as soon as the file is back, the rest is no part of the table."""
    table = make(fixture)
    table.append(rows(1))
    orphan(fixture, table, 1)
    file = Path(urlsplit(table.metadata_location).path)
    os.rename(file, fixture.here / "away")
    captured = fixture.capture()
    (reason,) = captured.output["formats"].values()
    assert reason.endswith("was not found")
    assert any("orphan" in path for path in recorded(fixture))
    os.rename(fixture.here / "away", file)
    assert not fixture.capture().output["formats"]
    is_recorded(fixture, table)


@pytest.mark.parametrize("place", ["hdfs://nowhere:1/x/snap.avro", "file:///etc/hostname", "{home}/t/data/snap.avro"])
def test_a_tree_that_leads_elsewhere_is_not_followed_and_the_directory_is_kept(fixture: Lab, place: str) -> None:
    """The table is a gap, its replica stays, and nothing but its directory is read, neither by captures nor verify."""
    table = make(fixture)
    table.append(rows(1))
    replicated(fixture)
    table.append(rows(2))
    place = place.format(home=fixture.source.home)
    metadata = Path(urlsplit(table.metadata_location).path)
    (listed,) = {each.manifest_list for each in table.metadata.snapshots if each.snapshot_id == snapshot_of(table)}
    if place.startswith("/"):
        os.rename(urlsplit(listed).path, place)
    metadata.write_text(metadata.read_text().replace(listed, place))
    dumped = fixture.dump(since=fixture.last)
    assert dumped.code == 3, dumped
    assert [each["object"] for each in dumped.output["not_replicated"]] == [f"{fixture.name}.t"]
    home = fixture.source.home / "t"
    assert set(recorded(fixture)) == {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert fixture.load().code == 3
    assert shown(replica(fixture)) == [1]
    assert verified(fixture).code == 4


def snapshot_of(table: Table) -> int:
    current = table.current_snapshot()
    assert current is not None
    return current.snapshot_id


def test_a_lost_directory_is_named_and_its_files_are_not_forgotten(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    replicated(fixture)
    before = recorded(fixture)
    os.rename(fixture.source.home / "t", fixture.here / "away")
    captured = fixture.capture()
    (missing,) = captured.output["missing_directories"]
    assert missing.startswith(f"{fixture.name}.t at ")
    assert recorded(fixture) == before
    os.rename(fixture.here / "away", fixture.source.home / "t")
    assert fixture.capture().output["missing_directories"] == []
    is_recorded(fixture, table)


def test_files_in_directories_that_no_listing_shows(fixture: Lab) -> None:
    table = make(fixture)
    hidden = fixture.source.home / "t/data/.part=1"
    hidden.mkdir(parents=True)
    pq.write_table(rows(7), hidden / "x.parquet")
    table.add_files([f"file://{hidden}/x.parquet"])
    replicated(fixture)
    is_same(fixture)
    with fixture.without_source():
        assert shown(replica(fixture)) == [7]
    (fixture.target.home / "t/data/.part=1/x.parquet").unlink()
    found = verified(fixture)
    assert (found.code, found.output["differences"][0]["field"]) == (4, "data/.part=1/x.parquet")


def test_files_are_kept_by_a_later_capture_that_keeps_bytes(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    assert fixture.capture("--keeper", "none").code == 0
    table.append(rows(2))
    assert fixture.capture().code == 0
    for path in reachable(table):
        os.unlink(path)
    assert fixture.dump("--with-data", "--no-capture").code == 0


def test_trees_are_read_by_executors(fixture: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver, where no file can be examined, reads none."""
    table = make(fixture)
    table.append(rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_tree, "examine", lambda *_: pytest.fail("examined by the driver"))
        captured = fixture.capture("--engine", "spark")
    assert (captured.code, captured.output["formats"]) == (0, {}), captured
    is_recorded(fixture, table)


# ---- other formats before and after -----------------------------------------------------------------------------


@pytest.mark.parametrize("each_step", [True, False], ids=["replicated at each step", "in one range"])
def test_a_table_is_converted_in_its_place_and_back(fixture: Lab, each_step: bool) -> None:
    """As `migrate` and `CONVERT TO ICEBERG` do: the same files, named by Iceberg's metadata in their directory. Back,
    files of the tree are data like others, and the replica, which had them translated, gets the source's."""
    db, since = fixture.source, list[Path]()

    def replicate(*, last: bool = False) -> None:
        if each_step or last or not since:
            assert fixture.dump(since=since[-1] if since else None).code == 0
            loaded = fixture.load(None, "--allow-removals")
            assert loaded.code == 0, loaded
            since.append(fixture.last)
            is_same(fixture) if not last else None

    columns = (Column("id", "bigint"), Column("name", "string"))
    storage = msgspec.structs.replace(text_storage(db.home / "t"), columns=columns)
    db.metastore.create_table(
        ModelTable(db=db.name, name="t", storage=storage, kind=EXTERNAL, parameters={"EXTERNAL": "TRUE"})
    )
    pq.write_table(rows(1, 2), db.home / "t/old.parquet")
    replicate()
    plain = db.metastore.table(fixture.name, "t")
    lake = catalog(fixture.source_uri).create_table(f"{fixture.name}.made", SCHEMA, location=f"file://{db.home}/t")
    lake.add_files([f"file://{db.home}/t/old.parquet"])
    made = db.metastore.table(fixture.name, "made").parameters
    db.metastore.drop_table(fixture.name, "made")
    iceberg = {key: made[key] for key in ("table_type", POINTER, f"previous_{POINTER}")}
    parameters = {**plain.parameters, **iceberg}
    db.metastore.alter_table(fixture.name, "t", msgspec.structs.replace(plain, parameters=parameters))
    replicate()
    source = catalog(fixture.source_uri).load_table(f"{fixture.name}.t")
    source.append(rows(3))
    replicate()
    if each_step:
        is_recorded(fixture, source)
        assert shown(replica(fixture)) == [1, 2, 3]
    db.metastore.alter_table(fixture.name, "t", plain)
    replicate(last=True)
    listed = {str(path.relative_to(db.home / "t")) for path in (db.home / "t").rglob("*") if path.is_file()}
    assert set(recorded(fixture)) == listed
    assert verified(fixture).code == 0


# ---- requests -----------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(on_s3a: Callable[[str], Running]) -> Iterator[Proxy]:
    with s3_server() as filesystem, counting(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        filesystem.makedirs("iceberg", exist_ok=True)
        os.environ["AWS_ENDPOINT_URL"] = proxy.url  # which the server takes back
        yield proxy


def test_a_commit_in_a_bucket_is_captured_without_a_listing_of_the_table(
    on_s3a: Callable[[str], Running], counted: Proxy, fixture: Lab, tmp_path: Path
) -> None:
    """The requests for one more commit are those for its own files, however many files the table has."""
    metastore, place = on_s3a("target"), f"s3a://iceberg/{tmp_path.name}"
    connect(metastore.uri).create_database(Database(name=fixture.name, location=f"{place}/x.db"))
    access = {
        "s3.endpoint": counted.endpoint,
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": "us-east-1",
    }
    table = catalog(metastore.uri, **access).create_table(f"{fixture.name}.t", SCHEMA, location=f"{place}/x.db/t")
    engine, taken = local_engine(), list[dict[str, int]]()
    listed = list[str]()
    counted.fails = lambda kind, path: bool(kind == "LIST" and "x.db" in path and listed.append(path))
    for number in range(7):
        table.append(rows(number))
        counted.taken()
        listed.clear()
        replicator.capture(source=metastore.uri, cmroot=f"{place}/cmroot", db=[fixture.name], engine=engine)
        assert listed == []
        taken.append(dict(counted.taken()))
    assert taken[-1] == taken[2], taken
