"""Tables and partitions as the text inside notification messages -> values. Pure; the hot path of reading events.

Most of a text repeats from object to object: twenty columns, a serde. So it is read into shapes whose such parts stay
text, and each distinct part is read once. A text that does not fit its shape (ids that a newer server sends, nulls,
skew locations) is read by the slower `from_tjson`, which leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes
from thrift.protocol.TJSONProtocol import TJSONProtocol
from thrift.Thrift import TException
from thrift.transport.TTransport import TMemoryBuffer

from cmroot.errors import FormatError
from replicator.core.model import MANAGED, Column, Partition, Storage, Table
from replicator.metastore.convert.from_thrift import partition_from_thrift, table_from_thrift
from replicator.metastore.convert.from_tjson import partition_from_tjson, storage_from_tjson, table_from_tjson
from replicator.metastore.convert.homes import PRINCIPALS, columns, named

T = TypeVar("T")
PARTS = 8192  # distinct parts that are remembered


class _Shape(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """Root of the shapes: an id that a shape does not name is no part of it."""


class _Text(_Shape, frozen=True):
    value: str = msgspec.field(name="str")


class _Number(_Shape, frozen=True):
    value: int = msgspec.field(name="i32")


class _Flag(_Shape, frozen=True):
    value: int = msgspec.field(name="tf")


class _Map(_Shape, frozen=True):
    value: tuple[str, str, int, dict[str, str]] = msgspec.field(name="map")


class _Raw(_Shape, frozen=True):
    """A list whose text is kept, or a struct whose text is kept."""

    lst: msgspec.Raw = msgspec.Raw()
    rec: msgspec.Raw = msgspec.Raw()


_NO_TEXT, _NO_MAP, _NO_RAW, _NO_FLAG, _ZERO = _Text(""), _Map(("str", "str", 0, {})), _Raw(), _Flag(0), _Number(0)


def _id(number: int, default: Any) -> Any:
    return msgspec.field(name=str(number), default=default)


class _Storage(_Shape, frozen=True):
    columns: _Raw = _id(1, _NO_RAW)
    location: _Text | None = _id(2, None)
    input_format: _Text | None = _id(3, None)
    output_format: _Text | None = _id(4, None)
    compressed: _Flag = _id(5, _NO_FLAG)
    buckets: _Number = _id(6, _Number(-1))
    serde: _Raw = _id(7, _NO_RAW)
    bucket_columns: _Raw = _id(8, _NO_RAW)
    sort_columns: _Raw = _id(9, _NO_RAW)
    parameters: _Map = _id(10, _NO_MAP)
    skew: _Raw = _id(11, _NO_RAW)
    subdirectories: _Flag = _id(12, _NO_FLAG)


class _StorageField(_Shape, frozen=True):
    rec: _Storage


class _Values(_Shape, frozen=True):
    lst: msgspec.Raw


class _Partition(_Shape, frozen=True):
    values: _Values = _id(1, _Values(msgspec.Raw(b'["str",0]')))
    db: _Text = _id(2, _NO_TEXT)
    table: _Text = _id(3, _NO_TEXT)
    create_time: _Number = _id(4, _ZERO)
    last_access_time: _Number = _id(5, _ZERO)
    storage: _StorageField | None = _id(6, None)
    parameters: _Map = _id(7, _NO_MAP)


class _Table(_Shape, frozen=True):
    db: _Text = msgspec.field(name="2")
    name: _Text = msgspec.field(name="1")
    owner: _Text | None = _id(3, None)
    create_time: _Number = _id(4, _ZERO)
    last_access_time: _Number = _id(5, _ZERO)
    retention: _Number = _id(6, _ZERO)
    storage: _StorageField | None = _id(7, None)
    partition_keys: _Raw = _id(8, _NO_RAW)
    parameters: _Map = _id(9, _NO_MAP)
    view_original: _Text | None = _id(10, None)
    view_expanded: _Text | None = _id(11, None)
    kind: _Text = _id(12, _NO_TEXT)
    privileges: _Raw = _id(13, _NO_RAW)
    temporary: _Flag = _id(14, _NO_FLAG)
    rewrite_enabled: _Flag | None = _id(15, None)
    owner_type: _Number | None = _id(18, None)


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Of a storage descriptor its location, whatever else it says."""

    location: _Text | None = _id(2, None)


class _PlaceField(msgspec.Struct, frozen=True, gc=False):
    rec: _Place


class _Placed(msgspec.Struct, frozen=True, gc=False):
    values: _Values = _id(1, _Values(msgspec.Raw(b'["str",0]')))
    storage: _PlaceField | None = _id(6, None)


_read_partition = msgspec.json.Decoder(_Partition).decode
_read_table = msgspec.json.Decoder(_Table).decode
_read_placed = msgspec.json.Decoder(_Placed).decode
_read_any = msgspec.json.Decoder().decode


def table_from_text(text: str) -> Table:
    """A table as the text inside a message. Raises FormatError."""
    try:
        return _as_table(_read_table(text))
    except msgspec.DecodeError:
        return _slowly(text, table_from_tjson, ttypes.Table, table_from_thrift)


def partition_from_text(text: str) -> Partition:
    """A partition as the text inside a message. Raises FormatError."""
    try:
        return _as_partition(_read_partition(text))
    except msgspec.DecodeError:
        return _slowly(text, partition_from_tjson, ttypes.Partition, partition_from_thrift)


def place_from_text(text: str) -> tuple[tuple[str, ...], str | None]:
    """Values and location of a partition as the text inside a message. Raises FormatError."""
    try:
        found = _read_placed(text)
    except msgspec.DecodeError:
        whole = partition_from_text(text)
        return whole.values, whole.location
    place = found.storage.rec.location if found.storage else None
    return tuple(_read_any(found.values.lst)[2:]), place.value if place else None


def _as_partition(found: _Partition) -> Partition:
    return Partition(
        values=tuple(_read_any(found.values.lst)[2:]),
        create_time=found.create_time.value,
        last_access_time=found.last_access_time.value,
        storage=_as_storage(found.storage.rec) if found.storage else None,
        parameters=found.parameters.value[3],
    )


def _as_table(found: _Table) -> Table:
    return Table(
        db=found.db.value,
        name=found.name.value,
        kind=found.kind.value or MANAGED,
        owner=_text(found.owner),
        owner_type=named(PRINCIPALS, found.owner_type.value) if found.owner_type else None,
        create_time=found.create_time.value,
        last_access_time=found.last_access_time.value,
        retention=found.retention.value,
        storage=_as_storage(found.storage.rec) if found.storage else None,
        partition_keys=_columns(bytes(found.partition_keys.lst)),
        parameters=found.parameters.value[3],
        view_original=_text(found.view_original),
        view_expanded=_text(found.view_expanded),
        rewrite_enabled=bool(found.rewrite_enabled.value) if found.rewrite_enabled else None,
        temporary=bool(found.temporary.value),
        privileges=_read_any(found.privileges.rec) if bytes(found.privileges.rec) else None,
    )


def _as_storage(found: _Storage) -> Storage:
    rest = _rest_of_storage(
        bytes(found.serde.rec), bytes(found.bucket_columns.lst), bytes(found.sort_columns.lst), bytes(found.skew.rec)
    )
    return Storage(
        columns=_columns(bytes(found.columns.lst)),
        location=_text(found.location),
        input_format=_text(found.input_format),
        output_format=_text(found.output_format),
        compressed=bool(found.compressed.value),
        buckets=found.buckets.value,
        bucket_columns=rest.bucket_columns,
        sort_columns=rest.sort_columns,
        serde=rest.serde,
        parameters=found.parameters.value[3],
        skew=rest.skew,
        subdirectories=bool(found.subdirectories.value),
    )


def _text(found: _Text | None) -> str | None:
    return found.value if found else None


@lru_cache(PARTS)
def _columns(text: bytes) -> tuple[Column, ...]:
    """Of a list of FieldSchema, as its text."""
    items = _read_any(text)[2:] if text else ()
    return columns(tuple([(i["1"]["str"], i["2"]["str"], i["3"]["str"] if "3" in i else None) for i in items]))


@lru_cache(PARTS)
def _rest_of_storage(serde: bytes, bucket_columns: bytes, sort_columns: bytes, skew: bytes) -> Storage:
    """The parts of a descriptor that seldom differ, each as its text."""
    fields: dict[str, Any] = {}
    for key, tag, text in (
        ("7", "rec", serde),
        ("8", "lst", bucket_columns),
        ("9", "lst", sort_columns),
        ("11", "rec", skew),
    ):
        if text:
            fields[key] = {tag: _read_any(text)}
    return storage_from_tjson({"rec": fields}) or Storage()


def _slowly(text: str, from_tjson: Callable[[dict[str, Any]], T], cls: Any, from_thrift: Callable[[Any], T]) -> T:
    """Skew locations have lists for keys, and thrift writes them as such: `{["str",1,"a"]:"file:/..."}`. No JSON
    decoder reads that; thrift's own does, thirty times slower, and leaves out ids that the field table lacks."""
    try:
        return from_tjson(_read_any(text))
    except msgspec.DecodeError as error:
        struct = cls()
        try:
            struct.read(TJSONProtocol(TMemoryBuffer(text.encode())))
        except (TException, EOFError, ValueError):
            raise FormatError(f"not a {cls.__name__.lower()} in thrift's JSON form: {error}") from error
        return from_thrift(struct)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise FormatError(f"not a {cls.__name__.lower()} in thrift's JSON form: {error!r}") from error
