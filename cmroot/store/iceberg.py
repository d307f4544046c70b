"""The tree of an Iceberg table: the kinds of its files, the files that each names, and its translation to other
locations. Pure: bytes in, bytes out; accesses no store.

A table is the tree below one metadata file: lists of manifests, manifests, data and delete files (iceberg.apache.org,
Table Spec, versions 1 to 3). All of them are named by absolute paths, so a copy of the files would be a second name of
the source's table. A translation changes the paths and what depends on them: lengths of translated files, and bounds
that are paths. Everything else keeps its bytes: ids, sequence numbers, row ids, codecs. The same input always gives the
same bytes, so that a translation can be repeated and compared.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro.schema import parse_schema

from cmroot.errors import FormatError

DIRECTORY = "metadata"  # below a table's location: all files of a tree but data and delete files
NEWEST = 3  # the newest version of the specification whose tables are translated

Kind = Literal["metadata", "list", "manifest", "deletes", "vectors", "data"]
Move = Callable[[str], str]
"""Returns a location of the source as it is on the target; any other unchanged."""
SizeOf = Callable[[str, int], int]
"""Returns the size of a file of the target in bytes, by its location there and the size of the source's file."""

_PATH, _POSITION = 2147483546, 2147483545  # ids of the columns of position deletes (Table Spec, Reserved Field IDs)
_MAGIC, _PUFFIN = b"Obj\x01", b"PFA1"
_DELETED, _POSITION_DELETES = 2, 1  # `status` of an entry, `content` of a file
_OF_TABLES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
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
    """Returns True if a file, by its path in its table's directory, is a metadata file, a list or a manifest. Other
    files there name none."""
    return path.startswith(f"{DIRECTORY}/") and (path.endswith(".avro") or is_metadata(path))


def is_metadata(path: str) -> bool:
    """Returns True if a name is that of a metadata file, plain or compressed."""
    return path.endswith((".metadata.json", ".metadata.json.gz"))


def kind_of(path: str, data: bytes) -> Kind:
    """Returns the kind of a file `in_tree`. Raises FormatError for bytes that are none."""
    if is_metadata(path):
        return "metadata"
    return _avro_kind(_Avro.read(data, path))


def references(path: str, data: bytes) -> Iterator[Reference]:
    """Yields the files that a metadata file, list or manifest names: of a manifest, those of its live entries. Raises
    FormatError if it cannot be read or is of a newer specification."""
    if is_metadata(path):
        yield from _of_metadata(_metadata(path, data))
        return
    file = _Avro.read(data, path)
    kind = _avro_kind(file)
    for record in file.records():
        if kind == "list":
            encrypted = record.get("key_metadata") is not None
            yield Reference("manifest", record["manifest_path"], record["manifest_length"], encrypted=encrypted)
        elif record["status"] != _DELETED:
            yield _of_entry(record["data_file"])


def problem_of(found: Reference) -> str:
    """Returns why a file cannot be translated; empty if it can."""
    if found.encrypted:
        return "it is encrypted, and its keys are not replicated"
    if found.kind == "deletes" and found.format not in ("PARQUET", "AVRO"):
        return f"it has position deletes in {found.format or 'an unknown format'}, which are not translated"
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


def locations_of(path: str, data: bytes) -> list[str]:
    """Returns the locations to which a table's writers write, according to a metadata file."""
    found = _metadata(path, data)
    properties = found.get("properties") or {}
    return [found["location"], *(properties[key] for key in _OF_TABLES if key in properties)]


def _metadata(path: str, data: bytes) -> dict[str, Any]:
    """Returns a metadata file's content. Raises FormatError for one that cannot be read or translated."""
    try:
        found: Any = json.loads(_unpacked(data))
        version = found["format-version"]
        if not isinstance(found["location"], str) or not isinstance(version, int):
            raise TypeError("no location or version")
    except (ValueError, KeyError, TypeError, EOFError, OSError, zlib.error) as error:
        raise FormatError(f"{path} is no metadata of an Iceberg table: {error}", hint=_HINT) from error
    if version > NEWEST:
        raise FormatError(f"{path} is of version {version} of Iceberg's specification, newer than {NEWEST}", hint=_HINT)
    return found  # type: ignore[no-any-return]


def _unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


# ---- translation -----------------------------------------------------------------------------------------------------


def equal(path: str, one: bytes, other: bytes) -> bool:
    """Returns True if two files of a tree say the same: compression may differ. False for one that cannot be read."""
    try:
        if is_metadata(path):
            return _metadata(path, one) == _metadata(path, other)
        first, second = _Avro.read(one, path), _Avro.read(other, path)
        return first.properties == second.properties and list(first.records()) == list(second.records())
    except FormatError:
        return False


def translated(path: str, data: bytes, move: Move, size_of: SizeOf) -> bytes:
    """Returns a metadata file, list or manifest as it must be on the target. size_of: for manifests that a list names,
    and for delete files. Raises FormatError as `references` does; what `size_of` raises."""
    if is_metadata(path):
        return _moved_metadata(path, data, move)
    file = _Avro.read(data, path)
    fix = _moved_list if _avro_kind(file) == "list" else _moved_entry
    return file.written(lambda record: fix(record, move, size_of))


def _moved_metadata(path: str, data: bytes, move: Move) -> bytes:
    found = _metadata(path, data)
    found["location"] = move(found["location"])
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
    properties = found.get("properties") or {}
    for key in properties.keys() & set(_OF_TABLES):
        properties[key] = move(properties[key])
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    return gzip.compress(text, mtime=0) if data[:2] == b"\x1f\x8b" else text


def _moved_list(record: dict[str, Any], move: Move, size_of: SizeOf) -> None:
    record["manifest_path"] = move(record["manifest_path"])
    record["manifest_length"] = size_of(record["manifest_path"], record["manifest_length"])


def _moved_entry(record: dict[str, Any], move: Move, size_of: SizeOf) -> None:
    """Tombstones only get their new paths: the deleted file may be gone."""
    file = record["data_file"]
    file["file_path"] = move(file["file_path"])
    if file.get("referenced_data_file"):
        file["referenced_data_file"] = move(file["referenced_data_file"])
    if (file.get("content") or 0) != _POSITION_DELETES:
        return
    _move_bounds(file, move)
    if str(file["file_format"]).upper() != "PUFFIN":
        file["split_offsets"] = None  # of the row groups in the source's file
    if record["status"] != _DELETED:
        file["file_size_in_bytes"] = size_of(file["file_path"], file["file_size_in_bytes"])


def _move_bounds(file: dict[str, Any], move: Move) -> None:
    """Bounds of a delete file's paths are whole paths. A truncated one is not known to be a path, so both are omitted:
    bounds only spare readers files that cannot match."""
    sides = [
        {each["key"]: each for each in file.get(name) or ()}.get(_PATH) for name in ("lower_bounds", "upper_bounds")
    ]
    moved = [each and move(bytes(each["value"]).decode(errors="surrogateescape")) for each in sides]
    whole = all(
        each is None or now != bytes(each["value"]).decode(errors="surrogateescape")
        for each, now in zip(sides, moved, strict=True)
    )
    for name, each, now in zip(("lower_bounds", "upper_bounds"), sides, moved, strict=True):
        if each is not None and whole:
            each["value"] = str(now).encode(errors="surrogateescape")
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
    return {_PATH, _POSITION} <= {each.get("field-id") for each in _Avro.read(head, path).fields}


def moved_deletes(path: str, data: bytes, move: Move) -> bytes:
    """Returns a position-delete file or a file of deletion vectors for the target; any other file unchanged. Raises
    FormatError for one that cannot be read."""
    if data[:4] == _PUFFIN == data[-4:]:
        return _moved_vectors(path, data, move)
    if data[:4] == b"PAR1" == data[-4:]:
        return _moved_parquet(path, data, move)
    if data[:4] == _MAGIC:
        return _moved_avro(path, data, move)
    return data


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
    footer = json.loads(data[start:-12])
    moves = False
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
        index = [_field_id(field) for field in schema].index(_PATH)
        table = file.read()
    except pa.ArrowException as error:
        raise FormatError(f"{path} cannot be read: {error}", hint=_HINT) from error
    paths = table.column(index)
    distinct = paths.unique().to_pylist()
    moved = dict(zip(distinct, map(move, distinct), strict=True))
    now = pa.array([moved[each] for each in paths.to_pylist()], paths.type)
    table = table.set_column(index, schema.field(index), now).replace_schema_metadata(schema.metadata)
    out = io.BytesIO()
    codec = file.metadata.row_group(0).column(0).compression if file.metadata.num_row_groups else "ZSTD"
    pq.write_table(table, out, compression="NONE" if codec == "UNCOMPRESSED" else codec, store_schema=False)
    return out.getvalue()


def _field_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(b"PARQUET:field_id")
    return int(found) if found else None


def _moved_avro(path: str, data: bytes, move: Move) -> bytes:
    file = _Avro.read(data, path)
    fields = {each.get("field-id"): each["name"] for each in file.fields}
    if _PATH not in fields or _POSITION not in fields:
        return data
    name = fields[_PATH]

    def fix(record: dict[str, Any]) -> None:
        record[name] = move(record[name])

    return file.written(fix)


# ---- Avro ------------------------------------------------------------------------------------------------------------
# Avro's container: header, sync marker, blocks (Avro Specification, Object Container Files). The header and the marker
# are those of the source, byte by byte: fastavro would write attributes of the schema in an order of its own.


def _avro_kind(file: _Avro) -> Kind:
    names = {each["name"] for each in file.fields}
    if "manifest_path" in names:
        return "list"
    if "data_file" in names:
        return "manifest"
    raise FormatError(f"{file.path} is neither a list of manifests nor a manifest", hint=_HINT)


@dataclass(frozen=True)
class _Avro:
    """A file: its header with the sync marker, as written, and the bytes after it."""

    path: str
    header: bytes
    properties: Mapping[str, bytes]
    body: bytes

    @classmethod
    def read(cls, data: bytes, path: str) -> _Avro:
        """Raises FormatError for bytes that are no Avro file."""
        try:
            if data[:4] != _MAGIC:
                raise ValueError("it does not begin like one")
            stream = io.BytesIO(data)
            stream.seek(4)
            properties = dict(_header(stream))
            stream.seek(16, io.SEEK_CUR)
            at = stream.tell()
            file = cls(path, data[:at], properties, data[at:])
            if at > len(data) or not isinstance(file._written_schema, dict):
                raise ValueError("its header is damaged")
        except (ValueError, KeyError, IndexError, struct.error) as error:
            raise FormatError(f"{path} is not an Avro file that can be read: {error}", hint=_HINT) from error
        return file

    @functools.cached_property
    def _written_schema(self) -> Any:
        return json.loads(self.properties["avro.schema"])

    @property
    def fields(self) -> list[dict[str, Any]]:
        return self._written_schema.get("fields") or []

    @functools.cached_property
    def schema(self) -> Any:
        """Without logical types: values of partitions and bounds pass unchanged."""
        return parse_schema(_bare(self._written_schema))

    @property
    def codec(self) -> str:
        return self.properties.get("avro.codec", b"null").decode()

    def records(self) -> Iterator[dict[str, Any]]:
        """Raises FormatError for damaged records."""
        for count, block in self._blocks():
            stream = io.BytesIO(block)
            try:
                for _ in range(count):
                    record: Any = fastavro.schemaless_reader(stream, self.schema, None)
                    yield record
            except (EOFError, ValueError, IndexError, StopIteration, struct.error, UnicodeDecodeError) as error:
                raise FormatError(f"{self.path} has damaged records: {error}", hint=_HINT) from error

    def written(self, fix: Callable[[dict[str, Any]], None]) -> bytes:
        """Returns the file with changed records, in the same blocks."""
        out, sync = io.BytesIO(), self.header[-16:]
        out.write(self.header)
        for count, block in self._blocks():
            stream, new = io.BytesIO(block), io.BytesIO()
            try:
                for _ in range(count):
                    record: Any = fastavro.schemaless_reader(stream, self.schema, None)
                    fix(record)
                    fastavro.schemaless_writer(new, self.schema, record)
            except (EOFError, ValueError, IndexError, StopIteration, struct.error, UnicodeDecodeError) as error:
                raise FormatError(f"{self.path} has damaged records: {error}", hint=_HINT) from error
            packed = _pack(self.codec, new.getvalue())
            out.write(_long(count) + _long(len(packed)) + packed + sync)
        return out.getvalue()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        stream, sync = io.BytesIO(self.body), self.header[-16:]
        end = len(self.body)
        while stream.tell() < end:
            try:
                count, size = _read_long(stream), _read_long(stream)
                block = stream.read(size)
                if count < 0 or size < 0 or len(block) != size or stream.read(16) != sync:
                    raise ValueError("a block is cut off or damaged")
                yield count, _unpack(self.codec, block)
            except (ValueError, IndexError, zlib.error) as error:
                raise FormatError(f"{self.path} has damaged blocks: {error}", hint=_HINT) from error


def _header(stream: io.BytesIO) -> Iterator[tuple[str, bytes]]:
    while count := _read_long(stream):
        if count < 0:  # followed by the size in bytes
            count, _ = -count, _read_long(stream)
        for _ in range(count):
            key = stream.read(_read_long(stream))
            yield key.decode(), stream.read(_read_long(stream))


def _read_long(stream: io.BytesIO) -> int:
    number, shift = 0, 0
    while True:
        byte = stream.read(1)[0]
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _long(number: int) -> bytes:
    number, out = (number << 1) ^ (number >> 63), bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bare(schema: Any) -> Any:
    """Returns a schema without logical types, and with only what decides how values are written."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if isinstance(schema, dict):
        return {
            key: _bare(value) if key in ("type", "fields", "items", "values") else value
            for key, value in schema.items()
            if key not in ("logicalType", "adjust-to-utc", "default", "precision", "scale")
        }
    return schema


def _unpack(codec: str, block: bytes) -> bytes:
    match codec:
        case "null":
            return block
        case "deflate":
            return zlib.decompress(block, -15)
        case "snappy":  # followed by a checksum
            return pa.decompress(block[:-4], _snappy_size(block), codec="snappy", asbytes=True)  # type: ignore[no-any-return]
        case "zstandard":
            return pa.CompressedInputStream(pa.BufferReader(block), "zstd").read()  # type: ignore[no-any-return]
    raise ValueError(f"its codec is {codec}")


def _pack(codec: str, block: bytes) -> bytes:
    match codec:
        case "deflate":
            packer = zlib.compressobj(wbits=-15)
            return packer.compress(block) + packer.flush()
        case "snappy":
            return pa.compress(block, codec="snappy", asbytes=True) + struct.pack(">I", zlib.crc32(block))  # type: ignore[no-any-return]
        case "zstandard":
            return pa.compress(block, codec="zstd", asbytes=True)  # type: ignore[no-any-return]
    return block


def _snappy_size(block: bytes) -> int:
    """Returns the size of the unpacked bytes, with which Snappy's format begins."""
    number, shift = 0, 0
    for byte in block:
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
    return number
