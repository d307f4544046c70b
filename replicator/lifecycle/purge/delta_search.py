"""Search of a Delta table for the ids: every file that any version names, or that is below the table, and the log's own
statistics and conditions, by Arrow. Changes nothing, and needs no Delta in Spark.

A row that a deletion vector hides, or that an older version has, is still in its file. So the files are searched, not
the rows of readers: those of the last version, removed ones that are not vacuumed, and files of changes. The log has
bounds of columns for each file, also of files that are gone, and the conditions of commands as their users wrote them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError, UnknownPlace
from cmroot.keep.journal import files_at
from cmroot.store import delta
from cmroot.store.delta import LOG
from cmroot.store.listing import FileState
from cmroot.store.place import join, located, name_of, normal
from replicator.core.formats import format_of
from replicator.core.formats.delta_table import COORDINATED, DeltaTable
from replicator.core.grouping import batched
from replicator.core.model import Table
from replicator.errors import ObjectNotFound
from replicator.lifecycle.purge.lake_search import (
    Column,
    Finder,
    Held,
    SearchTask,
    Unsearchable,
    arrow_type,
    task_for,
    words,
)
from replicator.metastore.client import MetastoreReader

_VERSION = re.compile(r"(\d{20})\.")
_WITHOUT_VALUES = frozenset({delta.LAST_CHECKPOINT, "_last_vacuum_info"})
_CONDITIONS = ("predicate", "matchedPredicates", "notMatchedPredicates", "notMatchedBySourcePredicates", "userMetadata")
_HIDDEN_COLUMNS = (
    "delta.rowTracking.materializedRowIdColumnName",
    "delta.rowTracking.materializedRowCommitVersionColumnName",
)
_CHANGES = ("_change_type", "_commit_version", "_commit_timestamp")
_CLEANUP = "delta.enableExpiredLogCleanup"
_MARKS = ("_SUCCESS", "_committed_", "_started_")


# ---- the log ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """The bounds that a file of the log has for one data file. low, high: bounds of the column of ids; None if it has
    none of it, but of other columns."""

    path: str
    low: Any = None
    high: Any = None


class LogFile(msgspec.Struct, frozen=True):
    """A file of the log. version: -1 for a sidecar; size, mtime_ns: of the file; bounds: of the data files with
    statistics; named: the data files that it names; partitions: names of partition columns, in lower case; texts: the
    conditions of commands; why: the reason why it was not read, or ""."""

    name: str
    version: int
    size: int
    mtime_ns: int
    bounds: tuple[Bounds, ...] = ()
    named: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Log:
    """A table's log. live: the last version's files, by path, with the rows that deletion vectors hide. files: all that
    is below the location, by path. logs: the files of the log, by name. held: files with ids that the log names;
    unnamed: those that it does not name. dirty: names of files of the log with values of ids."""

    location: str
    version: int
    configuration: Mapping[str, str]
    live: Mapping[str, int]
    files: Mapping[str, FileState]
    logs: Mapping[str, LogFile]
    held: Mapping[str, Held]
    unnamed: Mapping[str, Held]
    dirty: Mapping[str, LogFile]

    @property
    def shown(self) -> set[str]:
        """The files with ids that the last version names."""
        return self.live.keys() & self.held.keys()

    @property
    def below(self) -> dict[str, Held]:
        """The files with ids below the location. All others are of other tables, as those of shallow clones are."""
        return {path: each for path, each in self.held.items() if path in self.files}

    @property
    def is_cleaned(self) -> bool:
        """True if Delta may remove old files of the log."""
        return self.configuration.get(_CLEANUP, "true").lower() != "false"

    def path_of(self, name: str) -> str:
        """Returns the path of a file of the log."""
        return join(self.location, f"{LOG}/{name}")


def _place(location: str, path: str) -> str:
    """Returns the place of a path of an action."""
    text = unquote(path)
    return normal(text if delta.is_whole(text) else join(location, text))


def _walked(value: Any, path: Sequence[str]) -> Any:
    """Returns a field below a value, by its path in lower case; None without it."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = next((each for key, each in value.items() if key.lower() == name), None)
    return value


_STATS = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)


class LogReader:
    """Reads the files of a log. path: of the ids in statistics."""

    def __init__(self, location: str, path: Sequence[str]) -> None:
        self._location, self._path = location, path

    def read(self, name: str, state: FileState) -> LogFile:
        found, last = _VERSION.search(name), name_of(name)
        version = int(found[1]) if found and not name.startswith(delta.SIDECARS) else -1
        bare = LogFile(name, version, state.size, state.mtime_ns)
        if last in _WITHOUT_VALUES or not state.size:
            return bare
        file = located(join(self._location, f"{LOG}/{name}"))
        try:
            if ".parquet" in last and not last.endswith(".crc"):
                with file.open_read() as source:
                    return self._of(bare, self._rows(pq.ParquetFile(source)))
            with file.open_stream() as stream:
                data = stream.read()
            if data[:3] == b"crc":
                return bare  # Hadoop's checksums
            if last.endswith(".crc"):
                files = msgspec.json.decode(data).get("allFiles") or ()
                return self._of(bare, ({"add": each} for each in files))
            if ".json" in last:
                return self._of(bare, (msgspec.json.decode(line) for line in data.splitlines() if line.strip()))
        except FileNotFoundError:
            return bare  # cleaned concurrently
        except (*UNREADABLE, pa.ArrowException, KeyError, TypeError, ValueError, FormatError) as error:
            return msgspec.structs.replace(bare, why=f"it cannot be read: {error}")
        return msgspec.structs.replace(bare, why="it is no file of a log that is known")

    def _of(self, bare: LogFile, actions: Iterable[delta.Action]) -> LogFile:
        bounds, named, partitions, texts = list[Bounds](), set[str](), set[str](), list[str]()
        for action in actions:
            for kind in ("add", "remove", "cdc"):
                if about := action.get(kind):
                    place = _place(self._location, about["path"])
                    named.add(place)
                    if found := self._bounds(place, about):
                        bounds.append(found)
            if about := action.get("metaData"):
                partitions |= {name.lower() for name in about.get("partitionColumns") or ()}
            if about := action.get("commitInfo"):
                given = dict(about.get("operationParameters") or {}) | {"userMetadata": about.get("userMetadata")}
                texts += [str(given[key]) for key in _CONDITIONS if given.get(key)]
        return msgspec.structs.replace(
            bare, bounds=tuple(bounds), named=frozenset(named), partitions=frozenset(partitions), texts=tuple(texts)
        )

    def _bounds(self, place: str, about: Mapping[str, Any]) -> Bounds | None:
        """Returns the bounds in the statistics of a file; None if they have no values."""
        if text := about.get("stats"):
            stats = _STATS.decode(text)
            low, high = stats.get("minValues") or {}, stats.get("maxValues") or {}
            return Bounds(place, _walked(low, self._path), _walked(high, self._path)) if low or high else None
        return Bounds(place, *about["parsed"]) if "parsed" in about else None

    def _rows(self, file: pq.ParquetFile) -> Iterator[delta.Action]:
        """Yields what a checkpoint says about files; `parsed`: its bounds, if they are in a struct alone."""
        there = {each.name: each.type for each in file.schema_arrow if each.name in ("add", "remove", "metaData")}
        for kind, type_ in there.items():
            names = [each.name for each in type_ if each.name in ("path", "stats", "partitionColumns")]
            has_struct = any(each.name == "stats_parsed" for each in type_)
            sides = [_below(type_, ("stats_parsed", side, *self._path)) for side in ("minValues", "maxValues")]
            columns = [*names, *(["stats_parsed"] if has_struct else [])]
            for batch in file.iter_batches(columns=[f"{kind}.{each}" for each in columns]):
                column = batch.column(kind)
                values = {name: pc.struct_field(column, name).to_pylist() for name in names}
                bounds = [pc.struct_field(column, side).to_pylist() if side else None for side in sides]
                for index in range(len(batch)):
                    row = {name: several[index] for name, several in values.items()}
                    if has_struct and row.get("path"):
                        row["parsed"] = [each[index] if each else None for each in bounds]
                    if row.get("path") or row.get("partitionColumns"):
                        yield {kind: row}


def _below(type_: pa.DataType, path: Sequence[str]) -> list[str]:
    """Returns the path of a field of a struct as it is written, by that in any case; [] without it."""
    found = list[str]()
    for name in path:
        known = [each for each in type_ if each.name.lower() == name.lower()] if pa.types.is_struct(type_) else []
        if not known:
            return []
        found.append(known[0].name)
        type_ = known[0].type
    return found


# ---- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The columns of a table. known: in its files, by path, and by number if files are read by it; path: of the ids,
    there; type: of the ids, as the schema has it; number: of the ids."""

    known: frozenset[Column]
    path: tuple[str, ...]
    type: str
    number: int | None = None


def columns_of(metadata: Mapping[str, Any], column: Sequence[str]) -> Columns | None:
    """Returns a table's columns; column: the path of the ids, in lower case. None if the schema does not have it."""
    configuration = dict(metadata.get("configuration") or {})
    is_by_number = configuration.get("delta.columnMapping.mode") == "id"
    known, found = set[Column](), list[tuple[tuple[str, ...], Any, dict[str, Any]]]()

    def walk(type_: Any, path: tuple[str, ...], names: tuple[str, ...] | None, about: dict[str, Any]) -> None:
        if is_by_number and (number := about.get("delta.columnMapping.id")) is not None:
            known.add(int(number))
        if names == tuple(column):
            found.append((path, type_, about))
        match type_:
            case {"type": "struct", "fields": fields}:
                for each in fields:
                    own = each.get("metadata") or {}
                    name = own.get("delta.columnMapping.physicalName", each["name"]).lower()
                    walk(each["type"], (*path, name), None if names is None else (*names, each["name"].lower()), own)
            case {"type": "array", "elementType": element}:
                walk(element, (*path, "element"), None, {})
            case {"type": "map", "keyType": key, "valueType": value}:
                walk(key, (*path, "key"), None, {})
                walk(value, (*path, "value"), None, {})
            case _:
                known.add(path)

    walk(msgspec.json.decode(metadata["schemaString"]), (), (), {})
    for name in (*_CHANGES, *(configuration[key] for key in _HIDDEN_COLUMNS if configuration.get(key))):
        known.add((name.lower(),))
    if not found:
        return None
    path, type_, about = found[0]
    is_padded = str(about.get("__CHAR_VARCHAR_TYPE_STRING", "")).startswith("char")
    number = int(about["delta.columnMapping.id"]) if is_by_number else None
    called = type_ if isinstance(type_, str) else str(type_.get("type"))
    return Columns(frozenset(known), path, "char" if is_padded else called, number)


# ---- one table -------------------------------------------------------------------------------------------------------


def location_of(table: Table) -> str:
    """Returns a table's location. Raises Unsearchable for one without."""
    place = table.location or (table.storage.serde.parameters.get("path") if table.storage else None)
    if not place:
        raise Unsearchable("its location is not in this metastore")
    return normal(place)


def state_of(location: str) -> tuple[delta.State, dict[str, FileState]]:
    """Returns the last version of the table at a location, and all files below it, by path. Raises Unsearchable for one
    whose newest commits need not be in the log; FormatError, OSError for a log that cannot be read."""
    files = {normal(join(location, name)): state for name, state in files_at(location)}
    top = f"{join(location, LOG)}/"
    names = [path[len(top) :] for path in files if path.startswith(top)]
    state = delta.last_state(names, lambda name: located(top + name).open_stream())
    if delta.is_coordinated({"protocol": state.protocol, "metaData": state.metadata}):
        raise Unsearchable(COORDINATED)
    return state, files


def files_at_version(location: str) -> set[str]:
    """Returns the places of the files that the last version of a table names. Raises what `state_of` does."""
    return {_place(location, add["path"]) for add in state_of(location)[0].adds}


def shown_by(metastore: MetastoreReader, own: str, paths: Collection[str]) -> str:
    """Returns which other Delta table of the metastore shows files, as a shallow clone does; "" if none does. own: the
    table ("db.table") that has the files."""
    for db in sorted(metastore.database_names()) if paths else ():
        with suppress(ObjectNotFound):  # dropped concurrently
            for names in batched(metastore.table_names(db), 1000):
                for table in metastore.tables(db, names, {}):
                    name = f"{table.db}.{table.name}"
                    if name == own or not isinstance(format_of(table), DeltaTable):
                        continue
                    with suppress(Unsearchable, FormatError, UnknownPlace, OSError):
                        if not files_at_version(location_of(table)).isdisjoint(paths):
                            return name
    return ""


def described_by_log(table: Table) -> tuple[str, dict[str, str]]:
    """Returns a table's schema, in Spark's JSON, and its properties. Raises what `state_of` does."""
    metadata = state_of(location_of(table))[0].metadata
    return str(metadata["schemaString"]), dict(metadata.get("configuration") or {})


@dataclass
class DeltaFinder(Finder):
    """The search of one table. read: files of the log, by name, size and time."""

    read: dict[tuple[str, int, int], LogFile] = field(default_factory=dict)

    def look(self, metastore: MetastoreReader) -> Log:
        """Reads the table's present log and searches all files. Replaces the gaps. Raises Unsearchable, ObjectNotFound,
        FormatError, LossyIds."""
        self.gaps = []
        location = location_of(metastore.table(self.table.table.db, self.table.table.name))
        try:
            state, files = state_of(location)
            return self._log(location, state, files)
        except UnknownPlace as error:
            raise Unsearchable(f"its log names {error.message}") from error
        except OSError as error:
            raise Unsearchable(f"its log cannot be read: {error}") from error

    def _log(self, location: str, state: delta.State, files: Mapping[str, FileState]) -> Log:
        columns, name = columns_of(state.metadata, self.table.field), ".".join(self.table.field)
        type_ = arrow_type(columns.type) if columns else None
        if columns is None or type_ is None:
            raise Unsearchable(f"{name} is {f'a {columns.type}' if columns else 'not in its schema'}")
        values = self.values(type_, "Delta tables")
        ids: tuple[Column, ...] = (columns.path,) if columns.number is None else (columns.path, columns.number)
        task, keys = task_for(ids, columns.known, values), Keys(values)
        top = f"{join(location, LOG)}/"
        reader, logs = LogReader(location, columns.path), dict[str, LogFile]()
        for path, about in files.items():
            if path.startswith(top):
                key = path[len(top) :], about.size, about.mtime_ns
                self.read[key] = logs[key[0]] = self.read.get(key) or reader.read(key[0], about)
        live: dict[str, int] = {}
        for add in state.adds:
            vector = add.get("deletionVector") or {}
            live[_place(location, add["path"])] = int(vector.get("cardinality") or 0)
        held, gone = self._held(location, live, files, logs, task)
        unnamed = self._unnamed(
            location, files, {*live, *(path for each in logs.values() for path in each.named)}, task
        )
        partitions = {each for log in logs.values() for each in log.partitions}
        partitions |= {each.lower() for each in state.metadata.get("partitionColumns") or ()}
        if self.table.field[0] in partitions:
            self.gap(f"it is or was partitioned by {name}: names of directories may be ids, and are not searched")
        dirty = {
            log.name: log
            for log in logs.values()
            if any(each.path in held or (each.path in gone and keys.may_have(each)) for each in log.bounds)
            or any(map(keys.is_in, log.texts))
        }
        for log in logs.values():
            if log.why:
                self.gap(f"not searched: {top}{log.name}: {log.why}")
        configuration = dict(state.metadata.get("configuration") or {})
        return Log(location, state.version, configuration, live, files, logs, held, unnamed, dirty)

    def _held(
        self,
        location: str,
        live: Mapping[str, int],
        files: Mapping[str, FileState],
        logs: Mapping[str, LogFile],
        task: SearchTask,
    ) -> tuple[dict[str, Held], set[str]]:
        """Returns the files with ids that the log names, and those that do not exist any more."""
        named = {*live, *(path for each in logs.values() for path in each.named)}
        gone = {path for path in named if path.startswith(f"{location}/") and not (path in files or path in live)}
        found = self.looked_at(dict.fromkeys(sorted(named - gone), "PARQUET"), task)
        gone |= {each.path for each in found if each.is_missing and each.path not in live}
        there = [each for each in found if each.path not in gone]
        self.name_unread(each for each in there if each.is_missing or (each.why and not each.is_stray))
        return {each.path: each for each in there if each.rows or each.is_stray}, gone

    def _unnamed(
        self, location: str, files: Mapping[str, FileState], named: Collection[str], task: SearchTask
    ) -> dict[str, Held]:
        """Searches files below the location that the log does not name: of writers that have not committed, of failed
        ones, and of versions that are not in the log any more."""
        others, log = dict[str, str](), f"{join(location, LOG)}/"
        for path, state in files.items():
            last = name_of(path)
            is_other = path.startswith(log) or last.endswith(".crc") or last.startswith(_MARKS)
            is_other = is_other or (last.startswith("deletion_vector_") and last.endswith(".bin"))
            if not (is_other or path in named or not state.size or "/_symlink_format_manifest/" in path):
                others[path] = "PARQUET" if last.endswith(".parquet") else "another format"
        return self.search(others, task)


class Keys:
    """The ids, as they may be in a log."""

    def __init__(self, values: pa.Array) -> None:
        self._type, self._values = values.type, sorted(values.to_pylist())
        self._texts = {str(each) for each in self._values}

    def may_have(self, bounds: Bounds) -> bool:
        """Returns True if a file with these bounds may have had an id. Bounds of long texts are truncated, so that the
        values are between them."""
        if bounds.low is None or bounds.high is None:
            return True
        try:
            index = bisect_left(self._values, self._value(bounds.low))
            return index < len(self._values) and bool(self._values[index] <= self._value(bounds.high))
        except (TypeError, ValueError, ArithmeticError):
            return True

    def is_in(self, text: str) -> bool:
        """Returns True if a condition names an id."""
        return not self._texts.isdisjoint(words(re.sub(r"#\d+L?", "", text)) | words(text))

    def _value(self, given: Any) -> Any:
        if pa.types.is_date(self._type):
            return given if isinstance(given, date) else date.fromisoformat(given)
        return Decimal(str(given)) if pa.types.is_decimal(self._type) else given
