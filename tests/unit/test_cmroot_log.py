"""The root's FORMAT, parts with a marker, and the captured log."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cmroot.errors import FormatError, NotWritable
from cmroot.log.captured import FILES, MARKER, Segment, SegmentWriter, segments, sweep_log
from cmroot.log.part_writing import PartsWriter
from cmroot.log.segment import LINE_BYTES, ROW_GROUP, Part, PartsReader
from cmroot.root import create_or_open, open_existing
from cmroot.store.place import Place, is_local, join, name_of


def record(position: int, **more: object) -> bytes:
    return json.dumps({"position": position, **more}).encode()


def write_segment(root: str, first: int, last: int) -> Segment:
    with SegmentWriter(root, first) as writer:
        for position in range(first, last + 1):
            writer.append_record(record(position))
        writer.append_files(pa.table({"position": [first], "op": ["add"], "path": ["f"], "size": [1]}))
        return writer.finish(last, events=[first, last])


# The root


def test_a_root_is_made_once_and_opened_again(place: str) -> None:
    made = create_or_open(join(place, "root"))
    assert create_or_open(join(place, "root")) == made == open_existing(join(place, "root"))
    output = json.loads((Place(place) / "root/FORMAT").read_bytes())
    assert (output["format"], output["version"], output["id"]) == ("cmroot", 1, made.id)
    assert made.log == join(made.place, "log") and made.holds == join(made.place, "holds")


def test_a_directory_in_use_by_something_else_is_refused(place: str) -> None:
    (Place(place) / "root/thesis.doc").write_bytes(b"")
    with pytest.raises(NotWritable, match="not empty"):
        create_or_open(join(place, "root"))
    assert Place(place).find() == ["root/thesis.doc"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"format":"cmroot","version":2,"shape":"new"}',
        b'{"format":"dump","version":1}',
        b"",
        b"\0",
        b'{"format":"cmroot"}',
    ],
)
def test_a_format_that_is_not_known_is_refused(place: str, content: bytes) -> None:
    (Place(place) / "FORMAT").write_bytes(content)
    for opening in (create_or_open, open_existing):
        with pytest.raises(FormatError) as caught:
            opening(place)
        assert caught.value.hint


def test_a_missing_root_is_not_opened(place: str) -> None:
    with pytest.raises(FormatError, match="no FORMAT"):
        open_existing(join(place, "nowhere"))


# Parts


def test_parts_are_read_back_as_they_were_written(place: str) -> None:
    writer = PartsWriter(place)
    with writer.lines("_metadata/0.gz") as lines:
        for number in range(1000):
            lines.write(b"%d" % number)
        lines.write(b"")
    with writer.parquet("_files/0.parquet", pa.schema([("a", pa.int64()), ("b", pa.string())])) as table:
        table.write(pa.table({"b": ["x"], "a": [1]}))
        table.write(pa.table({"a": [2]}))
    writer.finish("_done", {"of": "test"})
    reader = PartsReader(place, "_done")
    assert reader.metadata == {"of": "test"}
    assert list(reader.lines("_metadata/0.gz")) == [b"%d" % number for number in range(1000)] + [b""]
    assert reader.table("_files/0.parquet").to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert [(part.name, part.kind, part.rows) for part in reader.parts] == [
        ("_files/0.parquet", "parquet", 2),
        ("_metadata/0.gz", "lines", 1001),
    ]
    reader.verify()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=50).map(lambda line: line.replace(b"\n", b"")), max_size=30))
def test_any_lines_survive_and_other_readers_agree(tmp_path: Path, lines: list[bytes]) -> None:
    writer = PartsWriter(str(tmp_path))
    with writer.lines("0.gz") as part:
        for line in lines:
            part.write(line)
    writer.finish("_done", {})
    assert list(PartsReader(str(tmp_path), "_done").lines("0.gz")) == lines
    assert gzip.decompress((tmp_path / "0.gz").read_bytes()) == b"".join(line + b"\n" for line in lines)


def test_a_line_end_inside_a_line_is_refused(place: str) -> None:
    with pytest.raises(FormatError), PartsWriter(place).lines("0.gz") as lines:
        lines.write(b"a\nb")
    assert Place(place).find() == []


def test_without_the_marker_nothing_counts(place: str) -> None:
    with PartsWriter(place).lines("0.gz") as lines:
        lines.write(b"1")
    with pytest.raises(FormatError, match="_done"):
        PartsReader(place, "_done")


def test_a_marker_of_another_format_or_version_is_refused(place: str) -> None:
    PartsWriter(place).finish("_done", {}, format="dump", version=2)
    for named in ({"format": "dump"}, {"version": 2}):
        with pytest.raises(FormatError, match="version"):
            PartsReader(place, "_done", **named)


def test_the_same_content_has_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        writer = PartsWriter(str(tmp_path / name))
        with writer.lines("0.gz") as lines:
            lines.write(b"x")
        writer.finish("_done", {})
    assert (tmp_path / "a/_done").read_bytes() == (tmp_path / "b/_done").read_bytes()


def test_small_tables_become_whole_row_groups(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64())])
    with PartsWriter(str(tmp_path)).parquet("0.parquet", schema) as part:
        for _ in range(300):
            part.write(pa.table({"a": list(range(500))}))
    metadata = pq.ParquetFile(tmp_path / "0.parquet").metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [
        ROW_GROUP,
        ROW_GROUP,
        150_000 - 2 * ROW_GROUP,
    ]


def test_memory_stays_flat_while_lines_are_written_and_read(tmp_path: Path) -> None:
    line = b"x" * 1000
    tracemalloc.start()
    writer = PartsWriter(str(tmp_path))
    with writer.lines("0.gz") as part:
        for _ in range(60_000):
            part.write(line)
    writer.finish("_done", {})
    assert sum(1 for _ in PartsReader(str(tmp_path), "_done").lines("0.gz")) == 60_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000  # of 60 MB that passed


# The log


def test_records_come_back_in_order_and_within_bounds(root: str) -> None:
    for first, last in ((1, 10), (11, 11), (12, 30)):
        write_segment(root, first, last)
    found = segments(root)
    assert [(segment.first, segment.last) for segment in found] == [(1, 10), (11, 11), (12, 30)]

    def positions(after: int, until: int | None) -> list[int]:
        return [json.loads(line)["position"] for segment in found for line in segment.records(after, until)]

    assert positions(-1, None) == list(range(1, 31))
    assert positions(4, 12) == list(range(5, 13))
    assert positions(30, None) == []
    assert found[0].metadata == {"events": [1, 10]}
    assert (found[0].record_count, found[0].file_count) == (10, 1)
    assert name_of(found[0].place) == "00000000000000000001-00000000000000000010"
    with Place(found[0].files_parts()[0]).open_read() as file:
        assert pq.read_schema(file).equals(FILES)
    assert [batch.num_rows for batch in found[0].file_batches(["position"])] == [1]
    for segment in found:
        segment.verify()


def test_a_segment_must_follow_the_one_before(root: str) -> None:
    write_segment(root, 1, 10)
    for first in (10, 12):
        with pytest.raises(FormatError, match="ends at position 10"):
            SegmentWriter(root, first)
    with SegmentWriter(root, 11) as writer, pytest.raises(FormatError, match="before it begins"):
        writer.finish(10)


def test_a_missing_segment_is_noticed(root: str) -> None:
    for number in (1, 2, 3):
        write_segment(root, number, number)
    Place(segments(root)[1].place).remove_tree()
    with pytest.raises(FormatError, match="positions 2 to 2 are missing"):
        segments(root)


def test_the_oldest_segments_may_have_expired(root: str) -> None:
    for number in (1, 2, 3):
        write_segment(root, number, number)
    Place(segments(root)[0].place).remove_tree()
    assert [segment.first for segment in segments(root)] == [2, 3]


def test_an_unfinished_segment_is_invisible_and_swept(root: str) -> None:
    whole = write_segment(root, 1, 1)
    writer = SegmentWriter(root, 2)
    writer.append_record(record(2))
    assert segments(root) == [whole]
    (Place(root) / "log" / f"{2:020d}-{5:020d}" / "records-00000.jsonl.gz").write_bytes(b"part")
    assert segments(root) == [whole]
    sweep_log(root)
    assert (Place(root) / "log").list() == [name_of(whole.place)]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_segment_that_lost_its_marker_is_not_swept_but_missed(root: str, lost: int) -> None:
    for position in (1, 2, 3):
        write_segment(root, position, position)
    place = Place(root) / "log" / f"{lost:020d}-{lost:020d}"
    marker = (place / MARKER).read_bytes()
    (place / MARKER).remove()
    assert sweep_log(root) == []
    (place / MARKER).write_bytes(marker)
    assert [segment.first for segment in segments(root)] == [1, 2, 3]


@pytest.mark.parametrize("way", ["abort", "error"])
def test_an_aborted_segment_leaves_nothing(root: str, way: str) -> None:
    writer = SegmentWriter(root, 1)
    writer.append_record(record(1))
    writer.append_files(pa.table({"position": [1]}))
    if way == "abort":
        writer.abort()
        writer.abort()
    else:
        with pytest.raises(ZeroDivisionError), writer:
            raise ZeroDivisionError
    assert (Place(root) / "log").find() == []
    write_segment(root, 1, 1)


def test_columns_that_file_entries_do_not_have_are_refused(root: str) -> None:
    with pytest.raises(FormatError, match="colour"), SegmentWriter(root, 1) as writer:
        writer.append_files(pa.table({"position": [1], "colour": ["red"]}))


@pytest.mark.parametrize("damage", ["flip", "cut", "extend", "remove"])
@pytest.mark.parametrize("part", ["records-00000.jsonl.gz", "files-00000.parquet"])
def test_a_damaged_part_is_found_and_named(root: str, part: str, damage: str) -> None:
    segment = write_segment(root, 1, 200)
    path = Place(segment.place) / part
    data = path.read_bytes()
    middle = len(data) // 2
    match damage:
        case "flip":
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :])
        case "cut":
            path.write_bytes(data[:middle])
        case "extend":
            path.write_bytes(data + b"\0")
        case "remove":
            path.remove()
    with pytest.raises(FormatError, match=part):
        segments(root)[0].verify()
    if part.startswith("records"):
        with pytest.raises(FormatError, match=part):
            list(segments(root)[0].records())


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":"cmroot-segment","version":9,"parts":[],"metadata":{}}'])
def test_a_damaged_marker_is_found_and_named(root: str, content: bytes) -> None:
    segment = write_segment(root, 1, 2)
    (Place(segment.place) / MARKER).write_bytes(content)
    with pytest.raises(FormatError, match=MARKER):
        list(segments(root)[0].records())


def test_a_segment_that_was_renamed_by_hand_is_found_out(local_root: str) -> None:
    segment = write_segment(local_root, 1, 2)
    Path(segment.place).rename(Path(segment.place).with_name(f"{1:020d}-{9:020d}"))
    with pytest.raises(FormatError, match="other positions"):
        segments(local_root)[0].verify()


def test_many_records_are_split_into_parts(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmroot.log.captured.RECORDS_PART", 100)
    monkeypatch.setattr("cmroot.log.captured.FILES_PART", 3)
    with SegmentWriter(root, 1) as writer:
        for position in range(1, 51):
            writer.append_record(record(position))
            writer.append_files(pa.table({"position": [position]}))
        segment = writer.finish(50)
    assert len(segment.parts) > 15 and len(segment.files_parts()) == 17
    assert [json.loads(line)["position"] for line in segment.records(10, 40)] == list(range(11, 41))
    assert [row for batch in segment.file_batches(["position"]) for row in batch.column(0).to_pylist()] == list(
        range(1, 51)
    )
    assert is_local(root) or (Place(root) / "log").find()


def bomb(place: Path, mebibytes: int, *, before: bytes = b"") -> None:
    """A part whose last line unpacks to so many MiB of spaces; its marker is right."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(before) + b"".join(packer.compress(b" " * (1 << 20)) for _ in range(mebibytes))
    packed += packer.compress(b"\n") + packer.flush()
    place.mkdir()
    (place / "0.gz").write_bytes(packed)
    writer = PartsWriter(str(place))
    writer.parts.append(Part("0.gz", "lines", before.count(b"\n") + 1, len(packed), "0" * 32))
    writer.finish("_done", {})


def test_one_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A small file may unpack to anything; the reader says which line of which file it is."""
    bomb(tmp_path / "long", 400, before=b"{}\n{}\n")
    assert (tmp_path / "long" / "0.gz").stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as failed:
            list(PartsReader(str(tmp_path / "long"), "_done").lines("0.gz"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"{tmp_path}/long/0.gz: line 3 is longer than {LINE_BYTES >> 20} MiB" in str(failed.value)
    assert peak < 1.5 * LINE_BYTES


def test_the_longest_line_of_a_real_metastore_is_read(tmp_path: Path) -> None:
    """Hive takes calls of up to 100 MB."""
    bomb(tmp_path / "large", 100)
    (line,) = PartsReader(str(tmp_path / "large"), "_done").lines("0.gz")
    assert len(line) == 100 << 20


def test_a_part_with_more_lines_than_its_marker_says_is_refused(tmp_path: Path) -> None:
    writer = PartsWriter(str(tmp_path))
    with writer.lines("0.gz") as part:
        part.write(b"1")
        part.write(b"2")
    part_said = writer.parts.pop()
    writer.parts.append(Part(part_said.name, "lines", 1, part_said.size, part_said.xxh3_128))
    writer.finish("_done", {})
    with pytest.raises(FormatError, match="2 lines"):
        list(PartsReader(str(tmp_path), "_done").lines("0.gz"))
