"""Dumps with data: they carry the bytes, so that they can be loaded when everything of the source is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command_line import Answer, command
from faults import Fault, run_with
from lab import Lab
from metastores import MetastoreFactory
from names import unique
from plain_tables import KEYS, PlainDatabase, text_storage
from stores import S3_SERVERS, s3_of

from cmroot.pins import read_pins
from replicator.captures.dumps.layout import Content, DumpReader
from replicator.core.model import Column, Partition, Serde, Table
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    """A source with two tables; two files have the same bytes. Nothing is captured yet."""
    fixture.source.table("t", {"first": "1", "second": "2", "twin": "1"})
    fixture.source.partitioned("parts", {"a": {"file": "a"}, "b/b": {"file": "b", "é": "é"}})
    return fixture


def dumped(fixture: Lab, *more: str, **given: Any) -> Answer:
    answer = fixture.dump("--with-data", *more, **given)
    assert answer.code == 0, answer
    return answer


def without_source(fixture: Lab) -> None:
    """Removes the source's files and its root."""
    shutil.rmtree(fixture.cmroot)
    shutil.rmtree(fixture.source.home)


def contents(dump: Path) -> dict[str, Content]:
    return {each.checksum: each for each in DumpReader(str(dump)).contents()}


def data_files(dump: Path) -> list[Path]:
    return sorted(path for path in (dump / "_data/files").rglob("*") if path.is_file())


def loads_alone(fixture: Lab, *dumps: Path) -> list[Answer]:
    """Loads dumps when nothing else is left; the replica then shows what the source showed."""
    shown = fixture.source.shown()
    without_source(fixture)
    answers = [fixture.load(dump) for dump in dumps]
    assert [answer.code for answer in answers] == [0] * len(dumps), answers
    assert fixture.target.shown() == shown
    return answers


def test_a_dump_with_data_is_loaded_when_everything_else_is_gone(fixture: Lab) -> None:
    answer = dumped(fixture)
    assert (answer.output["files"], answer.output["data_files"], answer.output["data_files_copied"]) == (6, 5, 5)
    assert len(data_files(fixture.last)) == len(contents(fixture.last)) == 5, "equal bytes are stored once"
    assert read_pins(str(fixture.cmroot)).dumps == [], "nothing else is needed any more"
    (loaded,) = loads_alone(fixture, fixture.last)
    assert (loaded.output["files_from_dump"], loaded.output["files_copied"]) == (6, 6)


# ---- killed, and completed ------------------------------------------------------------------------------------------

KILLS = [
    Fault("before", "rename", r"/_data/files/"),
    Fault("after", "rename", r"/_data/files/"),
    Fault("after", "rename", r"/_data/files/", 3),
    Fault("before", "rename", r"/_metadata/contents-"),
    Fault("before", "rename", r"/_dumpmetadata$"),
    Fault("before", "rename", r"/_finished_dump$"),
]


@pytest.mark.parametrize("fault", KILLS, ids=str)
def test_a_killed_dump_is_completed_by_the_same_command(fixture: Lab, fault: Fault) -> None:
    fixture.dumps += 1
    arguments = [*fixture.dump_arguments(fixture.last), "--with-data"]
    ended = run_with(fault, arguments)
    assert ended.reached, ended
    there = {path: path.stat().st_ino for path in data_files(fixture.last) if not path.name.startswith(".")}
    fixture.source.write("t", {"third": "3"})
    answer = command(*arguments)
    assert answer.code == 0, answer
    assert answer.output["data_files_copied"] == 6 - len(there), "only what is missing is copied"
    assert {path: path.stat().st_ino for path in data_files(fixture.last)}.items() >= there.items()
    assert [path for path in fixture.last.rglob("*") if path.name.startswith(".")] == []
    loads_alone(fixture, fixture.last)


def test_bytes_that_are_nowhere_leave_an_unfinished_dump_that_is_completed_later(fixture: Lab) -> None:
    assert fixture.capture().code == 0
    lost = fixture.source.home / "t/second"
    for path in (lost, *(fixture.cmroot / "files").rglob("*-1")):
        if path.is_file() and path.read_text() == "2":
            path.unlink()
    answer = fixture.dump("--with-data", "--no-capture")
    assert answer.error == "FilesMissing" and str(lost) in answer.message, answer
    assert [each["file"] for each in answer.output["missing"]] == [str(lost)]
    assert not (fixture.last / "_finished_dump").exists() and len(data_files(fixture.last)) == 4
    fixture.source.write("t", {"second": "2"})
    answer = dumped(fixture, out=fixture.last)
    assert answer.output["data_files_copied"] == 1
    loads_alone(fixture, fixture.last)


def test_a_plain_dump_into_the_directory_of_a_killed_one_has_no_data(fixture: Lab) -> None:
    fixture.dumps += 1
    assert run_with(KILLS[1], [*fixture.dump_arguments(fixture.last), "--with-data"]).reached
    assert fixture.dump(out=fixture.last).code == 0
    assert not (fixture.last / "_data").exists()


# ---- increments -----------------------------------------------------------------------------------------------------


def test_an_increment_carries_only_bytes_that_its_chain_does_not_have(fixture: Lab) -> None:
    dumped(fixture)
    first = fixture.last
    fixture.source.write("t", {"again": "a", "new": "n"})
    fixture.source.add("parts", {"c": {"copy": "2", "new": "n"}})
    second = dumped(fixture, since=first)
    assert (second.output["data_files"], second.output["data_files_referenced"]) == (1, 2)
    middle = fixture.last
    fixture.source.drop("t")
    fixture.source.table("t", {"of the first": "1", "of the second": "n", "own": "o"})
    third = dumped(fixture, since=middle)
    assert (third.output["data_files"], third.output["data_files_referenced"]) == (1, 2)
    assert [path.read_text() for path in data_files(fixture.last)] == ["o"]
    loads_alone(fixture, first, middle, fixture.last)


def test_a_chain_is_loaded_where_it_was_moved_to(fixture: Lab) -> None:
    dumped(fixture)
    first = fixture.last
    fixture.source.write("t", {"again": "a"})
    dumped(fixture, since=first)
    moved = fixture.here / "moved"
    for dump in (first, fixture.last):
        shutil.move(dump, moved / dump.name)
    loads_alone(fixture, moved / first.name, moved / fixture.last.name)


def test_bytes_that_an_earlier_dump_has_lost_are_copied_again(fixture: Lab) -> None:
    dumped(fixture)
    first = fixture.last
    (lost,) = (path for path in data_files(first) if path.read_text() == "a")
    lost.unlink()
    fixture.source.write("t", {"again": "a", "more": "b"})
    second = dumped(fixture, since=first)
    assert (second.output["data_files"], second.output["data_files_referenced"]) == (1, 1)


def test_an_increment_of_a_range_with_files_that_came_and_went_carries_what_a_load_needs(fixture: Lab) -> None:
    dumped(fixture)
    first = fixture.last
    fixture.source.write("t", {"short-lived": "s"})
    assert fixture.capture().code == 0
    (fixture.source.home / "t/short-lived").unlink()
    fixture.source.rename("parts", "renamed")
    fixture.source.add("renamed", {"c": {"file": "c"}})
    second = dumped(fixture, since=first)
    assert second.output["data_files"] == 1
    loads_alone(fixture, first, fixture.last)


# ---- damage ---------------------------------------------------------------------------------------------------------


def test_a_load_takes_no_damaged_byte_and_says_which_file_has_it(fixture: Lab) -> None:
    dumped(fixture)
    damaged = data_files(fixture.last)[0]
    damaged.write_bytes(b"x")
    shown = fixture.source.shown()
    answer = fixture.load()
    assert answer.error == "FilesMissing" and damaged.name in str(answer.output["missing"]), answer
    assert "dumps verify" in answer.output["hint"]
    assert fixture.target.shown() == {} if fixture.target.exists() else True
    answer = fixture.load(fixture.last, "--source-cmroot", str(fixture.cmroot))
    assert answer.code == 0 and fixture.target.shown() == shown, answer


def test_spark_writes_the_same_dump(fixture: Lab) -> None:
    fixture.keys["engine"] = "spark"
    local = dumped(fixture)
    spark = dumped(fixture, "--engine", "spark")
    counted = ("data_files", "data_bytes", "data_files_copied", "data_files_referenced")
    assert [local.output[name] for name in counted] == [spark.output[name] for name in counted]
    assert contents(fixture.last) == contents(fixture.here / "dump1")
    assert [path.name for path in data_files(fixture.last)] == [
        path.name for path in data_files(fixture.here / "dump1")
    ]


def verified(dump: Path, *more: str) -> Answer:
    return command("dumps", "verify", str(dump), *more)


def test_verify_reads_every_byte_without_a_metastore_and_names_what_is_damaged(fixture: Lab) -> None:
    dumped(fixture)
    first = fixture.last
    fixture.source.write("t", {"again": "a", "more": "m"})
    dumped(fixture, since=first)
    without_source(fixture)
    answers = [verified(first), verified(fixture.last)]
    assert [(each.code, each.output["status"], each.output["files"]) for each in answers] == [
        (0, "verified", 5),
        (0, "verified", 2),
    ]
    (shared,) = (path for path in data_files(first) if path.read_text() == "a")
    shared.write_text("x")
    data_files(fixture.last)[0].unlink()
    answer = verified(fixture.last)
    assert (answer.code, answer.output["status"], answer.output["damaged_count"]) == (4, "damaged", 2)
    reasons = {Path(each["file"]).parts[-5]: each["reason"] for each in answer.output["damaged"]}
    assert reasons[fixture.last.name] == "is missing" and "other bytes" in reasons[first.name]
    assert verified(first).code == 4
    shutil.rmtree(first)
    assert verified(fixture.last).output["damaged_count"] == 2


def test_verify_of_a_plain_dump_says_that_it_has_no_data(fixture: Lab) -> None:
    assert fixture.dump().code == 0
    answer = verified(fixture.last)
    assert answer.code == 0 and answer.output["with_data"] is False
    (part,) = (fixture.last / "_files").iterdir()
    part.write_bytes(part.read_bytes()[:-1])
    assert verified(fixture.last).error == "FormatError"


def test_show_says_that_a_dump_has_data(fixture: Lab) -> None:
    dumped(fixture)
    answer = command("show", str(fixture.last))
    assert answer.output["data"] == {"files": 5, "bytes": 6, "referenced": 0, "earlier": []}


# ---- the drill ------------------------------------------------------------------------------------------------------


def parquet_tables(source: PlainDatabase) -> None:
    """A table of four partitions of Parquet, partitioned by `p`."""
    storage = msgspec.structs.replace(
        text_storage(source.home / "orders", (Column("id", "bigint"), Column("amount", "bigint"))),
        input_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        serde=Serde(library="org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"),
    )
    source.metastore.create_table(Table(db=source.name, name="orders", storage=storage, partition_keys=KEYS))
    parts = []
    for number in range(4):
        place = source.home / f"orders/p={number}"
        place.mkdir(parents=True)
        rows = {"id": range(1000), "amount": [each * number for each in range(1000)]}
        pq.write_table(
            pa.table({name: pa.array(list(values)) for name, values in rows.items()}), place / "part-0.parquet"
        )
        parts.append(
            Partition(values=(str(number),), storage=msgspec.structs.replace(storage, location=f"file:{place}"))
        )
    source.metastore.add_partitions(source.name, "orders", parts)


def figures(db: PlainDatabase) -> dict[str, tuple[int, int]]:
    """Rows and sum of each partition where the metastore says that it is, as pyarrow reads them."""
    names = db.metastore.partition_names(db.name, "orders")
    found = {}
    for batch in db.metastore.partitions(db.name, "orders", names):
        for each in batch:
            table = pq.read_table(str(each.location).removeprefix("file:"), partitioning=None)
            found[each.values[0]] = (table.num_rows, pc.sum(table["amount"]).as_py())
    return found


@pytest.mark.parametrize("kind", S3_SERVERS)
def test_a_site_is_restored_from_dumps_on_s3_when_metastore_store_and_root_are_destroyed(
    kind: str,
    request: pytest.FixtureRequest,
    metastore_factory: MetastoreFactory,
    target_metastore: Running,
    tmp_path: Path,
) -> None:
    with s3_of(kind, request) as filesystem:
        filesystem.mkdir(bucket := unique("dumps"))
        running = metastore_factory("lost")
        lab = Lab(running, target_metastore, tmp_path)
        lab.source.create()
        lab.source.table("t", {"first": "1", "second": "2"})
        parquet_tables(lab.source)
        first, second = f"s3://{bucket}/daily/1", f"s3://{bucket}/daily/2"
        arguments = lab.dump_arguments(Path("-"))
        arguments[arguments.index("-")] = first
        assert command(*arguments, "--with-data").code == 0
        lab.source.write("t", {"third": "3", "twin": "1"})
        arguments[arguments.index(first)] = second
        answer = command(*arguments, "--with-data", "--since", first)
        assert (answer.code, answer.output["data_files"], answer.output["data_files_referenced"]) == (0, 1, 1)
        before, shown = figures(lab.source), lab.source.shown()

        embedded.stop(running.directory)
        without_source(lab)
        for dump in (first, second):
            assert command("dumps", "verify", dump).code == 0
            loading = lab.load_arguments(Path("-"))
            loading[loading.index("-")] = dump
            answer = command(*loading)
            assert answer.code == 0, answer
            assert answer.output["files_from_dump"] == answer.output["files_copied"] > 0
        assert figures(lab.target) == before and before["3"] == (1000, 3 * 499_500)
        assert lab.target.shown() == shown
