"""Layout of a dump directory and of its `_dumpmetadata`. docs/dump-format.md is the public specification."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
import pyarrow as pa

from cmroot.errors import UNREADABLE
from cmroot.log.segment import PARQUET, Part, PartsReader, damaged
from cmroot.names import HINT, LARGEST, check_entries, check_id, check_name, foreign
from cmroot.store.place import Place, as_written, join
from cmroot.store.spelling import naming
from replicator.core.model import Table
from replicator.core.not_replicated import NotReplicated
from replicator.errors import ConfigError, FormatError, Refused
from replicator.metastore.events.record import Change, ChangeRecord, decode_line, decode_table

# ---- signing ---------------------------------------------------------------------------------------------------------
# Signatures of dumps: prove that a dump was written by a holder of the key. docs/decisions/0009 explains the design.
#
#     _signature   {"format": "replicator-dump-signature", "version": 1, "algorithm": "hmac-sha256", "mac": "...",
#                   "body": {"dump": "<id>", "metadata": "<SHA-256>", "parts": {"<name>": "<SHA-256>"}}}
#
# The body contains the dump's id, and the SHA-256 of `_dumpmetadata` and of every part: the other checksums of a dump
# are fast ones that detect damage, but an attacker can find other bytes with the same checksum. The MAC covers the
# bytes of `body` exactly as they are in the file.


SIGNATURE = "_signature"
_FORMAT, _VERSION, _ALGORITHM = "replicator-dump-signature", 1, "hmac-sha256"
_SHORTEST = 32  # minimum length of a key in bytes: that of SHA-256; RFC 2104 advises against less
_BLOCK = 1 << 20


class _File(msgspec.Struct, frozen=True):
    format: str
    version: int
    algorithm: str
    mac: str
    body: msgspec.Raw


class Signed(msgspec.Struct, frozen=True):
    """The signed values: the dump's id, the SHA-256 of its `_dumpmetadata`, and that of each part by name."""

    dump: str
    metadata: str
    parts: dict[str, str]


@dataclass(frozen=True)
class Keys:
    """Keys of a key file. The first signs, any verifies, so that a key can be replaced while old dumps are in use."""

    file: str
    secrets: tuple[bytes, ...] = field(repr=False)


def read_keys(path: str) -> Keys:
    """Returns the keys of a file, one per line. Raises ConfigError for a file that cannot be read, that other users may
    read, or that contains a key of fewer than 32 characters; the message never contains a key."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = [line.strip() for line in file.read().splitlines()]
    except OSError as error:
        raise ConfigError(
            f"key file {path}: {error.strerror}", hint="check dumps.key_file and its permissions"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"key file {path}: users other than its owner can access it", hint=f"chmod 600 {path}")
    secrets = tuple(line for line in lines if line)
    if not secrets or min(map(len, secrets)) < _SHORTEST:
        raise ConfigError(
            f"key file {path}: contains no key, or one of fewer than {_SHORTEST} characters",
            hint=f"create one: (umask 077; openssl rand -hex 32 > {path})",
        )
    return Keys(path, secrets)


def sign(place: str, dump: str, parts: Iterable[str], metadata: str, keys: Keys) -> None:
    """Writes the signature of a dump after its parts and `metadata` (the file's name), and before the marker."""
    named = {name: _sha256(join(place, name)) for name in sorted(parts)}
    body = msgspec.json.encode(Signed(dump, _sha256(join(place, metadata)), named))
    file = _File(_FORMAT, _VERSION, _ALGORITHM, _mac(keys.secrets[0], body), msgspec.Raw(body))
    (Place(place) / SIGNATURE).write_bytes(msgspec.json.encode(file) + b"\n")


def signed(place: str, dump: str, metadata: str, keys: Keys) -> Signed:
    """Returns the signed values of a dump after checking its `metadata`. Raises Refused for a dump without a signature,
    with one made by none of the keys, or of another dump; FormatError for a damaged one."""
    path = join(place, SIGNATURE)
    try:
        file = msgspec.json.decode(Place(path).read_bytes(), type=_File)
        if (file.format, file.version, file.algorithm) != (_FORMAT, _VERSION, _ALGORITHM):
            raise damaged(path, f"is a {file.format} version {file.version} with {file.algorithm}")
        body = bytes(file.body)
        if not any(hmac.compare_digest(_mac(key, body).encode(), file.mac.encode()) for key in keys.secrets):
            raise _refused(place, f"its signature matches none of the keys in {keys.file}")
        found = msgspec.json.decode(body, type=Signed)
    except FileNotFoundError:
        raise _refused(place, f"it is not signed, but the key file {keys.file} is configured") from None
    except UNREADABLE as error:
        raise damaged(path, f"cannot be read: {error}") from error
    if found.dump != dump:
        raise _refused(place, f"its signature belongs to dump {found.dump}")
    if found.metadata != _sha256(join(place, metadata)):
        raise _refused(place, f"{metadata} differs from the one that was signed")
    return found


def check_parts(place: str, parts: Iterable[str], found: Signed) -> None:
    """Reads every part. Raises Refused for one that differs from the signed one."""
    for name in parts:
        if found.parts.get(name) != _sha256(join(place, name)):
            raise _refused(place, f"{name} differs from the one that was signed")


def _refused(place: str, what: str) -> Refused:
    return Refused(
        f"dump {place}: {what}",
        hint="copy it again from the host that signs dumps; a configuration without dumps.key_file loads unsigned "
        "dumps",
    )


def _mac(secret: bytes, body: bytes) -> str:
    about = f"{_FORMAT} {_VERSION} {_ALGORITHM}\n".encode()
    return hmac.new(secret, about + body, "sha256").hexdigest()


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with naming(path), Place(path).open_read() as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# ---- layout ----------------------------------------------------------------------------------------------------------


FORMAT = "replicator-dump"
VERSION = 1
METADATA = "_dumpmetadata"  # JSON: description of the dump, and its parts with their checksums
FINISHED = "_finished_dump"  # written last; a dump without it is never read
RECORDS = "_metadata/records-{:05d}.jsonl.gz"
TABLES = "_metadata/tables.jsonl.gz"
FILES = "_files/bucket-{:04d}.parquet"
CONTENTS = "_metadata/contents-{:05d}.jsonl.gz"  # of a dump with data: each content, and the dump that has it
DATA = "_data"  # the bytes of a dump with data: `files/<ab>/xxh3_128-<checksum>-<size>`, as in a $cmroot
LOADS = "_finished_load"  # one acknowledgement per target

Kind = Literal["bootstrap", "incremental"]
BOOTSTRAP: Kind = "bootstrap"
INCREMENTAL: Kind = "incremental"


class Scope(msgspec.Struct, frozen=True):
    """The scope of a dump: databases, the patterns its tables match, and "db.table" -> the filter of its partitions."""

    databases: tuple[str, ...]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    partitions: dict[str, str] = {}


Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class Point(msgspec.Struct, frozen=True):
    """A point in the captured log: position, event id, and time in seconds."""

    position: Number
    event: Number
    time: Annotated[int, msgspec.Meta(ge=0, le=253402300799)]


class Earlier(msgspec.Struct, frozen=True):
    """An earlier dump of a chain: its id, and where it was when it was referenced."""

    id: str
    place: str


class DumpData(msgspec.Struct, frozen=True):
    """The bytes that a dump has: `files` contents of `bytes` bytes. `referenced`: contents that dumps in `earlier` have
    (the whole chain, the newest first)."""

    files: Number
    bytes: Number
    referenced: Number = 0
    earlier: tuple[Earlier, ...] = ()


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """A content that a load may need. `dump`: the id of the earlier dump that has it ("": the dump itself). `sha256`:
    of a signed dump's own contents, 64 hex digits."""

    checksum: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    size: Number
    dump: str = ""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""


class DumpMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a dump. `begin`: the state it builds on (None for a bootstrap); `end`: the state it leads to.
    `source`: the metastore; `root`, `root_id`: its $cmroot; `locations`: database -> location at the source; `removed`:
    number of file entries that remove files; `slot`: the consumer of the dump, which its load confirms; `epochs`:
    database -> epoch of its role at the source (0: it had no role; absent: the source was not queried);
    `not_replicated`: objects that a load cannot replicate exactly; `transactional`: tables that loads into a metastore
    without write ids leave out; `formats`: tables that loads leave out because of their format, with the reason;
    `outside`: those of them whose log names files by absolute paths, which loads translate, with the directories of
    files that no table of the dump has, and the table that has them ("": none); `empty`: tables and partitions
    (`db.table/p=1`) without a directory that the operator has declared empty; `held`: bytes of all files in scope at
    `end`, if an increment removes files; `constraints`: True if the source's constraints are known, so that a table
    without constraints in the dump has none; `grants`: the same, of grants; `data`: the bytes that the dump has itself
    (None: it names files only); `unkept`: entries whose bytes only the source's files have, so that a load is possible
    only as long as these stay (None: not known)."""

    id: str
    kind: Kind
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
    not_replicated: tuple[NotReplicated, ...] = ()
    formats: dict[str, str] = {}
    outside: dict[str, dict[str, str]] = {}
    transactional: list[str] = []
    empty: tuple[str, ...] = ()
    held: int | None = None
    constraints: bool = False
    grants: bool = False
    data: DumpData | None = None
    unkept: Number | None = None


class Finished(msgspec.Struct, frozen=True):
    """The marker: the id of the dump it finishes, and the checksum of its `_dumpmetadata`."""

    format: str
    version: int
    id: str
    xxh3_128: str


def open_parts(place: str) -> tuple[PartsReader, DumpMetadata]:
    """Returns a finished dump's parts and metadata. Raises FormatError for anything else, with a description of it."""
    try:
        data = (Place(place) / FINISHED).read_bytes()
    except FileNotFoundError:
        raise _no_dump(place) from None
    return parts_of(place, data)


def parts_of(place: str, data: bytes) -> tuple[PartsReader, DumpMetadata]:
    """Returns a dump's parts and metadata. data: its marker, which need not be written yet. Raises as `open_parts`."""
    import xxhash

    try:
        version = msgspec.json.decode(data, type=_Versioned)
        if version.format != FORMAT or version.version != VERSION:
            raise FormatError(
                f"{place}: dump format {version.format} version {version.version}; this release reads "
                f"{FORMAT} version {VERSION}",
                hint="use the release that wrote it, or dump again",
            )
        finished = msgspec.json.decode(data, type=Finished)
        found_checksum = xxhash.xxh3_128_hexdigest((Place(place) / METADATA).read_bytes())
    except UNREADABLE as error:
        raise FormatError(f"{place}/{FINISHED}: damaged: {error}", hint="dump again") from error
    except FileNotFoundError:
        raise FormatError(f"{place}/{METADATA}: missing", hint="dump again, or restore the file") from None
    if found_checksum != finished.xxh3_128:
        raise FormatError(f"{place}/{METADATA}: damaged (its checksum differs from the marker's)", hint="dump again")
    reader = PartsReader(place, METADATA, format=FORMAT, version=VERSION)
    path = join(place, METADATA)
    try:
        metadata = msgspec.convert(reader.metadata, type=DumpMetadata)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: cannot be read: {error}", hint=HINT) from error
    if finished.id != metadata.id:
        raise FormatError(f"{path}: belongs to dump {metadata.id!r}, the marker to {finished.id!r}", hint=HINT)
    _check_names(metadata, path)
    return reader, metadata


def _check_names(metadata: DumpMetadata, path: str) -> None:
    """Checks ids and names, because they become parts of paths, and of the target's properties. Raises FormatError."""
    check_id(path, "the id", metadata.id)
    check_id(path, "the id of the root", metadata.root_id)
    if metadata.slot is not None:
        check_id(path, "slot", metadata.slot)
    for earlier in metadata.data.earlier if metadata.data else ():
        check_id(path, "the id of an earlier dump", earlier.id)
    for name in (*metadata.scope.databases, *metadata.locations, *metadata.epochs):
        check_name(path, "database", name)


def _no_dump(place: str) -> FormatError:
    """Returns the error that describes a location without a marker."""
    names = Place(place).list()
    if {METADATA, "_metadata", "_files"} & set(names):
        text, hint = f"an unfinished dump ({FINISHED} is missing)", "run the dump again; it writes the marker last"
    elif {"FORMAT", "log"} <= set(names):
        text, hint = "not a dump, but a $cmroot", "`replicator dump --cmroot` writes a dump from it; load that"
    elif any((Place(place) / name / FINISHED).exists() for name in names[:100]):
        text, hint = "not a dump, but a directory of dumps", "load one of them"
    else:
        text = "not a dump" if names else "not a dump: it is empty or does not exist"
        hint = "check the path; a dump is the directory that `replicator dump --out` wrote"
    return FormatError(f"{place}: {text}", hint=hint)


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---- reader ----------------------------------------------------------------------------------------------------------
# DumpReader: reads a finished dump with constant memory.


class DumpReader:
    """A reader. Raises FormatError at once for an unfinished dump or unknown version, later for a damaged part."""

    def __init__(self, place: str, keys: Keys | None = None) -> None:
        """`keys`: the dump must be signed with one of them, otherwise Refused is raised."""
        self.place = str(as_written(place))
        self._parts, self.metadata = open_parts(self.place)
        self._signed = signed(self.place, self.metadata.id, METADATA, keys) if keys else None

    @classmethod
    def unfinished(cls, parts: PartsReader, metadata: DumpMetadata) -> DumpReader:
        """Returns a reader of parts that are written, but not described by a marker yet."""
        reader = cls.__new__(cls)
        reader.place, reader._parts, reader.metadata, reader._signed = parts.place, parts, metadata, None
        return reader

    @property
    def parts(self) -> list[Part]:
        """The dump's parts, with their sizes and checksums."""
        return self._parts.parts

    @property
    def is_signed(self) -> bool:
        """True if one of the given keys has signed the dump."""
        return self._signed is not None

    def verify(self) -> None:
        """Reads every part and compares its checksum. Raises FormatError with the name of the first damaged one."""
        self._parts.verify()
        if self._signed is not None:
            check_parts(self.place, (part.name for part in self._parts.parts), self._signed)
        for _ in self.entries():  # check every entry before any of them is used
            pass

    def records(self, after: int = 0) -> Iterator[ChangeRecord]:
        """Yields the records after a position, in order."""
        for part in self._parts.parts:
            if part.name.startswith("_metadata/records-"):
                for line in self._parts.lines(part.name):
                    record = decode_line(line, self._parts.path(part.name))
                    self._check_scope(record.change, part.name)
                    if record.position > after:
                        yield record

    def tables(self) -> Iterator[Table]:
        """Yields touched tables as they are at the end of the range."""
        if any(part.name == TABLES for part in self._parts.parts):
            for line in self._parts.lines(TABLES):
                table = decode_table(line, self._parts.path(TABLES))
                self._check_database(table.db, TABLES)
                yield table

    def contents(self) -> Iterator[Content]:
        """Yields the contents that a dump with data lists, each once, in no order; none of another dump."""
        for part in self._parts.parts:
            if part.name.startswith("_metadata/contents-"):
                for line in self._parts.lines(part.name):
                    try:
                        content = msgspec.json.decode(line, type=Content)
                    except UNREADABLE as error:
                        raise damaged(self._parts.path(part.name), f"cannot be read: {error}") from error
                    if content.dump:
                        check_id(self._parts.path(part.name), "the id of an earlier dump", content.dump)
                    yield content

    def _check_scope(self, change: Change, part: str) -> None:
        """Checks that a change concerns only databases that the dump covers, and no other database of the target."""
        for name in () if change.unread is not None else change.databases:
            self._check_database(name, part)

    def _check_database(self, name: str, part: str) -> None:
        if name not in self.metadata.scope.databases:
            raise foreign(self._parts.path(part), "database", name, "is not one that the dump covers")

    def buckets(self) -> list[tuple[str, int]]:
        """Returns (path of a Parquet part, its rows) for every bucket."""
        return [(self._parts.path(part.name), part.rows) for part in self._parts.parts if part.kind == PARQUET]

    def entries(self) -> Iterator[pa.RecordBatch]:
        for part in self._parts.parts:
            if part.kind == PARQUET:
                for batch in self._parts.batches(part.name):
                    check_entries(batch, self._parts.path(part.name), complete=True)
                    yield batch
