"""Translation of Iceberg's files: what changes and what does not, damaged files, and what is not translated. Written by
fastavro's container and PyIceberg's writers, read by them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.puffin import PuffinFile

from cmroot.errors import FormatError, UnknownPlace
from cmroot.store import iceberg
from cmroot.store.place import normal
from replicator.core.formats.outside import is_outside, outside_directory, outside_entry
from replicator.replay.apply.format_files import Mover, Outside
from replicator.replay.apply.named_places import Homes, homes_of

LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
        {"name": "key_metadata", "type": ["null", "bytes"], "default": None, "field-id": 519},
    ],
}
BOUNDS = {
    "type": [
        "null",
        {
            "type": "array",
            "logicalType": "map",
            "items": {
                "type": "record",
                "name": "k117_v118",
                "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}],
            },
        },
    ]
}
UPPER = {"type": ["null", {"type": "array", "items": "k117_v118"}]}
MANIFEST = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int", "field-id": 0},
        {
            "name": "data_file",
            "field-id": 2,
            "type": {
                "type": "record",
                "name": "r2",
                "fields": [
                    {"name": "content", "type": "int"},
                    {"name": "file_path", "type": "string"},
                    {"name": "file_format", "type": "string"},
                    {
                        "name": "partition",
                        "type": {
                            "type": "record",
                            "name": "r102",
                            "fields": [
                                {"name": "d", "type": ["null", {"type": "int", "logicalType": "date"}]},
                                {
                                    "name": "m",
                                    "type": {
                                        "type": "fixed",
                                        "name": "m4",
                                        "size": 4,
                                        "logicalType": "decimal",
                                        "precision": 9,
                                        "scale": 2,
                                    },
                                },
                                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                            ],
                        },
                    },
                    {"name": "file_size_in_bytes", "type": "long"},
                    {"name": "lower_bounds", **BOUNDS},
                    {"name": "upper_bounds", **UPPER},
                    {"name": "key_metadata", "type": ["null", "bytes"]},
                    {"name": "split_offsets", "type": ["null", {"type": "array", "items": "long"}]},
                    {"name": "referenced_data_file", "type": ["null", "string"]},
                ],
            },
        },
    ],
}
PATH = 2147483546


def bare(schema: Any) -> Any:
    """Without logical types: values as they are stored."""
    if isinstance(schema, list):
        return [bare(each) for each in schema]
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key != "logicalType"}
    return schema


def avro(schema: Any, records: list[dict[str, Any]], codec: str = "deflate") -> bytes:
    out = io.BytesIO()
    about = {"format-version": "2", "partition-spec": "[]"}
    fastavro.writer(out, fastavro.parse_schema(bare(schema)), records, codec=codec, metadata=about, sync_interval=200)
    return out.getvalue()


def read(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


def move(path: str) -> str:
    return path.replace("file:/a/", "hdfs://nn:8020/longer/b/")


def entry(path: str, status: int = 1, content: int = 0, format: str = "PARQUET", **more: Any) -> dict[str, Any]:
    file = {
        "content": content,
        "file_path": path,
        "file_format": format,
        "partition": {"d": -719162 - 40000, "m": b"\xff\xff\xff\x9c", "at": -(1 << 62)},  # beyond Python's dates
        "file_size_in_bytes": 10,
        "lower_bounds": [{"key": 1, "value": b"\x00\xff"}],
        "upper_bounds": None,
        "key_metadata": None,
        "split_offsets": [4, 1 << 40],
        "referenced_data_file": None,
        **more,
    }
    return {"status": status, "data_file": file}


# ---- lists and manifests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_a_list_gets_the_paths_and_lengths_of_the_target(codec: str) -> None:
    records = [
        {"manifest_path": f"file:/a/t/metadata/{n}.avro", "manifest_length": n, "key_metadata": None} for n in range(99)
    ]
    data = avro(LIST, records, codec)
    found = iceberg.translated("metadata/snap-1.avro", data, move, lambda place, recorded: len(place) + recorded)
    wanted = [
        {
            **each,
            "manifest_path": (place := move(each["manifest_path"])),
            "manifest_length": len(place) + each["manifest_length"],
        }
        for each in records
    ]
    assert read(found) == wanted
    assert found[: found.index(b"\x00", 200)][:60] == data[:60]
    assert found == iceberg.translated(
        "metadata/snap-1.avro", data, move, lambda place, recorded: len(place) + recorded
    )


def manifest(number: int, length: int = 7) -> dict[str, Any]:
    return {"manifest_path": f"file:/a/t/metadata/{number}.avro", "manifest_length": length, "key_metadata": None}


def test_lists_with_entries_of_the_one_before_are_translated_as_if_alone() -> None:
    """Also where an entry has changed, is new or gone, where one path begins with another, and with another schema."""
    first = [manifest(number) for number in (*range(99), 10**70)]
    second = [manifest(100), *first[:50], manifest(3, 8), *first[60:]]
    other = {**LIST, "fields": [*LIST["fields"], {"name": "content", "type": "int"}]}  # type: ignore[misc]
    third = [{**each, "content": 5} for each in second]
    files = [avro(LIST, first), avro(LIST, second, "null"), avro(LIST, []), avro(other, third), avro(LIST, first)]
    asked, repeated = list[str](), iceberg.Repeated()

    def size_of(place: str, recorded: int) -> int:
        asked.append(place)
        return len(place) + recorded

    alone = [iceberg.translated("metadata/s.avro", data, move, size_of) for data in files]
    asked.clear()
    assert [
        iceberg.translated("metadata/s.avro", data, move, size_of, repeated=repeated) for data in files[:2]
    ] == alone[:2]
    assert len(asked) == len(first) + 2  # those that differ
    assert [iceberg.translated("metadata/s.avro", data, move, size_of, repeated=repeated) for data in files] == alone


def test_a_damaged_list_is_named_after_one_with_the_same_entries() -> None:
    data, repeated = avro(LIST, [manifest(number) for number in range(99)], "null"), iceberg.Repeated()
    iceberg.translated("metadata/s.avro", data, move, lambda place, recorded: 1, repeated=repeated)
    for at in range(data.index(b"file:/a"), len(data), 7):
        broken = data[:at] + b"\xff" + data[at + 1 :]
        found = []
        for known in (None, repeated):
            try:
                found.append(
                    iceberg.translated("metadata/s.avro", broken, move, lambda place, recorded: 1, repeated=known)
                )
            except FormatError:
                found.append(b"")
        assert found[0] == found[1], at


def test_values_that_are_no_paths_pass_unchanged() -> None:
    records = [entry("file:/a/t/data/1.parquet"), entry("file:/a/t/data/1.parquet", status=0, content=2)]
    found = read(iceberg.translated("metadata/m.avro", avro(MANIFEST, records), move, lambda place, recorded: 1 / 0))
    for before, after in zip(records, found, strict=True):
        before["data_file"]["file_path"] = move(before["data_file"]["file_path"])
        assert after == before


def test_a_tombstone_keeps_its_size_though_its_file_is_gone() -> None:
    """A DELETED entry may name a delete file that has expired."""
    records = [entry("file:/a/t/data/x-deletes.parquet", status=2, content=1)]
    (found,) = read(iceberg.translated("metadata/m.avro", avro(MANIFEST, records), move, lambda place, recorded: 1 / 0))
    assert found["data_file"]["file_path"] == move("file:/a/t/data/x-deletes.parquet")
    assert found["data_file"]["file_size_in_bytes"] == 10
    assert not list(iceberg.references("metadata/m.avro", avro(MANIFEST, records)))


def test_delete_files_of_one_name_in_two_directories_have_sizes_of_their_own() -> None:
    records = [entry(f"file:/a/t/data/d={n}/x-deletes.parquet", content=1) for n in (1, 2)]
    sizes = {move(each["data_file"]["file_path"]): 100 + n for n, each in enumerate(records)}
    found = read(
        iceberg.translated("metadata/m.avro", avro(MANIFEST, records), move, lambda place, recorded: sizes[place])
    )
    assert [each["data_file"]["file_size_in_bytes"] for each in found] == [100, 101]
    assert [each["data_file"]["split_offsets"] for each in found] == [None, None]


@pytest.mark.parametrize(
    ("value", "wanted"), [("file:/a/t/data/1.parquet", [b"hdfs://nn:8020/longer/b/t/data/1.parquet"]), ("file:/", [])]
)
def test_bounds_of_a_delete_file_are_paths_of_the_target_or_none(value: str, wanted: list[bytes]) -> None:
    """Some writers truncate bounds: those are no paths."""
    bounds = [{"key": PATH, "value": value.encode()}]
    record = entry("file:/a/t/data/x.parquet", content=1, lower_bounds=bounds, upper_bounds=bounds)
    (found,) = read(iceberg.translated("metadata/m.avro", avro(MANIFEST, [record]), move, lambda place, recorded: 1))
    for side in ("lower_bounds", "upper_bounds"):
        assert [each["value"] for each in found["data_file"][side]] == wanted


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        (("file:/a/t/data/1", "file:/a/t/data/2"), ("file:/b/t/data/1", "file:/b/t/data/2")),
        (("file:/x/1", "file:/x/1"), ("file:/b/t/outside/file/x/1",) * 2),
        (("file:/a/t/data/1", "file:/x/1"), ()),  # the other order on the target
        (("file:/A/1", "file:/x/1"), ()),  # files of the table may be between them
        (("file:/", "file:/a/t/data/1"), ()),
        (("file:/", "file:/"), ()),
    ],
)
def test_bounds_of_paths_in_another_order_on_the_target_are_omitted(
    bounds: tuple[str, str], wanted: tuple[str, ...]
) -> None:
    mover = Mover(homes_of([("file:/a/t", "file:/b/t")]))
    sides = ([{"key": PATH, "value": each.encode()}] for each in bounds)
    record = entry("file:/a/t/x.parquet", content=1, **dict(zip(("lower_bounds", "upper_bounds"), sides, strict=True)))
    data = avro(MANIFEST, [record])
    (found,) = read(iceberg.translated("metadata/m.avro", data, mover, lambda place, recorded: 1, mover.in_order))
    moved = [each["value"].decode() for side in ("lower_bounds", "upper_bounds") for each in found["data_file"][side]]
    assert tuple(moved) == wanted


def test_rows_of_deletes_stay_in_the_order_of_paths() -> None:
    """The specification requires it, and paths of files outside of the table have another order on the target."""
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(PATH - 1)}),
    ]
    before = [("file:/A/1", 3), ("file:/A/1", 4), ("file:/a/t/1", 1), ("file:/a/t/1", 2)]
    out = io.BytesIO()
    columns = [list(each) for each in zip(*before, strict=True)]
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), out, store_schema=False)
    mover = Mover(homes_of([("file:/a/t", "file:/b/t")]))
    found = pq.read_table(io.BytesIO(iceberg.moved_deletes("d.parquet", out.getvalue(), mover)))
    rows = list(zip(found["file_path"].to_pylist(), found["pos"].to_pylist(), strict=True))
    assert rows == sorted((mover(path), position) for path, position in before)
    assert rows[0] == ("file:/b/t/1", 1)


def test_deletion_vectors_name_data_files_of_the_target() -> None:
    record = entry(
        "file:/a/t/data/v.puffin", content=1, format="PUFFIN", referenced_data_file="file:/a/t/data/1.parquet"
    )
    (found,) = read(iceberg.translated("metadata/m.avro", avro(MANIFEST, [record]), move, lambda place, recorded: 77))
    assert found["data_file"]["referenced_data_file"] == move("file:/a/t/data/1.parquet")
    assert (found["data_file"]["file_size_in_bytes"], found["data_file"]["split_offsets"]) == (77, [4, 1 << 40])


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("file:/a/t2/x", "file:/b/t/outside/file/a/t2/x"),
        ("file:///a/t2//x", "file:///b/t/outside/file/a/t2/x"),
        ("/a/t2/x", "/b/t/outside/file/a/t2/x"),
        ("file:/b/t/x", "file:/b/t/outside/file/b/t/x"),
        ("s3a://b/p/x", "file:///b/t/outside/s3-b/p/x"),
        ("hdfs://n:8020/p/x", "file:///b/t/outside/hdfs-n_3a8020/p/x"),
    ],
)
def test_a_file_outside_of_the_table_is_inside_on_the_target_where_its_entry_is(path: str, there: str) -> None:
    assert Mover(homes_of([("file:/a/t", "file:/b/t")]))(path) == there
    location, below = outside_entry(path) or ("", "")
    assert is_outside(location, "file:/a/t") and not is_outside(location, location)
    assert normal(there) == f"/b/t/{outside_directory(location)}/{below}"


def test_two_stores_never_share_a_directory_on_the_target() -> None:
    stores = [
        "hdfs://n:1/",
        "hdfs://n-1/",
        "hdfs://n_1/",
        "hdfs://n_3a1/",
        "hdfs://n/",
        "hdfs:///",
        "file:///",
        "s3://n/",
    ]
    found = {outside_directory(each) for each in stores}
    assert len(found) == len(stores) and all(each.startswith("outside/") for each in found)


@pytest.mark.parametrize(
    "path",
    ["file:/a/t/../u/x", "x", "file:/a/t/data/../../../x", "/a/../etc/x", "s3a://b//x", "file:/u/.h/x", "file://h/x"],
)
def test_a_path_that_leads_out_of_the_table_is_refused(path: str) -> None:
    with pytest.raises(Outside, match="outside"):
        Mover(homes_of([("file:/a/t", "file:/b/t")]))(path)


@pytest.mark.parametrize("former", [False, True])
def test_the_files_of_a_directory_are_moved_as_each_alone(former: bool) -> None:
    homes = homes_of(
        [("file:/a/t", "file:/b/t"), ("file:/a/t/data/far", "s3a://b/far"), ("hdfs://nn/c", "hdfs://nn/c")]
    )
    move = Mover(homes, former)
    places = ["file:/a/t/x", "file:///a//t/x/", "/a/t/data/1", "file:/a/t/data/far", "file:/a/t/data/far/1", "/a/t"]
    places += [
        "file:/a/t/data/..",
        "/a/t/data/../../2",
        "file:/a/t//x",
        "hdfs://nn/c/1",
        "file:/x",
        "x",
        "",
        "/",
        "s3://",
    ]
    for place in places * 2:
        found = []
        for mover in (Mover(homes, former), move):
            try:
                found.append(mover(place))
            except (Outside, UnknownPlace) as error:
                found.append(type(error).__name__)
        assert found == [expected(place, homes, former), found[0]], place


def expected(place: str, homes: Homes, former: bool) -> str:
    """As a file alone is moved, without a memory of directories."""
    try:
        return Mover(homes, former)._moved(place)
    except (Outside, UnknownPlace) as error:
        return type(error).__name__


# ---- what is not translated ---------------------------------------------------------------------------------------


def metadata(**more: Any) -> bytes:
    return json.dumps({"format-version": 2, "location": "file:/a/t", "snapshots": [], **more}).encode()


@pytest.mark.parametrize(
    ("path", "data", "says"),
    [
        ("metadata/1.metadata.json", b"", "is no metadata"),
        ("metadata/1.metadata.json", b"[]", "is no metadata"),
        ("metadata/1.metadata.json", b"\x1f\x8b\x08", "is no metadata"),
        ("metadata/1.metadata.json", metadata(**{"format-version": 4}), "newer than 3"),
        ("metadata/1.avro", b"", "cannot be read|can be read"),
        ("metadata/1.avro", b"Obj\x01\xff\xff", "can be read"),
        (
            "metadata/1.avro",
            avro(LIST, [{"manifest_path": "x", "manifest_length": 1, "key_metadata": None}])[:-20],
            "can be read",
        ),
        ("metadata/1.metadata.json", metadata(snapshots=5), "not as Iceberg's specification says"),
        ("metadata/1.metadata.json", metadata(snapshots=[{"manifest-list": 5}]), "not as|no metadata"),
        ("metadata/1.avro", avro({"type": "record", "name": "r", "fields": []}, [{}]), "neither"),
    ],
)
def test_damaged_and_newer_files_are_named(path: str, data: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        list(iceberg.references(path, data))
    with pytest.raises(FormatError, match=says):
        iceberg.translated(path, data, move, lambda place, recorded: 1)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (entry("file:/a/1.parquet"), ""),
        (entry("file:/a/1.parquet", key_metadata=b"k"), "encrypted"),
        (entry("file:/a/1.orc", content=1, format="ORC"), "position deletes in ORC"),
        (entry("file:/a/1.orc", content=2, format="ORC"), ""),
    ],
)
def test_what_is_not_translated_has_a_reason(record: dict[str, Any], says: str) -> None:
    (found,) = iceberg.references("metadata/m.avro", avro(MANIFEST, [record]))
    assert says in iceberg.problem_of(found) and bool(says) == bool(iceberg.problem_of(found))


def test_all_that_a_metadata_file_names_is_found_and_moved() -> None:
    data = metadata(
        **{
            "snapshots": [
                {"snapshot-id": 1, "manifest-list": "file:/a/t/metadata/s.avro"},
                {"snapshot-id": 2, "manifests": ["file:/a/t/metadata/m.avro"]},
            ],
            "metadata-log": [{"metadata-file": "file:/a/t/metadata/0.metadata.json"}],
            "statistics": [{"statistics-path": "file:/a/t/metadata/s.stats", "file-size-in-bytes": 3}],
            "partition-statistics": [{"statistics-path": "file:/a/t/metadata/p.stats"}],
            "properties": {"write.data.path": "file:/a/t/data", "comment": "file:/a/ is a place"},
        }
    )
    found = json.loads(iceberg.translated("metadata/1.metadata.json", data, move, lambda place, recorded: 1))
    assert json.dumps(found).count("file:/a/") == 1 and found["properties"]["comment"] == "file:/a/ is a place"
    assert [each.path for each in iceberg.references("metadata/1.metadata.json", data)] == [
        "file:/a/t/metadata/s.avro",
        "file:/a/t/metadata/m.avro",
        "file:/a/t/metadata/s.stats",
        "file:/a/t/metadata/p.stats",
    ]
    assert iceberg.locations_of("metadata/1.metadata.json", data) == ["file:/a/t", "file:/a/t/data"]


# ---- delete files -------------------------------------------------------------------------------------------------


def test_position_deletes_in_avro_are_moved_and_other_avro_is_not(tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "deletes",
        "fields": [
            {"name": "file_path", "type": "string", "field-id": PATH},
            {"name": "pos", "type": "long", "field-id": 2147483545},
        ],
    }
    records = [{"file_path": "file:/a/t/data/1.avro", "pos": 3}]
    data = avro(schema, records)
    assert iceberg.has_rows_of_others("x.avro", data[:400])
    assert read(iceberg.moved_deletes("x.avro", data, move)) == [{"file_path": move("file:/a/t/data/1.avro"), "pos": 3}]
    for field in schema["fields"]:  # type: ignore[attr-defined]
        field["field-id"] = 1
    other = avro(schema, records)
    assert iceberg.moved_deletes("x.avro", other, move) == other


def test_position_deletes_in_parquet_keep_ids_order_and_rows(tmp_path: Path) -> None:
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
    table = pa.table(
        [["file:/a/1"] * 3 + ["file:/a/2"], [1, 2, 3, 0]], schema=pa.schema(fields, {"delete-type": "position"})
    )
    pq.write_table(table, tmp_path / "d.parquet")
    data = (tmp_path / "d.parquet").read_bytes()
    moved = pq.ParquetFile(io.BytesIO(iceberg.moved_deletes("d.parquet", data, move)))
    assert moved.read().to_pydict() == {"file_path": [*[move("file:/a/1")] * 3, move("file:/a/2")], "pos": [1, 2, 3, 0]}
    assert [each.metadata[b"PARQUET:field_id"] for each in moved.schema_arrow] == [str(PATH).encode(), b"2147483545"]
    assert moved.schema_arrow.metadata[b"delete-type"] == b"position"
    plain = pa.table({"file_path": ["file:/a/1"], "pos": [1]})
    pq.write_table(plain, tmp_path / "p.parquet")
    data = (tmp_path / "p.parquet").read_bytes()
    assert iceberg.moved_deletes("p.parquet", data, move) == data


def puffin(blobs: list[dict[str, Any]], body: bytes) -> bytes:
    footer = json.dumps({"blobs": blobs}).encode()
    return b"PFA1" + body + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"


def test_a_puffin_file_of_vectors_gets_new_names_at_the_same_offsets() -> None:
    body = os.urandom(40)
    blob = {"type": "statistics", "fields": [1], "snapshot-id": 1, "sequence-number": 1, "offset": 4, "length": 40}
    data = puffin([{**blob, "properties": {"referenced-data-file": "file:/a/t/data/1.parquet"}}], body)
    found = iceberg.moved_deletes("v.puffin", data, move)
    (moved,) = PuffinFile(found).footer.blobs
    assert moved.properties == {"referenced-data-file": move("file:/a/t/data/1.parquet")}
    assert found[moved.offset : moved.offset + moved.length] == body
    statistics = puffin([blob], body)
    assert iceberg.moved_deletes("s.puffin", statistics, move) == statistics
    with pytest.raises(FormatError, match="compressed or damaged"):
        iceberg.moved_deletes("v.puffin", data[:-8] + b"\x01" + data[-7:], move)
