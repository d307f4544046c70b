"""Hudi tables: the names in their directories, which of them are one state, the order in which they are published, and
the translation of those that name the table's location or database. Accesses no store.

A table is its base and log files, and its timeline: files below `.hoodie`, named by instants. Readers use only files
of completed instants, or of ones before the first that the timeline still has. The table in `.hoodie/metadata`, with a
timeline of its own, lists the files of the first one, and is written before it. Table version 6 has the instants in
`.hoodie`, versions 8 and 9 in `.hoodie/timeline`, with the time of completion in their names (Hudi's specification,
https://hudi.apache.org/learn/tech-specs-1point0).
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import FormatError
from cmroot.store.blocks import AvroRecords

HOME = ".hoodie"
METADATA = f"{HOME}/metadata"
PROPERTIES = f"{HOME}/hoodie.properties"
BACKUP = f"{PROPERTIES}.backup"  # stands for the properties while they are replaced
TIMELINES = (f"{HOME}/timeline", HOME, f"{METADATA}/{HOME}/timeline", f"{METADATA}/{HOME}")
"""The directories of instants, in the order in which they must be listed: the table of metadata after the table."""

NEWEST = 9  # the newest table version that is known
FIRST_WITH_TIMELINE = 8  # the first table version with a directory of instants
REQUESTED, INFLIGHT, COMPLETED = "requested", "inflight", "completed"

_UNFINISHED = frozenset({".temp", ".heartbeat", ".locks", "_temporary", "_scratch"})  # directories of writers
_DATA_OF_LOGS = re.compile(r"\.(?P<id>.+)_(?P<time>\d+)\.log\.\d+(?:_\d+-\d+-\d+)?(?:\.cdc)?")
_BASE = re.compile(r"(?P<id>.+?)_\d+-\d+-\d+_(?P<time>\d+)(?:\.\w+)?\.\w+")
_PARTITION = re.compile(r"\.hoodie_partition_metadata(?:\.\w+)?")
_INSTANT = re.compile(
    rf"(?:.*?/)??(?P<home>(?:\{METADATA}/)?\{HOME})/(?:timeline/)?"
    r"(?P<time>\d+)(?:_(?P<end>\d+))?(?:\.(?P<action>[a-z]+))??(?:\.(?P<state>requested|inflight))?"
)
_HISTORY = re.compile(rf"(?:.*/)?\{HOME}/timeline/history/(?P<name>_version_|manifest_\d+|[^/]+\.parquet)")
_ARCHIVE = re.compile(r"\.commits_\.archive\.\d+(?:_\d+-\d+-\d+)?")  # the history in version 6
_PLANS = frozenset({"compaction", "logcompaction", "clustering", "replacecommit"})
"""Actions whose plans change which files readers merge, or writers may change, before they are completed."""

_WRITES = _PLANS | {"commit", "deltacommit"}
_REMOVES = frozenset({"clean", "rollback", "restore"})
_NAMES_PLACES = _REMOVES | _PLANS


class Instant(NamedTuple):
    """A file of a timeline. of_metadata: of the table of metadata; end: when it was completed, "" in version 6."""

    of_metadata: bool
    time: str
    end: str
    action: str
    state: str

    @property
    def is_savepoint(self) -> bool:
        """True for the file of a savepoint, which has the time of the instant that it protects."""
        return self.action == "savepoint"


def instant_of(path: str) -> Instant | None:
    """Returns the instant that a path, ending as in its table, is a file of; None for any other."""
    found = _INSTANT.fullmatch(path)
    if found is None or not (found["action"] or found["state"]):
        return None
    state, action = found["state"] or COMPLETED, found["action"] or "commit"  # `<time>.inflight` is a commit's
    return Instant(found["home"] != HOME, found["time"], found["end"] or "", action, state)


def is_plan(instant: Instant) -> bool:
    """Returns True for the plan of a compaction or clustering, which may be executed later."""
    return instant.action in _PLANS and instant.state == REQUESTED


def base_file(name: str) -> tuple[str, str] | None:
    """Returns the file group and the instant of a base file, by its name; None for any other."""
    found = _BASE.fullmatch(name)
    return (found["id"], found["time"]) if found and not name.startswith((".", "_")) else None


def is_log(name: str) -> bool:
    """Returns True for the name of a log file."""
    return _DATA_OF_LOGS.fullmatch(name) is not None


def belongs(path: str) -> bool:
    """Returns True if a file, by its path in a Hudi table's directory, is the table's: hidden names may be."""
    *above, name = path.split("/")
    if _UNFINISHED.intersection(above):
        return False
    if above[:1] != [HOME] and any(part.startswith(".") for part in above):
        return False
    if name.startswith("."):
        return any(each.fullmatch(name) for each in (_DATA_OF_LOGS, _PARTITION, _ARCHIVE))
    return path != f"{HOME}/lock"


def is_walked(name: str, path: str) -> bool:
    """Returns True for a directory of a Hudi table that may have files of it. path: its path in the table."""
    return name not in _UNFINISHED and (not name.startswith(".") or path.split("/", 1)[0] == HOME)


def is_replaced_in_place(path: str) -> bool:
    """Returns True for a file that writers replace under its name, perhaps by writing into it: neither an instant nor
    data. path: any that ends as in its table."""
    own = f"/{path}"
    of_metadata = f"/{METADATA}/" in own and f"/{METADATA}/{HOME}/" not in own
    return f"/{HOME}/" in own and not of_metadata and instant_of(path) is None


def removals(paths: Iterable[str]) -> frozenset[Instant]:
    """Returns the instants that remove files, of both timelines."""
    found = map(instant_of, paths)
    return frozenset(each for each in found if each is not None and each.action in _REMOVES)


class State:
    """The state of a table that its timelines had when they were listed: which of its files belong to it."""

    def __init__(self, paths: Iterable[str]) -> None:
        """paths: of files in the table; those of instants count."""
        found = [(path, each) for path in paths if (each := instant_of(path)) is not None]
        self._of = {of: _Timeline([each for each in found if each[1].of_metadata is of]) for of in (False, True)}

    def has(self, path: str) -> bool:
        """Returns True for a file of a completed instant, or of one that the timeline no longer has; for a plan of
        compaction or clustering; and for files that are of no instant."""
        if (instant := instant_of(path)) is not None:
            return self._of[instant.of_metadata].has(instant)
        of_metadata = path.startswith(f"{METADATA}/")
        if not of_metadata and path.startswith(f"{HOME}/"):
            return True
        name = path.rpartition("/")[2]
        if found := _BASE.fullmatch(name):
            return self._of[of_metadata].is_valid(found["time"])
        if found := _DATA_OF_LOGS.fullmatch(name):
            return self._of[of_metadata].is_valid_log(found["time"])
        return True


class _Timeline:
    def __init__(self, found: list[tuple[str, Instant]]) -> None:
        ended = [each for _, each in found if each.state == COMPLETED]
        self._savepoints = {each.time for each in ended if each.is_savepoint}
        self._done = {each.time for each in ended if not each.is_savepoint}
        begun = {each.time for _, each in found if each.action in _WRITES} - self._savepoints
        self._first = min(begun, default="")  # cleans and rollbacks are archived on their own
        self._names_logs = any(each.end for each in ended)  # version 6 names them by their base file's instant

    def has(self, instant: Instant) -> bool:
        done = self._savepoints if instant.is_savepoint else self._done
        return instant.time in done or (instant.action in _PLANS and instant.state == REQUESTED)

    def is_valid(self, time: str) -> bool:
        return time in self._done or not self._first or time < self._first

    def is_valid_log(self, time: str) -> bool:
        return not self._names_logs or self.is_valid(time)


# ---- publication -----------------------------------------------------------------------------------------------------

Rank = tuple[bool, int, str, str]
_ORDER = {"m": "1", "_": "2"}  # of the history: its files, their list, the list's version; by first letters


def rank(path: str) -> Rank | None:
    """Returns the order in which a file is published after all data, among those of its table: the timeline of the
    table of metadata, then the properties, then the timeline, each instant when all before it are there. None for data.
    path: any that ends as in its table."""
    own = f"/{path}"
    if f"/{HOME}/" not in own:
        return None
    of_metadata = f"/{METADATA}/" in own
    if (instant := instant_of(path)) is not None:
        time = instant.end or instant.time if instant.state == COMPLETED else ""
        return (not of_metadata, 1 + (instant.state == COMPLETED), time, path)
    if found := _HISTORY.fullmatch(path):
        return (not of_metadata, 3, _ORDER.get(found["name"][0], "0"), path)
    if own.endswith((f"/{PROPERTIES}", f"/{BACKUP}")):
        return (not of_metadata, 0, "", path)
    return None


Move = Callable[[str], str]

# ---- contents --------------------------------------------------------------------------------------------------------


def properties(data: bytes) -> dict[str, str]:
    """Returns the values of a file of properties, as far as they are plain: names of tables and databases, numbers."""
    found = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines() if line[:1] not in ("#", "!"))
    return {key.strip(): value.strip() for key, _, value in found}


def names_places(path: str) -> bool:
    """Returns True for a file that may name the table's location or database, or sizes of such a file."""
    if (instant := instant_of(path)) is not None:
        return instant.action in _NAMES_PLACES
    return path.endswith((PROPERTIES, BACKUP)) or _HISTORY.fullmatch(path) is not None


def translated(
    path: str, data: bytes, move: Move, database: Callable[[str], str], size_of: Callable[[str], int | None]
) -> bytes:
    """Returns a file of the timeline, or the properties, as it must be on the target. move, database: return a path,
    and a database's name, as they are there; size_of: returns the size of a file there, by its path below `path`'s
    directory, None if it does not exist. A damaged file, and one that names none of them, is unchanged."""
    if path.endswith((PROPERTIES, BACKUP)):
        return _renamed(data, database)
    if (history := _HISTORY.fullmatch(path)) is None:
        return _moved_plan(path, data, move) if names_places(path) else data
    if history["name"].startswith("manifest"):
        return _with_sizes(data, size_of)
    return _moved_history(path, data, move) if history["name"].endswith(".parquet") else data


def _with_sizes(data: bytes, size_of: Callable[[str], int | None]) -> bytes:
    """Returns the list of the history's files with their sizes on the target."""
    try:
        found: Any = msgspec.json.decode(data)
        sizes = {each["fileName"]: size_of(each["fileName"]) for each in found["files"]}
        if all(sizes[each["fileName"]] in (None, each["fileLen"]) for each in found["files"]):
            return data
        for each in found["files"]:
            each["fileLen"] = sizes[each["fileName"]] or each["fileLen"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return data
    return msgspec.json.format(msgspec.json.encode(found), indent=2)


def _moved_history(path: str, data: bytes, move: Move) -> bytes:
    """Returns a file of archived instants, whose columns have the files of each."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        rows = file.read()
    except pa.ArrowException:
        return data
    columns = {name: rows[name].to_pylist() for name in ("metadata", "plan") if name in rows.column_names}
    moved = {name: [value and _moved_plan(path, value, move) for value in some] for name, some in columns.items()}
    if moved == columns:
        return data
    for name, values in moved.items():
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(index), pa.array(values, rows.schema.field(index).type))
    codec, stream = file.metadata.row_group(0).column(0).compression, io.BytesIO()
    pq.write_table(
        rows,
        stream,
        compression=codec if codec != "UNCOMPRESSED" else "none",
        store_schema=False,
        use_dictionary=False,
        write_statistics=False,
    )
    return stream.getvalue()


def _moved_plan(path: str, data: bytes, move: Move) -> bytes:
    if not data.startswith(b"Obj\x01"):
        return data
    changed = False

    def moved(value: Any) -> Any:
        nonlocal changed
        match value:
            case str():
                now = move(value) if "/" in value else value
                changed = changed or now != value
                return now
            case dict():
                return {moved(key): moved(each) for key, each in value.items()}
            case list():
                return [moved(each) for each in value]
        return value

    def fix(record: dict[str, Any]) -> None:
        new = {key: moved(each) for key, each in record.items()}
        record.clear()
        record.update(new)

    try:
        content = AvroRecords(data, path).written(fix)
    except FormatError:
        return data
    return content if changed else data


def _renamed(data: bytes, database: Callable[[str], str]) -> bytes:
    """Returns the properties with another name of the database, and the checksum of both names
    (HoodieTableConfig.generateChecksum)."""
    known = properties(data)
    name = known.get("hoodie.database.name", "")
    if not name or (now := database(name)) == name:
        return data
    digest = zlib.crc32(f"{now}.{known.get('hoodie.table.name', '')}".encode())
    wanted = {b"hoodie.database.name": now.encode(), b"hoodie.table.checksum": str(digest).encode()}
    lines = data.splitlines(keepends=True)
    for index, line in enumerate(lines):
        key, _, value = line.partition(b"=")
        if key.strip() in wanted:
            end = value[len(value.rstrip(b"\r\n")) :]
            lines[index] = key + b"=" + wanted[key.strip()] + end
    return b"".join(lines)


def written_files(path: str, data: bytes) -> set[str]:
    """Returns the files that a completed commit has written, by their paths in the table. Raises FormatError."""
    return {each["path"] for _, each in _of_partitions(path, data, "partitionToWriteStats", dict) if each.get("path")}


def replaced_groups(path: str, data: bytes) -> set[tuple[str, str]]:
    """Returns the file groups that a completed commit has replaced: their partitions and ids. Raises FormatError."""
    return set(_of_partitions(path, data, "partitionToReplaceFileIds", str))


def _of_partitions(path: str, data: bytes, field: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the values of a field of a commit, with their partitions."""
    try:
        record: Any = next(AvroRecords(data, path).records(), {}) if data[:1] == b"O" else msgspec.json.decode(data)
        for partition, values in (record.get(field) or {}).items():
            for each in values:
                if not isinstance(each, kind):
                    raise TypeError(f"{field} has {each!r}")
                yield partition, each
    except (msgspec.DecodeError, AttributeError, LookupError, TypeError) as error:
        raise FormatError(f"{path} is no commit of a Hudi table: {error}", hint="check the table with Hudi") from error


def equal(path: str, one: bytes, other: bytes) -> bool:
    """Returns True if two files say the same: Parquet of two releases of Arrow may differ."""
    if one == other or not path.endswith(".parquet"):
        return one == other
    try:
        return bool(pq.read_table(io.BytesIO(one)).equals(pq.read_table(io.BytesIO(other))))
    except pa.ArrowException:
        return False
