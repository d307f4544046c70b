"""The tree of an Iceberg table: the kinds of its files, the files that each names, and its translation to other
locations. Pure: bytes in, bytes out; accesses no store.

A table is the tree below one metadata file: lists of manifests, manifests, data and delete files (iceberg.apache.org,
Table Spec, versions 1 to 3). All of them are named by absolute paths, so a copy of the files would be a second name of
the source's table. A translation changes the paths and what depends on them: lengths of translated files, and bounds
that are paths. Everything else keeps its bytes: ids, sequence numbers, row ids, codecs. The same input always gives the
same bytes, so that a translation can be repeated and compared.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import FormatError
from cmroot.store.blocks import MOST, AvroRecords, Known

DIRECTORY = "metadata"  # below a table's location: all files of a tree but data and delete files
ENTRIES = 100_000  # of lists, which are remembered; each has some hundred bytes
NEWEST = 3  # the newest version of the specification whose tables are translated

Kind = Literal["metadata", "list", "manifest", "deletes", "vectors", "data"]
Move = Callable[[str], str]
"""Returns a location of the source as it is on the target; any other unchanged."""
InOrder = Callable[[Sequence[str]], bool]  # returns True if all paths within bounds keep their order on the target
SizeOf = Callable[[str, int], int]
"""Returns the size of a file of the target in bytes, by its location there and the size of the source's file."""

_PATH, _POSITION = 2147483546, 2147483545  # ids of the columns of position deletes (Table Spec, Reserved Field IDs)
_AVRO, _PUFFIN = b"Obj\x01", b"PFA1"
_DELETED, _POSITION_DELETES = 2, 1  # `status` of an entry, `content` of a file
_OF_TABLES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
OF_TREES = ("write.metadata.path",)
_HINT = "check the table with its own tools, at the source"


@dataclass(frozen=True)
class Reference:
    """A file that a file of a tree names. size: bytes, as recorded; None: not recorded. format: of data and delete
    files, in upper case. encrypted: its bytes need a key."""

    kind: Kind
    path: str
    size: int | None = None
    format: str = ""
    encrypted: bool = False


def in_tree(path: str) -> bool:
    """Returns True for the path of a metadata file, a list or a manifest in its table: other files there name none."""
    return path.startswith(f"{DIRECTORY}/") and (path.endswith(".avro") or is_metadata(path))


def is_metadata(path: str) -> bool:
    """Returns True if a name is that of a metadata file, plain or compressed."""
    return path.endswith((".metadata.json", ".metadata.json.gz"))


def kind_of(path: str, data: bytes) -> Kind:
    """Returns the kind of a file `in_tree`. Raises FormatError for bytes that are none."""
    if is_metadata(path):
        return "metadata"
    return _avro_kind(AvroRecords(data, path))


def references(path: str, data: bytes) -> Iterator[Reference]:
    """Yields the files that a metadata file, list or manifest names: of a manifest, those of its live entries. Raises
    FormatError if it cannot be read or is of a newer specification."""
    with _understood(path):
        for each in _references(path, data):
            if not isinstance(each.path, str):
                raise TypeError("a path is no text")
            yield each


def _references(path: str, data: bytes) -> Iterator[Reference]:
    if is_metadata(path):
        yield from _of_metadata(read_metadata(path, data))
        return
    file = AvroRecords(data, path)
    kind = _avro_kind(file)
    for record in file.records():
        if kind == "list":
            encrypted = record.get("key_metadata") is not None
            yield Reference("manifest", record["manifest_path"], record["manifest_length"], encrypted=encrypted)
        elif record["status"] != _DELETED:
            yield _of_entry(record["data_file"])


def entries(path: str, data: bytes) -> Iterator[dict[str, Any]]:
    """Yields the records of a manifest, also of files that its snapshot removed. Raises FormatError as `references`."""
    return AvroRecords(data, path).records()


@contextmanager
def _understood(path: str) -> Iterator[None]:
    """Raises FormatError for content that is well formed, but is not what the specification says."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, struct.error) as error:
        raise FormatError(f"{path} is not as Iceberg's specification says: {error!r}", hint=_HINT) from error


def problem_of(found: Reference) -> str:
    """Returns why a file cannot be translated; empty if it can."""
    if found.encrypted:
        return "it is encrypted, and its keys are not replicated"
    if found.kind == "deletes" and found.format not in ("PARQUET", "AVRO"):
        return f"it has position deletes in {found.format or 'an unknown format'}, which are not translated"
    if found.kind in ("deletes", "vectors") and not names_rows(found.path):
        return "it has position deletes in a file whose name does not end like its format"
    return ""


def _of_metadata(metadata: Mapping[str, Any]) -> Iterator[Reference]:
    for snapshot in metadata.get("snapshots") or ():
        encrypted = snapshot.get("key-id") is not None
        if "manifest-list" in snapshot:
            yield Reference("list", snapshot["manifest-list"], encrypted=encrypted)
        for path in snapshot.get("manifests") or ():  # version 1 may list them here
            yield Reference("manifest", path)
    for name in ("statistics", "partition-statistics"):
        for each in metadata.get(name) or ():
            yield Reference("data", each["statistics-path"], each.get("file-size-in-bytes"))


def _of_entry(file: Mapping[str, Any]) -> Reference:
    form = str(file["file_format"]).upper()
    kind: Kind = "data"
    if (file.get("content") or 0) == _POSITION_DELETES:
        kind = "vectors" if form == "PUFFIN" else "deletes"
    return Reference(kind, file["file_path"], file["file_size_in_bytes"], form, file.get("key_metadata") is not None)


def earlier(path: str, data: bytes) -> list[str]:
    """Returns the earlier metadata files that a metadata file names: readers of the table need none of them."""
    found = read_metadata(path, data)
    with _understood(path):
        return [str(each["metadata-file"]) for each in found.get("metadata-log") or ()]


def locations_of(path: str, data: bytes, keys: Sequence[str] = _OF_TABLES) -> list[str]:
    """Returns the locations to which a table's writers write, according to some keys of a metadata file."""
    found = read_metadata(path, data)
    with _understood(path):
        properties = found.get("properties") or {}
        return [found["location"], *(str(properties[key]) for key in keys if key in properties)]


def read_metadata(path: str, data: bytes) -> dict[str, Any]:
    """Returns a metadata file's content. Raises FormatError for one that cannot be read or translated."""
    try:
        found: Any = msgspec.json.decode(_unpacked(data))
        version = found["format-version"]
        if not isinstance(found["location"], str) or not isinstance(version, int):
            raise TypeError("no location or version")
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, RecursionError, zlib.error) as error:
        raise FormatError(f"{path} is no metadata of an Iceberg table: {error}", hint=_HINT) from error
    if version > NEWEST:
        raise FormatError(f"{path} is of version {version} of Iceberg's specification, newer than {NEWEST}", hint=_HINT)
    return found  # type: ignore[no-any-return]


def _unpacked(data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    stream = zlib.decompressobj(31)
    found = stream.decompress(data, MOST)
    if not stream.eof:
        raise ValueError("its compressed bytes are cut off, or too many")
    return found


# ---- translation -----------------------------------------------------------------------------------------------------


def equal(path: str, one: bytes, other: bytes) -> bool:
    """Returns True if two files of a tree say the same: compression may differ. False for one that cannot be read."""
    try:
        if is_metadata(path):
            return read_metadata(path, one) == read_metadata(path, other)
        first, second = AvroRecords(one, path), AvroRecords(other, path)
        return first.properties == second.properties and list(first.records()) == list(second.records())
    except FormatError:
        return False


class Repeated:
    """The entries of lists that were translated: most of a list's are those of the one before, and are translated once.
    For one `move` and one `size_of`."""

    def __init__(self) -> None:
        self._schema, self._known = b"", Known()

    def clear(self) -> None:
        self._known.clear()

    def of(self, file: AvroRecords) -> Known:
        schema = file.properties["avro.schema"]
        if schema != self._schema or len(self._known) > ENTRIES:
            self._schema, self._known = schema, {}
        return self._known


def translated(
    path: str,
    data: bytes,
    move: Move,
    size_of: SizeOf,
    in_order: InOrder = lambda *_: True,
    repeated: Repeated | None = None,
) -> bytes:
    """Returns a metadata file, list or manifest as it must be on the target. size_of: for manifests that a list names,
    and for delete files. repeated: of the table's lists. Raises FormatError as `references` does; what `size_of`
    raises."""
    with _understood(path):
        if is_metadata(path):
            return _moved_metadata(path, data, move)
        file = AvroRecords(data, path)
        if _avro_kind(file) == "list":
            known = repeated.of(file) if repeated is not None else None
            return file.written(lambda record: _moved_list(record, move, size_of), known)
        return file.written(lambda record: _moved_entry(record, move, size_of, in_order))


def _moved_metadata(path: str, data: bytes, move: Move) -> bytes:
    found = read_metadata(path, data)
    for snapshot in found.get("snapshots") or ():
        if "manifest-list" in snapshot:
            snapshot["manifest-list"] = move(snapshot["manifest-list"])
        if "manifests" in snapshot:
            snapshot["manifests"] = [move(each) for each in snapshot["manifests"]]
    for each in found.get("metadata-log") or ():
        each["metadata-file"] = move(each["metadata-file"])
    for name in ("statistics", "partition-statistics"):
        for each in found.get(name) or ():
            each["statistics-path"] = move(each["statistics-path"])
    _move_writers(found, move)
    return _packed(found, data)


def _move_writers(found: dict[str, Any], move: Move) -> None:
    """Moves the places to which writers of a table or view write."""
    found["location"] = move(found["location"])
    properties = found.get("properties") or {}
    for key in properties.keys() & set(_OF_TABLES):
        properties[key] = move(properties[key])


def _packed(found: Mapping[str, Any], data: bytes) -> bytes:
    """Returns a metadata file's bytes, compressed if those of the source are."""
    text = msgspec.json.encode(found)
    return gzip.compress(text, mtime=0) if data[:2] == b"\x1f\x8b" else text


def translated_view(path: str, data: bytes, move: Move, database: Move, sql: Move) -> bytes:
    """Returns a view's metadata file as it must be on the target (View Spec, version 1). database: returns a database's
    name there; sql: returns a query as it is there. Raises FormatError for any other file."""
    with _understood(path):
        found = read_metadata(path, data)
        if "view-uuid" not in found or found["format-version"] != 1:
            raise FormatError(f"{path} is no metadata of an Iceberg view of version 1", hint=_HINT)
        _move_writers(found, move)
        for version in found["versions"]:
            version["default-namespace"] = [database(each) for each in version["default-namespace"]]
            for each in version["representations"]:
                each["sql"] = sql(each["sql"])
        return _packed(found, data)


def _moved_list(record: dict[str, Any], move: Move, size_of: SizeOf) -> None:
    record["manifest_path"] = move(record["manifest_path"])
    record["manifest_length"] = size_of(record["manifest_path"], record["manifest_length"])


def _moved_entry(record: dict[str, Any], move: Move, size_of: SizeOf, in_order: InOrder) -> None:
    """Tombstones only get their new paths: the deleted file may be gone."""
    file = record["data_file"]
    file["file_path"] = move(file["file_path"])
    if file.get("referenced_data_file"):
        file["referenced_data_file"] = move(file["referenced_data_file"])
    if (file.get("content") or 0) != _POSITION_DELETES:
        return
    _move_bounds(file, move, in_order)
    if str(file["file_format"]).upper() != "PUFFIN":
        file["split_offsets"] = None  # of the row groups in the source's file
    if record["status"] != _DELETED:
        file["file_size_in_bytes"] = size_of(file["file_path"], file["file_size_in_bytes"])


def _move_bounds(file: dict[str, Any], move: Move, in_order: InOrder) -> None:
    """Bounds of a delete file's paths are whole paths. A truncated one is not known to be a path, and those of paths in
    another order are no bounds, so both are omitted: bounds only spare readers files that cannot match."""
    names = ("lower_bounds", "upper_bounds")
    sides = [{each["key"]: each for each in file.get(name) or ()}.get(_PATH) for name in names]
    texts = [bytes(each["value"]).decode(errors="surrogateescape") for each in sides if each]
    fits = in_order(texts) and all(move(each) != each for each in texts)
    for name, each in zip(names, sides, strict=True):
        if each is not None and fits:
            now = move(bytes(each["value"]).decode(errors="surrogateescape"))
            each["value"] = now.encode(errors="surrogateescape")
        elif each is not None:
            file[name] = [other for other in file[name] if other is not each]


# ---- delete files ----------------------------------------------------------------------------------------------------


def names_rows(path: str) -> bool:
    """Returns True if a file outside of the tree may be a position-delete file or a deletion vector, by its name."""
    return path.endswith((".parquet", ".avro", ".puffin"))


def has_row_columns(schema: pa.Schema) -> bool:
    """Returns True for the schema of a position-delete file in Parquet."""
    return {_PATH, _POSITION} <= {_field_id(field) for field in schema}


def has_rows_of_others(path: str, head: bytes) -> bool:
    """Returns True for the beginning of a position-delete file in Avro. Raises FormatError if it is no Avro file."""
    return {_PATH, _POSITION} <= {each.get("field-id") for each in AvroRecords(head, path).fields}


def moved_deletes(path: str, data: bytes, move: Move) -> bytes:
    """Returns a position-delete file or a file of deletion vectors for the target; any other file unchanged. Raises
    FormatError for one that cannot be read."""
    with _understood(path):
        if data[:4] == _PUFFIN == data[-4:]:
            return _moved_vectors(path, data, move)
        if data[:4] == b"PAR1" == data[-4:]:
            return _moved_parquet(path, data, move)
        return _moved_avro(path, data, move) if data[:4] == _AVRO else data


def same_deletes(one: bytes, other: bytes) -> bool:
    """Returns True if two files of deletes say the same: compression may differ. False for any other files."""
    if one == other:
        return True
    if not one[:4] == other[:4] == b"PAR1":
        return False
    try:
        return bool(pq.read_table(io.BytesIO(one)).equals(pq.read_table(io.BytesIO(other))))
    except pa.ArrowException:
        return False


def _moved_vectors(path: str, data: bytes, move: Move) -> bytes:
    """Puffin: blobs, then a footer in JSON (Puffin Spec). Only the footer names data files; offsets do not change."""
    size, flags = struct.unpack("<iI", data[-12:-4])
    start = len(data) - 12 - size
    if flags or size < 0 or start < 8 or data[start - 4 : start] != _PUFFIN:
        raise FormatError(f"{path} is a Puffin file whose footer is compressed or damaged", hint=_HINT)
    footer, moves = json.loads(data[start:-12]), False
    for blob in footer.get("blobs") or ():
        properties = blob.get("properties") or {}
        if named := properties.get("referenced-data-file"):
            properties["referenced-data-file"] = move(named)
            moves = True
    if not moves:  # statistics
        return data
    text = json.dumps(footer, ensure_ascii=False, separators=(",", ":")).encode()
    return data[:start] + text + struct.pack("<iI", len(text), 0) + _PUFFIN


def _moved_parquet(path: str, data: bytes, move: Move) -> bytes:
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        schema = file.schema_arrow
        if not has_row_columns(schema):
            return data
        index, rows = map([_field_id(field) for field in schema].index, (_PATH, _POSITION))
        table = file.read()
    except pa.ArrowException as error:
        raise FormatError(f"{path} cannot be read: {error}", hint=_HINT) from error
    paths = table.column(index)
    distinct = paths.unique().to_pylist()
    moved = dict(zip(distinct, map(move, distinct), strict=True))
    now = pa.array([moved[each] for each in paths.to_pylist()], paths.type)
    table = table.set_column(index, schema.field(index), now).replace_schema_metadata(schema.metadata)
    if (order := [moved[each] for each in sorted(distinct)]) != sorted(order):  # rows are in the order of paths
        table = table.sort_by([(schema.names[index], "ascending"), (schema.names[rows], "ascending")])
    out = io.BytesIO()
    codec = file.metadata.row_group(0).column(0).compression if file.metadata.num_row_groups else "ZSTD"
    compression = "NONE" if codec == "UNCOMPRESSED" else codec
    with pq.ParquetWriter(out, table.schema, compression=compression, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(schema.metadata or {})
    return out.getvalue()


def _field_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(b"PARQUET:field_id")
    return int(found) if found else None


def _moved_avro(path: str, data: bytes, move: Move) -> bytes:
    file = AvroRecords(data, path)
    fields = {each.get("field-id"): each["name"] for each in file.fields}
    if _PATH not in fields or _POSITION not in fields:
        return data
    name = fields[_PATH]

    def fix(record: dict[str, Any]) -> None:
        record[name] = move(record[name])

    return file.written(fix)


# ---- Avro ------------------------------------------------------------------------------------------------------------


def _avro_kind(file: AvroRecords) -> Kind:
    names = {each["name"] for each in file.fields}
    if "manifest_path" in names:
        return "list"
    if "data_file" in names:
        return "manifest"
    raise FormatError(f"{file.path} is neither a list of manifests nor a manifest", hint=_HINT)
