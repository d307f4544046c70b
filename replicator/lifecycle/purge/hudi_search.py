"""Search of a Hudi table for the ids: every base and log file that is below its location, its timeline, and the indices
in its table of metadata, by Arrow and `hudi_blocks`. Changes nothing, and needs no Hudi in Spark.

A row that was updated or deleted is still in the files of older slices, and in base files below a log file. So the
files are searched, not the rows of readers. The indices have bounds of columns of each file, also of files that are
gone, and keys of records; log files have the keys of deleted rows.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError
from cmroot.keep.journal import files_at
from cmroot.store import hudi
from cmroot.store.blocks import AvroRecords
from cmroot.store.checksum import checksum_at
from cmroot.store.hudi_blocks import hfile_records, log_records
from cmroot.store.listing import FileState
from cmroot.store.place import join, located, name_of, normal, parent
from replicator.core.formats.hudi_table import BOOTSTRAPPED, NEWER
from replicator.lifecycle.purge.delta_search import location_of
from replicator.lifecycle.purge.lake_search import (
    Column,
    Finder,
    Held,
    SearchTask,
    Unsearchable,
    arrow_type,
    run_search_task,
    task_for,
    words,
)
from replicator.lifecycle.purge.matching import struct_fields
from replicator.lifecycle.purge.options import data_columns
from replicator.metastore.client import MetastoreReader

FILES_INDEX = "files"  # names and sizes of files
_LOG = "LOG"
_TYPES = {"bigint": "long", "smallint": "short", "tinyint": "byte"}
_OWN = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path")
_HIDDEN = ("_hoodie_file_name", "_hoodie_operation", "_hoodie_is_deleted")
_KEY = "_hoodie_record_key"
_SHORT = 6  # ids of fewer characters are not searched in timelines
_CHANGES = ("before", "after")  # of a file of changes (`.cdc`)
_FILE = re.compile(r"\.?(?P<id>.+?)_(?:\d+-\d+-\d+_)?(?P<time>\d+)\.(?:log\.\d+|\w+).*")


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HudiLog:
    """A table as its timeline and a listing show it. pending: times of instants that are not completed, with the time
    of their last change. heads: the files of the newest slices, with their sizes. held: files with ids of completed
    instants; unnamed: those of others. indexes: files of indices with values of ids, by path, with the index. texts:
    files of the timeline with an id."""

    location: str
    properties: Mapping[str, str]
    files: Mapping[str, FileState]
    pending: Mapping[str, float]
    savepoints: Collection[str]
    heads: Mapping[str, int]
    held: Mapping[str, Held]
    unnamed: Mapping[str, Held]
    indexes: Mapping[str, str]
    texts: Collection[str]

    @property
    def is_merged(self) -> bool:
        """True for a table that is merged on read."""
        return self.properties.get("hoodie.table.type") == "MERGE_ON_READ"

    @property
    def all_indexes(self) -> dict[str, list[str]]:
        """The files of each index that has values of rows."""
        found, top = dict[str, list[str]](), f"{join(self.location, hudi.METADATA)}/"
        for path in self.files:
            name, below, _ = path.removeprefix(top).partition("/")
            if path.startswith(top) and below and name not in (hudi.HOME, FILES_INDEX):
                found.setdefault(name, []).append(path)
        return found


def _pending(paths: Iterable[str], files: Mapping[str, FileState]) -> dict[str, float]:
    """Returns the instants of the table that have begun and not ended, with the time of their last change. Plans of
    compaction and clustering that are not being executed do not count."""
    found, done = dict[str, float](), set[str]()
    for path in paths:
        instant = hudi.instant_of(path)
        if instant is None or instant.of_metadata or instant.is_savepoint:
            continue
        if instant.state == hudi.COMPLETED:
            done.add(instant.time)
        elif instant.state == hudi.INFLIGHT or not hudi.is_plan(instant):
            changed = files[path].mtime_ns / 1e9
            found[instant.time] = max(changed, found.get(instant.time, 0))
    return {time: changed for time, changed in found.items() if time not in done}


def pending_at(log: HudiLog) -> dict[str, float]:
    """Returns the instants of the table that are in flight now; see `_pending`."""
    version = int(log.properties["hoodie.table.version"])
    directory = join(log.location, hudi.TIMELINES[0] if version >= hudi.FIRST_WITH_TIMELINE else hudi.HOME)
    files = {join(directory, name): state for name, state in files_at(directory)}
    return _pending(files, files)


def _heads(data: Iterable[str], files: Mapping[str, FileState]) -> dict[str, int]:
    """Returns the files of the newest slice of each file group."""
    groups = dict[tuple[str, str], list[tuple[str, bool, str]]]()
    for path in data:
        name = name_of(path)
        if found := _FILE.fullmatch(name):
            groups.setdefault((parent(path), found["id"]), []).append((found["time"], name[0] == ".", path))
    heads = dict[str, int]()
    for several in groups.values():
        base = max((time for time, is_log, _ in several if not is_log), default="")
        heads |= {path: files[path].size for time, _, path in several if time >= base}
    return heads


# ---- log files -------------------------------------------------------------------------------------------------------


class HudiTask(SearchTask, frozen=True):
    """Files of a Hudi table to search. is_key: the ids are in the keys of records."""

    is_key: bool = False


def run_hudi_task(task: HudiTask) -> list[Held]:
    """Searches base files and log files. May run twice."""
    keys = set(pa.ipc.open_stream(task.keys).read_all()["key"].to_pylist())
    return [
        _searched(path, task, keys)
        if form == _LOG
        else run_search_task(msgspec.structs.replace(task, files=((path, form),)))[0]
        for path, form in task.files
    ]


def _searched(path: str, task: HudiTask, keys: set[Any]) -> Held:
    texts, found, strays = {str(each) for each in keys}, dict[Any, int](), set[str]()
    records = rows = 0
    try:
        with located(path).open_read() as source:
            for key, record in log_records(path, source):
                records += 1
                own = {value for value in _values(record, task) if value in keys}
                if task.is_key and key and not own:
                    own = {each for each in keys if str(each) in parts_of_key(key)}
                rows += bool(own)
                found |= dict.fromkeys(own, 0)
                strays |= set(_strays(record, task.known, texts))
        if not (rows or strays):
            return Held(path, records=records)
        checksum, size = checksum_at(normal(path))
    except FileNotFoundError:
        return Held(path, is_missing=True)
    except (FormatError, OSError, *UNREADABLE) as error:
        return Held(path, why=f"it cannot be read: {getattr(error, 'message', '') or error}")
    why = "; ".join(f"the column {each} of it, which the table does not have, holds ids" for each in sorted(strays))
    return Held(path, rows, tuple(found), checksum, size, why, records=records, is_stray=bool(strays))


def _values(record: Mapping[str, Any], task: SearchTask) -> Iterator[Any]:
    """Yields the values of the column of ids in a row, or in both rows of a change."""
    for row in (record, *(record[each] for each in _CHANGES if isinstance(record.get(each), dict))):
        for path in task.ids:
            value: Any = row
            for name in path if isinstance(path, tuple) else ():
                value = _lower(value).get(name) if isinstance(value, dict) else None
            if value is not None and not isinstance(value, dict | list):
                yield value


def _strays(record: Mapping[str, Any], known: Collection[Column], texts: Collection[str]) -> Iterator[str]:
    tops = {each[0] for each in known if isinstance(each, tuple)}
    for name, value in record.items():
        if not (name.lower() in tops or name in _CHANGES or name in ("op", "ts_ms")) and _has(value, texts):
            yield name


def _has(value: Any, texts: Collection[str]) -> bool:
    """Returns True if a value, or one that is in it, is an id as a text."""
    return any(str(each) in texts for each in _inside(value))


def _names(value: Any, texts: set[str]) -> bool:
    """Returns True if a text in a value, such as a note, names an id. Numbers do not count."""
    return any(isinstance(each, str) and not texts.isdisjoint(words(each)) for each in _inside(value))


def _inside(value: Any) -> Iterator[Any]:
    """Yields a value, or all that are in it; bytes as a text."""
    match value:
        case dict():
            yield from (each for pair in value.items() for part in pair for each in _inside(part))
        case list():
            yield from (each for part in value for each in _inside(part))
        case bytes():
            yield value.decode("utf-8", "replace")
        case _ if value is not None:
            yield value


def _lower(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in row.items()}


def parts_of_key(key: str) -> set[str]:
    """Returns the values that a key of a record may have: `value`, or `column:value,column:value`; a key of a secondary
    index is `value$key`, with an escaped `$`."""
    found = {key}
    for part in re.split(r"(?<!\\)\$", key):
        found.add(part.replace("\\$", "$").replace("\\\\", "\\"))
        found |= {each.partition(":")[2] for each in part.split(",")}
    return found


# ---- one table -------------------------------------------------------------------------------------------------------


@dataclass
class HudiFinder(Finder):
    """The search of one table. read: what files of the timeline and of indices have, by path, size and time."""

    read: dict[tuple[str, int, int], Any] = field(default_factory=dict)

    def runner(self) -> Callable[[Any], list[Held]]:
        return run_hudi_task

    def look(self, metastore: MetastoreReader) -> HudiLog:
        """Lists the table, and searches all of its files. Replaces the gaps. Raises Unsearchable, ObjectNotFound,
        FormatError, LossyIds."""
        self.gaps = []
        location = location_of(metastore.table(self.table.table.db, self.table.table.name))
        try:
            files = {normal(join(location, name)): state for name, state in files_at(location)}
            return self._log(location, files)
        except OSError as error:
            raise Unsearchable(f"its timeline cannot be read: {error}") from error

    def _log(self, location: str, files: Mapping[str, FileState]) -> HudiLog:
        properties = properties_of(location)
        task = self._task(properties)
        top = f"{location}/"
        state = hudi.State(path[len(top) :] for path in files)
        timeline = [path for path in files if hudi.instant_of(path[len(top) :]) is not None]
        named, others = dict[str, str](), dict[str, str]()
        for path in files:
            own = path[len(top) :]
            if files[path].size and not own.startswith(f"{hudi.HOME}/") and (form := _form(name_of(own))):
                (named if state.has(own) and form != _OTHER else others)[path] = form
        found = self.looked_at(named, task)
        there = [each for each in found if not (each.is_missing and each.path not in files)]
        self.name_unread(each for each in there if each.is_missing or (each.why and not each.is_stray))
        held = {each.path: each for each in there if each.rows or each.is_stray}
        unnamed = self.search(others, task)
        savepoints = {
            each.time for path in timeline if (each := hudi.instant_of(path[len(top) :])) and each.is_savepoint
        }
        return HudiLog(
            location,
            properties,
            files,
            _pending(timeline, files),
            savepoints,
            _heads(named, files),
            held,
            unnamed,
            self._indexes(location, files, held),
            [path for path in files if self._in_text(path, path[len(top) :], files[path])],
        )

    def _task(self, properties: Mapping[str, str]) -> HudiTask:
        name, table = ".".join(self.table.field), self.table.table
        if self.table.is_key:
            raise Unsearchable(f"it is partitioned by {name}: drop partitions whose value is an id with Hudi")
        type_ = arrow_type(_TYPES.get(self.table.type, self.table.type))
        if type_ is None:
            raise Unsearchable(f"{name} is a {self.table.type}")
        if self.table.former:
            raise Unsearchable("ids.former is not supported for Hudi tables")
        version, base = properties.get("hoodie.table.version", ""), properties.get("hoodie.bootstrap.base.path", "")
        if not version.isdigit() or int(version) > hudi.NEWEST:
            raise Unsearchable(NEWER.format(version))
        if base:
            raise Unsearchable(BOOTSTRAPPED.format(base))
        values = self.values(type_, "Hudi tables")
        self._keys = _Keys(values)
        parts = {each.partition(":")[0].strip() for each in _listed(properties, "hoodie.table.partition.fields")}
        if name in parts or self.table.field[0] in parts:
            self.gap(f"it is partitioned by {name}: names of directories may be ids, and are not searched")
        known = set[Column]((each,) for each in (*_OWN, *_HIDDEN))
        for column in (*data_columns(table), *table.partition_keys):
            known |= set(_paths((column.name.lower(),), column.type))
        self._is_key = name in _listed(properties, "hoodie.table.recordkey.fields")
        given = task_for((self.table.field,), frozenset(known), values)
        return HudiTask(given.files, given.ids, given.known, given.keys, self._is_key)

    # ---- metadata --------------------------------------------------------------------------------------------------

    def _indexes(self, location: str, files: Mapping[str, FileState], held: Mapping[str, Held]) -> dict[str, str]:
        """Returns the files of indices that have an id, or bounds of a file that has or had one."""
        names, present = {name_of(path) for path in held}, {name_of(path) for path in files}
        top, found = f"{join(location, hudi.METADATA)}/", dict[str, str]()
        for path, about in files.items():
            index = path.removeprefix(top).partition("/")[0]
            last = name_of(path)
            is_data = last.endswith(".hfile") or ".log." in last
            if not path.startswith(top) or index in (hudi.HOME, FILES_INDEX) or not is_data or last.endswith(".crc"):
                continue
            key = path, about.size, about.mtime_ns
            if key not in self.read:
                self.read[key] = self._read_index(path, has_keys=self._is_key or index.startswith("secondary_"))
            is_id, bounds = self.read[key]
            if is_id or any(
                each in names or (may_have and each.endswith(".parquet") and each not in present)
                for each, may_have in bounds.items()
            ):
                found[path] = index
        return found

    def _read_index(self, path: str, *, has_keys: bool) -> tuple[bool, dict[str, bool]]:
        """Returns if a file of an index has an id; and the data files of which it has bounds, with True if these may
        have had an id. has_keys: keys of records have ids, if there are any."""
        column, is_id = ".".join(self.table.field), False
        own, others = dict[str, bool](), set[str]()
        try:
            with located(path).open_read() as source:
                records = hfile_records if path.endswith(".hfile") else log_records
                for key, record in records(path, source):
                    stats = record.get("ColumnStatsMetadata")
                    if not stats:
                        is_id = is_id or (has_keys and self._keys.are_in(parts_of_key(key)))
                        continue
                    low, high = ((stats[side] or {}).get("value") for side in ("minValue", "maxValue"))
                    if low is None and high is None:
                        continue
                    name, of = stats["columnName"] or "", stats["fileName"] or ""
                    if name.lower() == column:
                        is_id = is_id or self._keys.has(low) or self._keys.has(high)
                        own[of] = self._keys.may_have(low, high)
                    else:
                        is_id = is_id or (
                            name == _KEY and any(self._keys.are_in(parts_of_key(str(each))) for each in (low, high))
                        )
                        others.add(of)
        except FileNotFoundError:
            return False, {}
        except (FormatError, OSError, *UNREADABLE) as error:
            self.gap(f"not searched: {path}: {getattr(error, 'message', '') or error}")
            return False, {}
        return is_id, {**dict.fromkeys(others, True), **own}

    def _in_text(self, path: str, own: str, about: FileState) -> bool:
        """Returns True for a file of the timeline, or of its history, with an id."""
        is_history = own.startswith((f"{hudi.HOME}/timeline/history/", f"{hudi.HOME}/archived/"))
        if not about.size or own.endswith(".crc") or not (is_history or hudi.instant_of(own)):
            return False
        key = path, about.size, about.mtime_ns
        if key not in self.read:
            try:
                with located(path).open_stream() as stream:
                    self.read[key] = _names(_decoded(path, stream.read()), self._keys.long)
            except FileNotFoundError:
                return False  # archived concurrently
            except (FormatError, OSError, pa.ArrowException, *UNREADABLE) as error:
                self.gap(f"not searched: {path}: it cannot be read: {getattr(error, 'message', '') or error}")
                self.read[key] = False
        return bool(self.read[key])


def _decoded(path: str, data: bytes) -> Any:
    """Returns the values in a file of a timeline."""
    if data[:4] == b"PAR1":
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        return [_decoded(path, each) if isinstance(each, bytes) else each for row in rows for each in row.values()]
    if data[:4] == b"Obj\x01":
        return list(AvroRecords(data, path).records())
    if data[:1] == b"{":
        return msgspec.json.decode(data)
    if data[:6] == b"#HUDI#":
        return [record for _, record in log_records(path, pa.BufferReader(data))]
    return data


_OTHER = "another format"


def _form(name: str) -> str:
    """Returns the format of a data file; "" for a file without rows."""
    if hudi.is_log(name):
        return _LOG
    if name.startswith((".", "_")) or name.endswith(".crc"):
        return ""
    return "PARQUET" if name.endswith(".parquet") else _OTHER


def _paths(path: tuple[str, ...], type_: str) -> Iterator[tuple[str, ...]]:
    """Yields a column, or the fields of a struct."""
    text = type_.strip()
    if text.lower().startswith("struct<"):
        for name, below in struct_fields(text[len("struct<") : -1]):
            yield from _paths((*path, name.strip("`").lower()), below)
    else:
        yield path


def properties_of(location: str) -> dict[str, str]:
    """Returns the properties of the table at a location. Raises Unsearchable if it has none; OSError."""
    for path in (hudi.PROPERTIES, hudi.BACKUP):
        try:
            return hudi.properties(located(join(location, path)).read_bytes())
        except FileNotFoundError:
            continue
    raise Unsearchable(f"it has no {hudi.PROPERTIES}")


def _listed(properties: Mapping[str, str], key: str) -> set[str]:
    return {each.strip().lower() for each in properties.get(key, "").split(",")}


class _Keys:
    """The ids, as values and as texts."""

    def __init__(self, values: pa.Array) -> None:
        self._values = sorted(values.to_pylist())
        self._all = set(self._values)

    @cached_property
    def texts(self) -> set[str]:
        return {str(each) for each in self._values}

    @cached_property
    def long(self) -> set[str]:
        """The texts that are not numbers or words of any timeline."""
        return {each for each in self.texts if len(each) >= _SHORT}

    def are_in(self, parts: set[str]) -> bool:
        return not self.texts.isdisjoint(parts)

    def has(self, value: Any) -> bool:
        return value in self._all or str(value) in self.texts

    def may_have(self, low: Any, high: Any) -> bool:
        """Returns True if values between these bounds may be ids."""
        try:
            index = bisect_left(self._values, low)
            return index < len(self._values) and bool(self._values[index] <= high)
        except TypeError:
            return True
