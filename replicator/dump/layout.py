"""Layout of a dump directory, and what its `_dumpmetadata` says. docs/dump-format.md specifies it for strangers."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from cmroot.parts import PartsReader
from cmroot.place import join, store_for
from replicator.errors import FormatError

FORMAT = "replicator-dump"
VERSION = 1
METADATA = "_dumpmetadata"  # JSON: what the dump is, and its parts with their checksums
FINISHED = "_finished_dump"  # written last; nothing reads a dump without it
RECORDS = "_metadata/records-{:05d}.jsonl.gz"
TABLES = "_metadata/tables.jsonl.gz"
FILES = "_files/bucket-{:04d}.parquet"
LOADS = "_finished_load"  # one acknowledgement per target

BOOTSTRAP = "bootstrap"
INCREMENTAL = "incremental"


class Scope(msgspec.Struct, frozen=True):
    """What a dump covers: databases, the patterns its tables match, and "db.table" -> the filter of its partitions."""

    databases: tuple[str, ...]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    partitions: dict[str, str] = {}


class Point(msgspec.Struct, frozen=True):
    """A place in the captured log: position, event id, and time in seconds."""

    position: int
    event: int
    time: int


class DumpMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a dump is. `begin`: the state it builds on (None for a bootstrap); `end`: the state it leads to. `source`:
    the metastore; `root`, `root_id`: its $cmroot; `locations`: database -> location at the source; `removed`: file
    entries that take files away; `slot`: the consumer it was made for, which its load confirms; `epochs`: database ->
    epoch of its role at the source (0: it had none; absent: the source was not asked)."""

    id: str
    kind: str
    created: str
    scope: Scope
    source: str
    root: str
    root_id: str
    begin: Point | None
    end: Point
    locations: dict[str, str]
    records: int
    files: int
    removed: int
    bytes: int
    observed: int
    buckets: int
    missing_directories: tuple[str, ...] = ()
    unknown_events: tuple[str, ...] = ()
    slot: str | None = None
    epochs: dict[str, int] = {}


class Finished(msgspec.Struct, frozen=True):
    """The marker: the id of the dump it finishes, and the checksum of its `_dumpmetadata`."""

    format: str
    version: int
    id: str
    xxh3_128: str


def open_parts(place: str) -> tuple[PartsReader, DumpMetadata]:
    """A finished dump's parts and metadata. Raises FormatError for anything else, saying which."""
    import xxhash

    store = store_for(place)
    try:
        data = store.read_bytes(join(place, FINISHED))
    except FileNotFoundError:
        found = store.exists(join(place, METADATA)) or store.list(place)
        raise FormatError(
            f"{place}: {'an unfinished dump' if found else 'no dump'} ({FINISHED} is missing)",
            hint="run the dump again; it writes the marker last" if found else "check the path",
        ) from None
    try:
        version = msgspec.json.decode(data, type=_Versioned)
        if version.format != FORMAT or version.version != VERSION:
            raise FormatError(
                f"{place}: dump format {version.format} version {version.version}; this release reads "
                f"{FORMAT} version {VERSION}",
                hint="use the release that wrote it, or dump again",
            )
        finished = msgspec.json.decode(data, type=Finished)
        found_checksum = xxhash.xxh3_128_hexdigest(store.read_bytes(join(place, METADATA)))
    except msgspec.DecodeError as error:
        raise FormatError(f"{place}/{FINISHED}: damaged: {error}", hint="dump again") from error
    except FileNotFoundError:
        raise FormatError(f"{place}/{METADATA}: missing", hint="dump again, or restore the file") from None
    if found_checksum != finished.xxh3_128:
        raise FormatError(f"{place}/{METADATA}: damaged (its checksum is not the marker's)", hint="dump again")
    reader = PartsReader(place, METADATA, format=FORMAT, version=VERSION)
    return reader, msgspec.convert(reader.metadata, type=DumpMetadata)


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
