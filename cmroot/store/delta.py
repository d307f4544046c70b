"""The log of a Delta table: the names in it and their order, the files that its last version names, and its translation
to other locations. Reads and writes JSON and Parquet; accesses no store.

The log defines the table: a version names its data files, and a reader uses the highest version that the log contains
without a gap. So a log is listed before its data files, and published after them, in the order of its versions. The
protocol (github.com/delta-io/delta, PROTOCOL.md): the newest complete checkpoint with its sidecars, then the commits
after it. Paths are URL-encoded and relative to the table, or absolute, as those of other tables' files are. A
translation changes absolute paths, and sizes of translated files; the same input always gives the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import FormatError

LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
SIDECARS = "_sidecars"  # directory of a log: parts of checkpoints of version 2

_BELOW = re.compile(rf"(?:^|/){LOG}/([^/]+(?:/[^/]+)*)$")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:parquet|(\d{10})\.(\d{10})\.parquet|[0-9a-f-]{36}\.(?:parquet|json))"
)
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
_OF_VERSION = re.compile(r"(\d{20})\.")

BESIDE, COMMIT, LAST = 0, 1, 2  # ranks, in the order of their publication


def in_log(path: str) -> str | None:
    """Returns the part of a path below the log's directory; None if the path is not in a log."""
    found = _BELOW.search(path)
    return found[1] if found else None


def rank(path: str) -> tuple[int, int] | None:
    """Returns the order in which a file of a log is published, among those of its table: sidecars, then checkpoints,
    then commits by version, then the name of the last checkpoint. None for data, which is published before them all."""
    name = in_log(path)
    if name is None:
        return None
    if commit := _COMMIT.fullmatch(name):
        return COMMIT, int(commit[1])
    return (LAST, 0) if name == LAST_CHECKPOINT else (BESIDE, int(not name.startswith(f"{SIDECARS}/")))


def commit_version(path: str) -> int | None:
    """Returns the version of a path of a commit; None for other paths."""
    found = rank(path)
    return found[1] if found and found[0] == COMMIT else None


def version_of(name: str) -> int | None:
    """Returns the version with which a name in a log begins, or that of Hadoop's checksum of such a file; None for
    other names, such as those of files that a writer has not renamed yet. Of compacted commits it is the first one."""
    found = _OF_VERSION.match(name.removeprefix(".") if name.endswith(".crc") else name)
    return int(found[1]) if found else None


def checkpoint_version(name: str) -> int | None:
    """Returns the version whose checkpoint, or part of one, has this name in the log; None for other names."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """Returns the complete checkpoints among the names in a log, by version; any one of several of the same version."""
    single: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        found = _CHECKPOINT.fullmatch(name)
        if found and found[3]:
            parts.setdefault((int(found[1]), int(found[3])), {})[int(found[2])] = name
        elif found:
            single[int(found[1])] = [name]
    whole = {version: list(some.values()) for (version, count), some in parts.items() if len(some) == count}
    return whole | single


def last_version(names: Iterable[str]) -> int | None:
    """Returns the newest version that these names of a log contain without a gap, after the newest checkpoint; None
    when they contain no version."""
    names = list(names)
    commits = {int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))}
    begun = checkpoints(names)
    if not begun and not commits:
        return None
    version = max(begun) if begun else min(commits)
    while version + 1 in commits:
        version += 1
    return version


def beyond(names: Iterable[str]) -> set[str]:
    """Returns names that a reader cannot use yet, of a log that was listed while it was written: those of versions
    after the last one without a gap; with them the name of the last checkpoint, which may be a later one."""
    names = list(names)
    last = last_version(names)
    if last is None:
        return set()
    found = set()
    for name in names:
        of_version = _COMPACTED.fullmatch(name) or _OF_VERSION.match(name)
        if of_version and int(of_version[1]) > last:
            found.add(name)
    return found | ({LAST_CHECKPOINT} & set(names) if found else set())


# ---- contents --------------------------------------------------------------------------------------------------------


class Unreadable(FormatError):
    """A file of a log is damaged, or is not one: readers of the table fail at it, too, or do not read it."""


Action = dict[str, Any]
Open = Callable[[str], BinaryIO]  # a file of the log, by its name in it
Move = Callable[[str], str]
"""Returns an absolute path of the source as it is on the target, both URL-encoded. Raises FormatError for any other."""
SizeOf = Callable[[str], int]  # bytes of a sidecar of the target, by its name

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_NAMED = ("add", "remove", "cdc")
_NAMING = (*_NAMED, "sidecar")
_OF_TABLE = ("protocol", "metaData")  # columns of a checkpoint that describe the table
_COORDINATED = {"coordinatedCommits", "managedCommit", "catalogManaged", "catalogOwned"}  # without `-preview`
_COORDINATOR = "delta.coordinatedCommits.commitCoordinator"  # begin of a table property
_OF_SIZES = ("sizeInBytes", "v2Checkpoint", "checksum")  # optional, in a `_last_checkpoint`: sizes of translated files
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: number for number, letter in enumerate(_ALPHABET)}


def actions(path: str, file: BinaryIO) -> Iterator[Action]:
    """Yields the actions that name files or describe the table, in a file of a log. `path`: path of that file, which
    determines its kind; nothing for a kind that has no actions. Raises Unreadable."""
    name = in_log(path) or ""
    if name.endswith((".json", ".parquet")):
        with _understood(name):
            yield from _actions(name, file)


def outside_paths(action: Action) -> Iterator[str]:
    """Yields the paths in an action that are absolute, or lead out of the table's directory."""
    for kind in _NAMING:
        for path in _paths(action.get(kind) or {}):
            if is_whole(path) or leads_out(path):
                yield path


def paths(action: Action, kinds: Collection[str] = _NAMED) -> Iterator[str]:
    """Yields the paths of files of the table in an action of one of these kinds, with those of deletion vectors."""
    for kind in kinds:
        yield from _paths(action.get(kind) or {})


def named_files(names: Iterable[str], open_file: Open) -> set[str]:
    """Returns every file that the last version of a log names, including deletion vectors: relative to the table, or
    absolute if the log names it so. `names`: all names in the log. Raises FormatError for a log without versions,
    Unreadable for a damaged one."""
    return {path for add in last_state(names, open_file).adds for path in _paths(add)}


@dataclass(frozen=True)
class State:
    """A version of a table: its metadata and protocol, and the adds of its files; of those in checkpoints, the path and
    the deletion vector."""

    version: int
    metadata: Action
    protocol: Action
    adds: Sequence[Action]


def last_state(names: Iterable[str], open_file: Open) -> State:
    """Returns the last version of a log. `names`: all names in the log. Raises FormatError for a log without versions,
    Unreadable for a damaged one."""
    names = list(names)
    last = last_version(names)
    if last is None:
        raise FormatError("the Delta log has no version", hint="check whether the table was ever committed")
    begun = checkpoints(names)
    begin = max((version for version in begun if version <= last), default=None)
    live, about = dict[tuple[str, str], Action](), dict[str, Action]()

    def apply(action: Action) -> None:
        _apply(action, live)
        about.update((kind, action[kind]) for kind in ("metaData", "protocol") if action.get(kind))

    for name in sorted(begun[begin]) if begin is not None else ():
        for action in _read(name, open_file):
            if sidecar := action.get("sidecar"):
                for below in _read(_in_sidecars(sidecar["path"]), open_file):
                    _apply(below, live)
            apply(action)
    after = {version: name for name in names if (version := commit_version(f"_delta_log/{name}")) is not None}
    for version in sorted(after):
        if (begin is None or version > begin) and version <= last:
            for action in _read(after[version], open_file):
                apply(action)
    return State(last, about.get("metaData", {}), about.get("protocol", {}), list(live.values()))


def is_whole(path: str) -> bool:
    """Returns True if a path in a log is not relative."""
    return path.startswith("/") or bool(_SCHEME.match(path))


def is_coordinated(action: Action) -> bool:
    """Returns True if a protocol or the metadata of a table leaves its commits to a coordinator, such as a catalog: the
    newest ones need not be in the log."""
    protocol = action.get("protocol") or {}
    features = [*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())]
    settings = dict((action.get("metaData") or {}).get("configuration") or {})
    return any(name.removesuffix("-preview") in _COORDINATED for name in features) or any(
        value for key, value in settings.items() if key.startswith(_COORDINATOR)
    )


def leads_out(path: str) -> bool:
    """Returns True if a path in a log has a part `..`, so that its text does not show where it leads."""
    return ".." in path.split("/")


def _in_sidecars(path: str) -> str:
    return f"{SIDECARS}/{unquote(path).rpartition('/')[2]}"  # the only directory in which they may be


def _read(name: str, open_file: Open) -> Iterator[Action]:
    with _understood(name), open_file(name) as file:
        yield from _actions(name, file)


@contextmanager
def _understood(name: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise Unreadable(
            f"{name} of a Delta log cannot be read: {error}", hint="compare it with the source's"
        ) from error


def _actions(name: str, file: BinaryIO) -> Iterator[Action]:
    """Yields the actions in a file of a log; of a checkpoint, those that name files or describe the table."""
    if name.endswith(".json"):
        for line in file:
            if line.strip():
                yield msgspec.json.decode(line)
        return
    parquet = pq.ParquetFile(file)
    columns = [
        *_OF_TABLE,
        *(
            column
            for name in _NAMING
            if name in parquet.schema_arrow.names
            for column in (f"{name}.path", f"{name}.deletionVector")
        ),
    ]
    for batch in parquet.iter_batches(columns=columns):
        for row in batch.to_pylist():
            yield {key: value for key, value in row.items() if value and (key not in _NAMING or value.get("path"))}


def _apply(action: Action, live: dict[tuple[str, str], Action]) -> None:
    for kind in ("add", "remove"):
        if about := action.get(kind):
            vector = about.get("deletionVector") or {}
            key = about["path"], f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}"
            if kind == "add":
                live[key] = about
            else:
                live.pop(key, None)


def _paths(about: Action) -> Iterator[str]:
    if "path" in about:
        yield unquote(about["path"])
    vector = about.get("deletionVector") or {}
    if vector.get("storageType") == "u":
        yield _vector_path(vector["pathOrInlineDv"])
    elif vector.get("storageType") == "p":
        yield unquote(vector["pathOrInlineDv"])


def _vector_path(text: str) -> str:
    """Decodes `<random prefix><20 letters of Z85>`: a UUID, which names the file that contains the vector."""
    prefix, encoded = text[:-20], text[-20:]
    words = (encoded[start : start + 5] for start in range(0, 20, 5))
    number = 0
    for word in words:
        value = 0
        for letter in word:
            value = value * 85 + _DIGITS[letter]
        number = number << 32 | value
    digits = f"{number:032x}"
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{prefix}/deletion_vector_{uuid}.bin" if prefix else f"deletion_vector_{uuid}.bin"


# ---- translation -----------------------------------------------------------------------------------------------------


def translated(path: str, data: bytes, move: Move, size_of: SizeOf) -> bytes:
    """Returns a file of a log, with this path, for the target: absolute paths are moved, and sizes of sidecars are the
    target's. The same bytes if nothing changes. Raises Unreadable, and FormatError for a path without translation."""
    name = in_log(path) or ""
    with _understood(name):
        if name == LAST_CHECKPOINT:
            return _without_sizes(data)
        if name.endswith(".crc"):
            return _moved_checksums(data, move, size_of)
        if name.endswith(".json"):
            return b"".join(_moved_line(line, move, size_of) for line in data.splitlines(keepends=True))
        return _moved_parquet(data, move, size_of) if name.endswith(".parquet") else data


def equal(path: str, one: bytes, other: bytes) -> bool:
    """Returns True if two files of a log say the same: encodings of Parquet may differ, and a `_last_checkpoint` of a
    time at which nothing was translated has all sizes."""
    try:
        if one != other and path.endswith(".parquet"):
            return bool(_table(one)[1].equals(_table(other)[1]))
        if one != other and in_log(path) == LAST_CHECKPOINT:
            return _without_sizes(one) == _without_sizes(other)
    except (msgspec.MsgspecError, pa.ArrowException):
        return False
    return one == other


def _without_sizes(data: bytes) -> bytes:
    found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    left = {key: value for key, value in found.items() if key not in _OF_SIZES}
    return data if len(left) == len(found) else msgspec.json.encode(left)


def _moved_line(line: bytes, move: Move, size_of: SizeOf) -> bytes:
    if not line.strip():
        return line
    action = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    moved = {kind: _moved(bytes(action[kind]), move, size_of) for kind in _NAMING if kind in action}
    if all(now == bytes(action[kind]) for kind, now in moved.items()):
        return line
    end = line[len(line.rstrip(b"\r\n")) :]
    return msgspec.json.encode(action | {kind: msgspec.Raw(now) for kind, now in moved.items()}) + end


def _moved_checksums(data: bytes, move: Move, size_of: SizeOf) -> bytes:
    """Translates the state that a version's checksum file may have, of tables with few files."""
    found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    files = msgspec.json.decode(found.get("allFiles", b"null"), type=list[msgspec.Raw] | None) or []
    moved = [_moved(bytes(each), move, size_of) for each in files]
    if moved == [bytes(each) for each in files]:
        return data
    return msgspec.json.encode(found | {"allFiles": [msgspec.Raw(each) for each in moved]})


def _moved(text: bytes, move: Move, size_of: SizeOf) -> bytes:
    """Returns the JSON of an add, a remove, a file of changes or a sidecar, with all other values as they are."""
    about = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | None)
    if not about:
        return text
    path, now = msgspec.json.decode(about["path"], type=str), dict[str, Any]()
    if (moved := _moved_path(path, move)) != path:
        now["path"] = moved
    if (vector := msgspec.json.decode(about.get("deletionVector", b"null"), type=dict[str, msgspec.Raw] | None)) and (
        msgspec.json.decode(vector["storageType"]) == "p"
    ):
        place = msgspec.json.decode(vector["pathOrInlineDv"], type=str)
        if (moved := _moved_path(place, move)) != place:
            now["deletionVector"] = vector | {"pathOrInlineDv": moved}
    if _is_sidecar(about) and (size := size_of(_in_sidecars(path))) != msgspec.json.decode(about["sizeInBytes"]):
        now["sizeInBytes"] = size
    return msgspec.json.encode(about | now) if now else text


def _is_sidecar(about: Collection[str]) -> bool:
    return "sizeInBytes" in about


def _moved_path(path: str, move: Move) -> str:
    if leads_out(unquote(path)):
        raise FormatError(f"{path} leads out of its directory", hint="name the file without `..`")
    return move(path) if is_whole(path) else path


def _table(data: bytes) -> tuple[pq.ParquetFile, pa.Table]:
    file = pq.ParquetFile(io.BytesIO(data), coerce_int96_timestamp_unit="us")
    return file, file.read()


def _moved_parquet(data: bytes, move: Move, size_of: SizeOf) -> bytes:
    file, table = _table(data)
    now = table
    for index, name in enumerate(table.column_names):
        if name in _NAMING:
            column = table.column(index).combine_chunks()
            now = now.set_column(index, table.schema.field(index), _moved_column(column, move, size_of))
    if now.equals(table):
        return data
    about, metadata = file.metadata, table.schema.metadata or {}
    of_first = about.row_group(0).column(0).compression
    leaves = (file.schema.column(index).physical_type for index in range(len(file.schema)))
    out = io.BytesIO()
    with pq.ParquetWriter(
        out,
        now.schema,
        compression="NONE" if of_first == "UNCOMPRESSED" else of_first,
        store_schema=False,
        use_deprecated_int96_timestamps="INT96" in leaves,
    ) as writer:
        writer.write_table(now)
        writer.add_key_value_metadata(metadata)
    return out.getvalue()


def _moved_column(column: pa.StructArray, move: Move, size_of: SizeOf) -> pa.StructArray:
    """Translates the structs of a column of a checkpoint. Fields keep their values where a struct is null: they may be
    declared as required."""
    names, valid = [field.name for field in column.type], column.is_valid().to_pylist()
    fields = {name: column.field(index) for index, name in enumerate(names)}
    paths = fields["path"].to_pylist()
    if "deletionVector" in fields:
        fields["deletionVector"] = _moved_vectors(fields["deletionVector"], move)
    if _is_sidecar(fields):
        sizes = zip(valid, paths, fields["sizeInBytes"].to_pylist(), strict=True)
        now = [size_of(_in_sidecars(path)) if given else size for given, path, size in sizes]
        fields["sizeInBytes"] = pa.array(now, fields["sizeInBytes"].type)
    moved = [_moved_path(path, move) if given else path for given, path in zip(valid, paths, strict=True)]
    fields["path"] = pa.array(moved, fields["path"].type)
    return pa.StructArray.from_arrays(list(fields.values()), fields=list(column.type), mask=column.is_null())


def _moved_vectors(vectors: pa.StructArray, move: Move) -> pa.StructArray:
    fields = {field.name: vectors.field(index) for index, field in enumerate(vectors.type)}
    values = zip(fields["storageType"].to_pylist(), fields["pathOrInlineDv"].to_pylist(), strict=True)
    moved = [_moved_path(path, move) if kind == "p" else path for kind, path in values]
    fields["pathOrInlineDv"] = pa.array(moved, fields["pathOrInlineDv"].type)
    return pa.StructArray.from_arrays(list(fields.values()), fields=list(vectors.type), mask=vectors.is_null())
