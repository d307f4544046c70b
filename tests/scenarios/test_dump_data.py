"""Dumps with data: they carry the bytes, so that they can be loaded when everything of the source is gone."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash
from command_line import Answer, command
from faults import Fault, run_with
from lab import Lab, assert_same
from metastores import MetastoreFactory
from names import unique
from plain_tables import KEYS, PlainDatabase, text_storage
from stores import S3_SERVERS, s3_of

from cmroot.keep.content import locate
from cmroot.pins import read_pins
from cmroot.store.place import Place
from replicator.captures.dumps.archive import CHUNK, MAGIC, SALT, TAG, DecryptedReader, EncryptedWriter
from replicator.captures.dumps.data import CheckTask, run_check_task
from replicator.captures.dumps.layout import Content, DumpReader, read_keys
from replicator.captures.dumps.writer import DumpWriter
from replicator.cli.main import run
from replicator.core.model import Column, Partition, Serde, Table
from replicator.errors import FormatError, Refused
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


def test_two_dumps_into_one_directory_exclude_each_other_while_captures_continue(
    fixture: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.dumps += 1
    arguments = fixture.dump_arguments(fixture.last)
    written, others = DumpWriter.written, list[Answer]()

    def others_come(self: DumpWriter, *given: Any) -> DumpReader:
        monkeypatch.setattr(DumpWriter, "written", written)
        others.extend(command(*arguments, *more) for more in (("--with-data",), ()))
        others.append(fixture.capture())
        return written(self, *given)

    monkeypatch.setattr(DumpWriter, "written", others_come)
    assert command(*arguments, "--with-data").code == 0
    assert [each.error for each in others] == ["LeaseHeld", "LeaseHeld", None], others
    assert sorted(path.name for path in (fixture.last / "_data").iterdir()) == ["files"]
    assert verified(fixture.last).code == 0


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


# ---- archives -------------------------------------------------------------------------------------------------------


def test_a_chain_is_carried_as_tar_files_and_loaded_elsewhere(fixture: Lab) -> None:
    dumped(fixture)
    first = fixture.last
    fixture.source.write("t", {"again": "a", "more": "m"})
    dumped(fixture, since=first)
    carried, here = fixture.here / "carried", [first, fixture.last]
    for dump in here:
        exported = command("dumps", "export", str(dump), str(fixture.here / f"{dump.name}.tar"))
        assert exported.code == 0, exported
        shutil.rmtree(dump)
    assert exported.output["earlier"] == [str(first)]
    for dump in here:
        answer = command("dumps", "import", str(fixture.here / f"{dump.name}.tar"), "--out", str(carried / dump.name))
        assert (answer.code, answer.output["files"]) == (0, 5 if dump == first else 1), answer
        assert verified(carried / dump.name).code == 0
    loads_alone(fixture, *(carried / dump.name for dump in here))


def test_export_refuses_damaged_and_plain_dumps_and_existing_files(fixture: Lab) -> None:
    archive = fixture.here / "dump.tar"
    dumped(fixture)
    data_files(fixture.last)[0].write_bytes(b"?")
    answer = command("dumps", "export", str(fixture.last), str(archive))
    assert answer.error == "ChecksumMismatch" and data_files(fixture.last)[0].name in answer.message
    assert not archive.exists()
    assert fixture.dump().code == 0
    assert "no data" in command("dumps", "export", str(fixture.last), str(archive)).message
    dumped(fixture)
    assert [command("dumps", "export", str(fixture.last), str(archive)).code for _ in range(2)] == [0, 2]
    assert command("dumps", "export", str(fixture.last), str(archive), "--overwrite").code == 0


def rewritten(archive: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> Path:
    """A copy of an archive whose members were changed."""
    with tarfile.open(archive) as tar:
        members = [(each, cast(IO[bytes], tar.extractfile(each)).read()) for each in tar]
    change(members)
    hostile = archive.with_name("hostile.tar")
    with tarfile.open(hostile, "w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in members:
            if info.isreg():
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return hostile


def member(name: str, data: bytes = b"x", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


CONTENT = f"_data/files/ab/xxh3_128-ab{'0' * 30}-1"
HOSTILE: dict[str, Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]] = {
    "outside": lambda each: each.insert(1, member("../outside")),
    "absolute": lambda each: each.insert(1, member("/tmp/outside")),
    "below a content": lambda each: each.insert(1, member("_data/files/../../../outside")),
    "symbolic link": lambda each: each.insert(1, member("_data/files", b"", type=tarfile.SYMTYPE, linkname="/etc")),
    "hard link": lambda each: each.insert(1, member(CONTENT, b"", type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "device": lambda each: each.insert(1, member(CONTENT, b"", type=tarfile.CHRTYPE)),
    "directory": lambda each: each.insert(1, member("_data", b"", type=tarfile.DIRTYPE)),
    "unlisted": lambda each: each.insert(1, member("_metadata/records-00007.jsonl.gz")),
    "foreign": lambda each: each.insert(1, member("_finished_load/x.json")),
    "wrong directory": lambda each: each.insert(1, member(CONTENT.replace("/ab/", "/cd/"))),
    "other bytes": lambda each: each.insert(1, member(CONTENT)),
    "size": lambda each: each.insert(1, member(CONTENT, b"xy")),
    "changed content": lambda each: each.__setitem__(-2, (each[-2][0], b"?" * len(each[-2][1]))),
    "longer part": lambda each: each.__setitem__(1, (each[1][0], each[1][1] + b"x")),
    "twice": lambda each: each.insert(2, each[1]),
    "not first": lambda each: each.insert(0, each.pop(1)),
    "after the end": lambda each: each.append(member(CONTENT)),
    "no marker": lambda each: each.__delitem__(-1),
    "a content is missing": lambda each: each.__delitem__(-2),
    "a part is missing": lambda each: each.__delitem__(1),
    "large marker": lambda each: each.__setitem__(-1, (each[-1][0], b" " * (1 << 17))),
}


@pytest.fixture(scope="module")
def archive(source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lab = Lab(source_metastore, target_metastore, tmp_path_factory.mktemp("archive"))
    lab.source.create()
    lab.source.table("t", {"first": "1", "second": "2"})
    dumped(lab)
    assert command("dumps", "export", str(lab.last), str(lab.here / "dump.tar")).code == 0
    return lab.here / "dump.tar"


@pytest.mark.parametrize("name", HOSTILE)
def test_import_refuses_what_export_did_not_write(archive: Path, tmp_path: Path, name: str) -> None:
    hostile, out = rewritten(archive, HOSTILE[name]), tmp_path / "in/dump"
    answer = command("dumps", "import", str(hostile), "--out", str(out))
    assert (answer.code, answer.error) == (1, "FormatError") and str(hostile) in answer.message, answer
    assert not (out / "_finished_dump").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["in"] and not any(
        path.is_symlink() for path in out.rglob("*")
    )
    assert {path.name for path in out.iterdir()} <= {"_dumpmetadata", "_metadata", "_files", "_data"}


def test_an_import_is_completed_after_a_cut(archive: Path, tmp_path: Path) -> None:
    cut, out = tmp_path / "cut.tar", tmp_path / "dump"
    whole = archive.read_bytes()
    for size in range(0, len(whole) - 1024, 1000):
        cut.write_bytes(whole[:size])
        assert command("dumps", "import", str(cut), "--out", str(out)).error == "FormatError"
    assert len(data_files(out)) == 2
    assert command("dumps", "import", str(archive), "--out", str(out)).code == 0
    assert verified(out).code == 0
    assert "finished dump" in command("dumps", "import", str(archive), "--out", str(out)).message


def test_import_of_something_else_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive" * 1000)
    assert "not a tar file" in command("dumps", "import", str(tmp_path / "text"), "--out", str(tmp_path / "d")).message
    answer = command("dumps", "import", str(tmp_path / "none.tar"), "--out", str(tmp_path / "d"))
    assert answer.code == 2 and "does not exist" in answer.message


# ---- signed ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(secrets.token_hex(32) + "\n")
    path.chmod(0o600)
    return str(path)


def test_a_signature_covers_every_data_file(fixture: Lab, key_file: str) -> None:
    dumped(fixture, "--key-file", key_file)
    first = fixture.last
    fixture.source.write("t", {"again": "a", "more": "m"})
    dumped(fixture, "--key-file", key_file, since=first)
    for dump in (first, fixture.last):
        assert verified(dump, "--key-file", key_file).output["signed"] is True
        for each in contents(dump).values():
            (path,) = (path for path in data_files(first) + data_files(fixture.last) if each.checksum in path.name)
            assert each.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    (changed,) = (path for path in data_files(first) if path.read_text() == "a")
    changed.write_text("b")
    for dump in (first, fixture.last):
        answer = fixture.load(dump, "--key-file", key_file)
        assert answer.error == "Refused" and changed.name in answer.message, answer
    assert not fixture.target.exists()


def test_other_bytes_of_the_same_fast_checksum_are_found_by_the_signed_one(tmp_path: Path) -> None:
    data = b"the bytes that were signed"
    checksum = xxhash.xxh3_128_hexdigest(data)
    path = Path(locate(str(tmp_path), checksum, len(data)))
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    for sha256, found in ((hashlib.sha256(data).hexdigest(), 0), (hashlib.sha256(b"others").hexdigest(), 1)):
        _, damaged = run_check_task(CheckTask({"": str(tmp_path)}, [Content(checksum, len(data), sha256=sha256)]))
        assert len(damaged) == found


def test_a_changed_list_of_contents_is_refused(fixture: Lab, key_file: str) -> None:
    signed = ("--key-file", key_file)
    dumped(fixture, *signed)
    (part,) = (fixture.last / "_metadata").glob("contents-*")
    for change in (part.write_bytes, lambda _: (fixture.last / "_signature").unlink()):
        change(gzip.compress(b""))
        for answer in (verified(fixture.last, *signed), fixture.load(fixture.last, *signed)):
            assert answer.error in ("Refused", "FormatError") and answer.code != 0, answer


def test_an_unsigned_dump_is_not_the_base_of_a_signed_one(fixture: Lab, key_file: str) -> None:
    dumped(fixture)
    first = fixture.last
    fixture.source.write("t", {"again": "a"})
    answer = fixture.dump("--with-data", "--key-file", key_file, since=first)
    assert answer.error == "Refused" and str(first) in answer.message


def test_import_refuses_an_archive_that_is_not_signed(fixture: Lab, key_file: str) -> None:
    signed = ("--key-file", key_file)
    for more, code in (((), 6), (signed, 0)):
        dumped(fixture, *more)
        archive, out = fixture.here / f"{code}.tar", fixture.here / f"in{code}"
        assert command("dumps", "export", str(fixture.last), str(archive), *more).code == 0
        answer = command("dumps", "import", str(archive), "--out", str(out), *signed)
        assert answer.code == code and (out / "_finished_dump").exists() == (code == 0), answer


def test_an_encrypted_archive_shows_nothing_and_is_imported_with_the_key(fixture: Lab, key_file: str) -> None:
    secret = f"the secret of {fixture.name}"
    fixture.source.write("t", {"secret": secret * 10_000})
    dumped(fixture, "--key-file", key_file)
    plain, hidden = fixture.here / "plain.tar", fixture.here / "hidden.tar"
    for archive, more in ((plain, ()), (hidden, ("--encrypt",))):
        answer = command("dumps", "export", str(fixture.last), str(archive), *more, "--key-file", key_file)
        assert (answer.code, answer.output["encrypted"]) == (0, bool(more)), answer
    assert secret.encode() in plain.read_bytes() and b"_dumpmetadata" in plain.read_bytes()
    assert secret.encode() not in hidden.read_bytes() and b"_dumpmetadata" not in hidden.read_bytes()
    other = fixture.here / "other keys"
    other.write_text(secrets.token_hex(32))
    other.chmod(0o600)
    refused = [command("dumps", "import", str(hidden), "--out", str(fixture.here / "no"), *more) for more in ((),)]
    refused.append(command("dumps", "import", str(hidden), "--out", str(fixture.here / "no"), "--key-file", str(other)))
    assert [each.error for each in refused] == ["UsageError", "Refused"], refused
    other.write_text(secrets.token_hex(32) + "\n" + Path(key_file).read_text())
    answer = command("dumps", "import", str(hidden), "--out", str(fixture.here / "yes"), "--key-file", str(other))
    assert (answer.code, answer.output["encrypted"]) == (0, True), answer
    loads_alone(fixture, fixture.here / "yes")


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_changed_moved_or_missing_chunk_is_found(size: int, key_file: str) -> None:
    keys, data = read_keys(key_file), secrets.token_bytes(size)
    target = io.BytesIO()
    writer = EncryptedWriter(target, keys)
    writer.write(data)
    writer.close()
    whole = target.getvalue()[len(MAGIC) :]

    def read(encrypted: bytes) -> bytes:
        reader, found = DecryptedReader(io.BytesIO(encrypted).read, keys, "archive"), b""
        while block := reader.read(1000):
            found += block
        return found

    assert read(whole) == data
    step, chunks = CHUNK + TAG, whole[SALT:]
    changes = [whole[:-1], whole + b"x", whole[:SALT] + bytes([chunks[0] ^ 1]) + chunks[1:], whole[: SALT - 1]]
    changes += [whole[: SALT + at] for at in range(0, len(chunks), step)]
    if len(chunks) > 2 * step:
        changes.append(whole[:SALT] + chunks[step : 2 * step] + chunks[:step] + chunks[2 * step :])
    for changed in changes:
        with pytest.raises((Refused, FormatError)):
            read(changed)


# ---- retention ------------------------------------------------------------------------------------------------------


def kept_dumps(fixture: Lab) -> list[str]:
    return [each["name"] for each in command("dumps", "ls", str(fixture.here / "kept")).output["dumps"]]


def chain_of_four(fixture: Lab) -> Path:
    """Two chains of two dumps each, in a directory of their own."""
    place, before = fixture.here / "kept", None
    for number in range(4):
        fixture.source.write("t", {f"file{number}": f"{number}" * 3, f"twin{number}": "a"})
        since = before if number % 2 else None
        before = place / f"d{number}"
        assert command(*fixture.dump_arguments(before, since=since), "--with-data").code == 0
    return place


def test_expiry_removes_a_chain_when_no_kept_dump_needs_it(fixture: Lab) -> None:
    place = chain_of_four(fixture)
    assert fixture.dump(out=place / "plain").code == 0
    listed = {each["name"]: each["needs"] for each in command("dumps", "ls", str(place)).output["dumps"]}
    assert listed == {"d0": [], "d1": ["d0"], "d2": [], "d3": ["d2"], "plain": []}
    expire = ["dumps", "expire", str(place), "--keep-last"]
    assert command(*expire, "3").output["removed"] == []
    planned = command(*expire, "2", "--dry-run")
    assert planned.output["removed"] == ["d1", "d0"] and kept_dumps(fixture) == sorted(listed)
    done = command(*expire, "2")
    assert (done.code, done.output["removed"], done.output["other"]) == (0, ["d1", "d0"], ["plain"])
    assert sorted(path.name for path in place.iterdir()) == ["d2", "d3", "plain"]
    loads_alone(fixture, place / "d2", place / "d3")


@pytest.mark.parametrize(
    "fault", [Fault(when, "unlink", r"/d1/_finished_dump$") for when in ("before", "after")], ids=str
)
def test_a_killed_expiry_is_completed(fixture: Lab, fault: Fault) -> None:
    place = chain_of_four(fixture)
    expire = ["dumps", "expire", str(place), "--keep-last", "1"]
    assert run_with(fault, expire).reached
    assert command(*expire).code == 0
    assert sorted(path.name for path in place.iterdir()) == ["d2", "d3"]


def test_a_damaged_dump_stops_an_expiry_and_is_named(fixture: Lab) -> None:
    place = chain_of_four(fixture)
    (place / "d1/_dumpmetadata").write_text("{}")
    answer = command("dumps", "expire", str(place), "--keep-last", "1")
    assert answer.error == "FormatError" and "d1" in answer.message and len(list(place.iterdir())) == 4


def test_expiry_needs_to_know_what_to_keep(fixture: Lab) -> None:
    answer = command("dumps", "expire", str(fixture.here))
    assert answer.code == 2 and "--keep" in answer.output["hint"]


def test_a_dump_and_an_expiry_at_the_same_time_leave_no_broken_chain(
    fixture: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dump refers to one that an expiry removes: before the dump is finished, and after."""
    place = chain_of_four(fixture)
    expire = ["dumps", "expire", str(place), "--keep-last", "1"]
    arguments = [*fixture.dump_arguments(place / "late", since=place / "d1"), "--with-data"]
    fixture.source.write("t", {"late": "late"})
    finish = DumpWriter.finish

    def expired_meanwhile(*given: Any, **more: Any) -> None:
        assert command(*expire).output["removed"] == ["d1", "d0"]
        finish(*given, **more)

    monkeypatch.setattr(DumpWriter, "finish", expired_meanwhile)
    answer = command(*arguments)
    assert answer.error == "FormatError" and "was removed" in answer.message, answer
    assert not (place / "late/_finished_dump").exists()
    monkeypatch.setattr(DumpWriter, "finish", finish)
    shutil.rmtree(place)

    place = chain_of_four(fixture)
    fixture.source.write("t", {"later": "later"})
    remove_own = Place.remove_own

    def dumped_meanwhile(self: Place) -> bool:
        if self.text.endswith("/d1/_finished_dump"):
            monkeypatch.setattr(Place, "remove_own", remove_own)
            assert command(*fixture.dump_arguments(place / "late", since=place / "d1"), "--with-data").code == 0
        return remove_own(self)

    monkeypatch.setattr(Place, "remove_own", dumped_meanwhile)
    assert command(*expire).output["removed"] == []
    assert command("dumps", "ls", str(place)).code == 0
    assert verified(place / "late").code == 0


# ---- by a schedule --------------------------------------------------------------------------------------------------


class Nights:
    """Runs of `dump --into`; `hours` turns the clock that dumps are decided by."""

    def __init__(self, fixture: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.fixture, self.number, self.later = fixture.here / "nightly", fixture, 0, 0.0
        self.arguments = [*fixture.capture_arguments(), "--with-data", "--into", str(self.place)]
        self.arguments[0] = "dump"
        now = time.time
        monkeypatch.setattr("replicator.commands.replication.time.time", lambda: now() + self.later)

    def hours(self, count: float) -> None:
        self.later += count * 3600

    def write(self) -> None:
        self.number += 1
        self.fixture.source.write("t", {f"night{self.number}": f"night {self.number}"})

    def run(self, *more: str) -> Answer:
        answer = command(*self.arguments, *more)
        assert answer.code == 0, answer
        return answer

    def listed(self) -> list[tuple[str, str, list[str]]]:
        dumps = command("dumps", "ls", str(self.place)).output["dumps"]
        return [(each["name"], each["kind"], each["needs"]) for each in dumps]


@pytest.fixture
def nights(fixture: Lab, monkeypatch: pytest.MonkeyPatch) -> Nights:
    return Nights(fixture, monkeypatch)


def test_each_run_continues_the_newest_chain_until_it_is_old(nights: Nights) -> None:
    for _ in range(3):
        nights.write()
        nights.run("--complete-every", "2d")
        nights.hours(24)
    nights.later = 0  # the third dump is as old as the clock that wrote its description
    nights.write()
    nights.run("--complete-every", "2d")
    (first, second, third, fourth) = nights.listed()
    assert [each[1] for each in nights.listed()] == ["bootstrap", "incremental", "bootstrap", "incremental"]
    assert (second[2], third[2], fourth[2]) == ([first[0]], [], [third[0]])
    planned = command(*nights.arguments, "--complete-every", "0s", "--dry-run")
    assert (planned.code, planned.output["kind"]) == (0, "bootstrap") and len(nights.listed()) == 4, planned
    expired = command("dumps", "expire", str(nights.place), "--keep-last", "1")
    assert expired.output["removed"] == [second[0], first[0]], expired
    loads_alone(nights.fixture, nights.place / third[0], nights.place / fourth[0])


@pytest.mark.parametrize("kind", S3_SERVERS)
def test_a_chain_on_s3_is_continued_and_expired(kind: str, request: pytest.FixtureRequest, fixture: Lab) -> None:
    with s3_of(kind, request) as filesystem:
        filesystem.mkdir(bucket := unique("nightly"))
        place = f"s3://{bucket}/west"
        arguments = ["dump", *fixture.capture_arguments()[1:], "--with-data", "--into", place]
        kinds = [command(*arguments).output["kind"] for _ in range(2)]
        fixture.source.table("late", {"f": "1"})  # dumps of one second are told apart by their positions
        kinds.append(command(*arguments, "--complete-every", "0s").output["kind"])
        assert kinds == ["bootstrap", "incremental", "bootstrap"]
        listed = command("dumps", "ls", place)
        assert (listed.code, listed.output["unfinished"], len(listed.output["dumps"])) == (0, [], 3), listed
        for each in listed.output["dumps"]:
            assert command("dumps", "verify", f"{place}/{each['name']}").code == 0
        expired = command("dumps", "expire", place, "--keep-last", "1")
        assert (expired.code, len(expired.output["removed"])) == (0, 2), expired


KILLED_NIGHTS = [
    Fault("before", "rename", r"/_metadata/records-"),
    Fault("after", "rename", r"/_data/files/"),
    Fault("before", "rename", r"/_finished_dump$"),
    Fault("after", "rename", r"/_finished_dump$"),
]


@pytest.mark.parametrize("fault", KILLED_NIGHTS, ids=str)
def test_the_next_run_completes_a_killed_one_or_continues_it(nights: Nights, fault: Fault) -> None:
    nights.write()
    nights.run()
    nights.write()
    assert run_with(fault, nights.arguments).reached
    nights.write()
    nights.run()
    finished = 3 if fault.moment == "after" and "finished" in fault.pattern else 2
    names = [each[0] for each in nights.listed()]
    assert len(names) == finished and {path.name for path in nights.place.iterdir()} == {*names, "_chains"}
    assert [each[1] for each in nights.listed()] == ["bootstrap", *["incremental"] * (finished - 1)]
    assert all(verified(nights.place / name).code == 0 for name in names)
    loads_alone(nights.fixture, *(nights.place / name for name in names))


def test_two_runs_do_not_write_the_same_dump(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, others = DumpWriter.finish, list[Answer]()

    def while_another_runs(*given: Any, **more: Any) -> None:
        others.append(command(*nights.arguments))
        finish(*given, **more)

    monkeypatch.setattr(DumpWriter, "finish", while_another_runs)
    nights.run()
    assert [each.code for each in others] == [7] and len(nights.listed()) == 1


def test_a_chain_that_cannot_be_continued_is_followed_by_a_new_one(nights: Nights) -> None:
    first = Path(nights.run().output["dump"])
    nights.write()
    nights.run()
    shutil.rmtree(first)
    broken = nights.run()
    assert (broken.output["kind"], "are missing" in broken.output["warnings"][0]) == ("bootstrap", True), broken
    nights.fixture.source.table("u", {"f": "1"})
    narrower = nights.run("--exclude", "u")
    assert (narrower.output["kind"], narrower.output["warnings"]) == ("bootstrap", []), "another scope: its own chain"
    assert nights.run("--exclude", "u").output["from_event"] == narrower.output["to_event"]
    nights.write()
    assert nights.run().output["from_event"] == broken.output["to_event"]
    key = nights.fixture.here / "keys"
    key.write_text(f"{secrets.token_hex(32)}\n")
    key.chmod(0o600)
    signed = nights.run("--key-file", str(key))
    assert signed.output["kind"] == "bootstrap" and "not signed" in signed.output["warnings"][0], signed
    assert nights.run("--key-file", str(key)).output["kind"] == "incremental"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "Missing option '--out'"),
        (("--into", "/tmp/none"), "--into writes chains of dumps with data"),
        (("--into", "/tmp/none", "--with-data", "--since", "4"), "--since and --into exclude each other"),
        (("--into", "/tmp/none", "--with-data", "--out", "/tmp/other"), "--out and --into exclude each other"),
        (("--into", "/tmp/none", "--with-data", "--slot", "dr"), "--slot and --into exclude each other"),
    ],
)
def test_what_contradicts_a_chain_is_refused(fixture: Lab, more: tuple[str, ...], message: str) -> None:
    answer = command("dump", *fixture.capture_arguments()[1:], *more)
    assert answer.code == 2 and message in answer.message, answer


# ---- a warehouse that may only be read ------------------------------------------------------------------------------


def tree(place: Path) -> dict[str, tuple[int, int, int]]:
    """All below a directory, with what changes with any write or link."""
    found = {str(path): path.stat() for path in (place, *place.rglob("*"))}
    return {name: (each.st_ino, each.st_ctime_ns, each.st_nlink) for name, each in found.items()}


def readonly(fixture: Lab, *more: str) -> Answer:
    """A dump by a user who writes nothing into the source's warehouse, with its root elsewhere, or none."""
    fixture.dumps += 1
    arguments = ["--source", fixture.source_uri, "--db", fixture.name, "--out", str(fixture.last), "--keeper", "none"]
    before = tree(fixture.source.home)
    answer = command("dump", *arguments, *more)
    assert tree(fixture.source.home) == before
    return answer


@pytest.mark.parametrize("root", [(), ("--cmroot", "elsewhere")], ids=["without", "elsewhere"])
def test_a_plain_dump_of_a_warehouse_that_may_only_be_read_says_how_long_it_is_exact(
    fixture: Lab, root: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fixture.here)
    answer = readonly(fixture, *root)
    assert (answer.code, answer.output["unkept"]) == (0, 6), answer
    assert "only as long as they remain unchanged" in " ".join(answer.output["warnings"])
    assert command("show", str(fixture.last)).output["unkept"] == 6
    assert "as long as the source has them" in lines("show", str(fixture.last))
    assert fixture.load().code == 0
    assert_same(fixture.source, fixture.target)
    (fixture.source.home / "t/first").write_text("!")
    assert fixture.load(fixture.last, "--rename-db", f"{fixture.name}={unique('db')}").error == "FilesMissing"


def test_a_dump_with_data_needs_no_root_at_all(fixture: Lab) -> None:
    answer = readonly(fixture, "--with-data")
    assert (answer.code, answer.output["unkept"], answer.output["data_files"]) == (0, 0, 5), answer
    assert not fixture.cmroot.exists()
    shown = fixture.source.shown()
    shutil.rmtree(fixture.source.home)
    assert fixture.load().code == 0 and fixture.target.shown() == shown


def test_kept_files_are_not_counted_as_unkept(fixture: Lab) -> None:
    answer = fixture.dump()
    assert (answer.output["unkept"], answer.output["warnings"]) == (0, [])


@pytest.mark.parametrize("more", [("--since", "1"), ("--slot", "west"), ("--no-capture",), ("--dry-run",)], ids=str)
def test_without_a_root_there_is_no_increment(fixture: Lab, more: tuple[str, ...]) -> None:
    answer = readonly(fixture, *more)
    assert (answer.code, answer.error) == (2, "UsageError") and more[0] in answer.message and answer.output["hint"]


def test_without_a_root_and_with_a_keeper_the_root_is_missing(fixture: Lab) -> None:
    answer = readonly(fixture, "--keeper", "auto")
    assert (answer.code, answer.message) == (2, "Missing option '--cmroot'."), answer


def lines(*arguments: str) -> str:
    """The text that a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run([*arguments]) == 0
    return out.getvalue()
