"""Trees: the files of a table in a format whose metadata file leads to all others, as Iceberg's does.

Captures follow the names in these files instead of listing the table's directory: they record the files of one commit,
whatever others write there. Files of a tree never change: each is read once, on the engine, and what it names is
remembered by its checksum. After a commit only what it added is read; if it dropped files that lead on, all names are
followed, and files that none of them reaches are removed. A table whose metadata file is missing, or whose tree cannot
be followed, is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Literal

import msgspec
import pyarrow as pa

from cmroot.errors import NotWritable, UnknownPlace
from cmroot.keep.content import Kept, locate
from cmroot.keep.keepers import Keeper
from cmroot.keep.versions import open_version
from cmroot.store.listing import DirectoryState, directory_state, file_state, full_identity
from cmroot.store.place import Place, is_local, join, located, parent, relative
from replicator.captures.inventory import FILE, DataObject, KnownFile
from replicator.captures.manifest import Manifest
from replicator.captures.object_listing import REQUESTS, ROWS, Rows, is_kept_by, is_same_entry
from replicator.captures.recording import Recording
from replicator.core.formats import FORMATS
from replicator.core.formats.interface import NamedFiles, TableFormat
from replicator.core.grouping import batched
from replicator.core.runtime import Runtime

TABLES = 100  # walked at the same time
FILES = 200  # files of a task
NAMES = 50_000  # names in an outcome at which a task leaves its other files to another, to limit the driver's memory

# ---- what files name -------------------------------------------------------------------------------------------------


def log_files(
    manifest: Manifest, db: str, name: str, directory: str, own: str
) -> list[tuple[str, KnownFile, str | None]]:
    """Returns (path, state, problem; None: unknown) of a table's files that may have a problem, and of `own`.
    directory "": only of `own`."""
    bounds = (f"{directory}/", f"{directory}/\U0010ffff") if directory else (own, own)
    query = (
        f"SELECT {FILE}, l.problem"
        " FROM tables t JOIN files f ON f.table_id = t.id AND f.partition_id = 0 AND f.path BETWEEN ? AND ?"
        " LEFT JOIN log_files l ON l.checksum = f.checksum AND l.location = t.location"
        " WHERE t.db = ? AND t.name = ? AND (l.problem IS NULL OR l.problem <> '' OR f.path = ?)"
    )
    rows = manifest.select(query, *bounds, db, name, own)
    return [(row[0], KnownFile(*row[:7]), row[7]) for row in rows]


def remember_log_file(manifest: Manifest, checksum: str, location: str, problem: str, named: NamedFiles) -> None:
    """Notes that a file was examined, why its table is left out, and the files that it names."""
    manifest.change("INSERT OR REPLACE INTO log_files VALUES (?, ?, ?)", (checksum, location, problem))
    rows = ((location, checksum, *each) for each in named)
    manifest.change("INSERT OR IGNORE INTO tree VALUES (?, ?, ?, ?, ?)", *rows)


def openings(place: str, file: KnownFile, root: str) -> Iterator[Callable[[], BinaryIO]]:
    """Yields the ways to read a captured file: from the `$cmroot` at `root`, from its place, as a version."""
    assert file.checksum is not None and file.size is not None
    kept = locate(root, file.checksum, file.size)
    yield lambda: Place(kept).open_read()
    yield lambda: located(place).open_read()
    if version := file.version:
        yield lambda: open_version(place, version, file.size)


# ---- reading, on an engine -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WantedFile:
    """A file to keep and to examine. known: its entry."""

    path: str
    known: KnownFile | None
    keep: bool
    examine: bool


@dataclass(frozen=True)
class TreePart:
    """Files of a table. top: the path of its metadata file."""

    obj: DataObject
    format: str
    top: str
    keeper: Keeper
    files: Sequence[WantedFile]


@dataclass(frozen=True)
class TreeTask:
    """Files of some tables. root: the `$cmroot`."""

    parts: Sequence[TreePart]
    root: str


@dataclass
class TreeRead:
    """The outcome of a part. is_there: its metadata file exists; rows: of files that were kept; examined: (path,
    checksum, problem, named); missing: paths; failed: why a file cannot be read; is_postponed: files were left to
    another task; directory: of the metadata file, if it was read."""

    obj: DataObject
    rows: pa.Table
    is_there: bool = False
    examined: list[tuple[str, str, str, NamedFiles]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failed: str = ""
    is_postponed: bool = False
    files: int = 0
    bytes: int = 0
    directory: DirectoryState | None = None


@dataclass
class _Looked:
    path: str
    known: KnownFile | None
    kept: Kept | None = None
    checksum: str | None = None
    is_missing: bool = False
    failed: str = ""
    problem: str = ""
    named: NamedFiles | None = None  # None: not examined


def read_trees(task: TreeTask) -> list[TreeRead]:
    """Keeps and examines files. May run twice. Raises ConnectionError or TimeoutError if their store is away."""
    found, names = list[TreeRead](), 0
    for part in task.parts:
        rows = Rows()
        read = TreeRead(part.obj, rows.table([part.obj]))
        found.append(read)
        with ThreadPoolExecutor(1 if is_local(part.obj.location) else REQUESTS) as pool:
            for some in batched(part.files, REQUESTS):
                if read.is_postponed or names > NAMES:
                    read.is_postponed = True
                    break
                for looked in pool.map(partial(_look, part, task.root), some):
                    _add(read, rows, part, looked)
                    names += len(looked.named or ())
        if read.is_there and is_local(part.obj.location):
            with suppress(FileNotFoundError):  # it has gone since
                read.directory = directory_state(part.obj.location, parent(f"/{part.top}").strip("/"))
        read.rows, read.files, read.bytes = rows.table([part.obj]), rows.files_hashed, rows.bytes_hashed
    return found


def _add(read: TreeRead, rows: Rows, part: TreePart, looked: _Looked) -> None:
    read.failed = read.failed or looked.failed
    if looked.is_missing:
        read.missing.append(looked.path)
    elif looked.path == part.top and not looked.failed:
        read.is_there = True
    kept, known = looked.kept, looked.known
    if kept is not None and not (known and is_same_entry(known, kept, part.keeper)):
        rows.keep(0, looked.path, kept, part.keeper)
    if looked.named is not None and looked.checksum:
        read.examined.append((looked.path, looked.checksum, looked.problem, looked.named))


def _look(part: TreePart, root: str, file: WantedFile) -> _Looked:
    found, place, known = _Looked(file.path, file.known), join(part.obj.location, file.path), file.known
    try:
        if file.keep:
            kept = found.kept = part.keeper.keep(place)
            identity = full_identity(kept.identity, kept.changed_ns)
            known = KnownFile(file.path, kept.size, kept.mtime_ns, identity, kept.checksum, True, kept.version)
        elif file.path == part.top:
            file_state(place)
    except (FileNotFoundError, NotADirectoryError):
        found.is_missing = True
    except (ConnectionError, TimeoutError):
        raise
    except (OSError, NotWritable, UnknownPlace) as error:
        found.failed = f"its file {place} cannot be read: {error}"
    if found.is_missing or found.failed or not file.examine:
        return found
    assert known is not None
    found.checksum = known.checksum
    for open_file in openings(place, known, root):
        with suppress(FileNotFoundError), open_file() as stream:
            named: NamedFiles = []
            found.problem = FORMATS[part.format].examine(file.path, part.obj.location, stream, named)
            found.named = named
            return found
    found.is_missing = True
    return found


# ---- walks, by the driver --------------------------------------------------------------------------------------------

Record = Callable[[Sequence[DataObject], pa.Table, Sequence[int]], None]  # see `Contents.record`
Groups = Callable[[Sequence[DataObject]], Iterable[tuple[Keeper, Sequence[DataObject]]]]

REACHED = """CREATE TEMP TABLE IF NOT EXISTS reached (table_id INTEGER, path TEXT, level INTEGER, leads, fresh,
  PRIMARY KEY (table_id, path)) WITHOUT ROWID"""
_HAVING = ", ".join(repr(each.name) for each in FORMATS.values() if each.has_tree)
_UNLISTED = f"""SELECT t.id, 0, t.db, t.name, '', t.location, t.touched, f.format FROM formats f
  JOIN tables t ON t.id = f.table_id WHERE f.format IN ({_HAVING}) AND NOT t.listed AND t.location <> ''
  AND t.id > ? ORDER BY t.id LIMIT ?"""
_OWN = "f.table_id = r.table_id AND f.partition_id = 0 AND f.path = r.path"  # the recorded state of a reached file
_IS_DAMAGED = """(l.problem <> '' AND NOT EXISTS
  (SELECT 1 FROM tree e WHERE e.location = l.location AND e.checksum = l.checksum))"""  # a file that cannot be read
_LEVEL = f"""SELECT r.path, r.leads, l.checksum, {_IS_DAMAGED}, {FILE} FROM temp.reached r LEFT JOIN files f ON {_OWN}
  LEFT JOIN log_files l ON l.checksum = f.checksum AND l.location = ?
  WHERE r.table_id = ? AND r.level = ? AND r.path > ? ORDER BY r.path LIMIT ?"""
_EXPAND = f"""INSERT OR IGNORE INTO temp.reached SELECT r.table_id, e.path, r.level + 1, e.leads, 0 FROM temp.reached r
  CROSS JOIN files f ON {_OWN} CROSS JOIN tree e ON e.location = ? AND e.checksum = f.checksum
  WHERE e.store = '' AND r.table_id = ? AND r.level = ? AND r.leads"""
_UNREAD = f"""SELECT 1 FROM temp.reached r LEFT JOIN files f ON {_OWN}
  LEFT JOIN log_files l ON l.checksum = f.checksum AND l.location = ? WHERE r.table_id = ? AND r.leads
  AND l.problem IS NULL LIMIT 1"""
_UNREACHED = """SELECT path FROM files f WHERE table_id = ? AND partition_id = 0 AND path > ? AND NOT EXISTS
  (SELECT 1 FROM temp.reached r WHERE r.table_id = f.table_id AND r.path = f.path) ORDER BY path LIMIT ?"""
_UNUSED = f"""SELECT DISTINCT checksum FROM tree WHERE location = ? AND checksum NOT IN
  (SELECT f.checksum FROM temp.reached r CROSS JOIN files f ON {_OWN} WHERE r.table_id = ? AND r.leads)"""


class Trees:
    """The walks of one capture. changed: ids of tables with new or removed files; lacking: by table, the number of
    missing files, and one of them."""

    def __init__(self, log: Recording, root: str, runtime: Runtime, record: Record) -> None:
        self._log, self._manifest, self._root, self._runtime, self._record = log, log.manifest, root, runtime, record
        self.changed, self.lacking = set[int](), dict[str, tuple[int, str]]()
        self._objects, self._rows, self._owners = list[DataObject](), list[pa.Table](), list[int]()
        self._manifest.change(REACHED, ())

    def walk(self, groups: Groups, missing: list[tuple[DataObject, str]]) -> list[DataObject]:
        """Walks every unlisted table that has a tree, and marks it as listed, unless its tree cannot be followed.
        groups: returns those that can be read, by keeper. Returns the tables with missing files, which must be walked
        again; appends those that cannot be read to `missing`, with the reason."""
        again, last = list[DataObject](), -1
        while rows := self._manifest.select(_UNLISTED, last, TABLES):
            last, tops = rows[-1][0], dict[DataObject, tuple[TableFormat, Sequence[str]]]()
            for *about, name in rows:
                obj, format = DataObject(*about), FORMATS[name]
                if (table := self._manifest.table(obj.db, obj.table)) and (paths := format.tree_tops(table)):
                    tops[obj] = format, paths
            found = [(obj, keeper) for keeper, some in groups(list(tops)) for obj in some]
            walks = [_Walk(self._manifest, obj, *tops[obj], keeper) for obj, keeper in found]
            with self._runtime.progress.task("follow trees") as advance:
                self._read(walks, advance)
            for each in walks:
                self._end(each)
            self._flush()
            self._manifest.change("DELETE FROM temp.reached", ())
            left = {each.obj for each in walks if not (each.is_there or each.failed)}
            self._manifest.mark_listed([obj for obj in tops if obj not in left])
            again += [each.obj for each in walks if each.is_partial]
            missing += [(each.obj, each.failed) for each in walks if each.failed]
        return again

    def _read(self, walks: Sequence[_Walk], advance: Callable[[int], None]) -> None:
        """Reads what is new, level by level: the files that those of one level name are the next one. advance: gets the
        number of files."""
        level, by_id, active = 0, {each.obj.table_id: each for each in walks}, walks
        for each in walks:
            each.begin()
        while active:
            (count,) = self._manifest.select("SELECT count(*) FROM temp.reached WHERE level = ?", level)[0]
            engine, is_postponed = self._runtime.engines.for_work(count), True
            while is_postponed:
                is_postponed = False
                for reads in engine.run(read_trees, _tasks(active, level, self._root)):
                    for read in reads:
                        by_id[read.obj.table_id].add(read)
                        self._keep(read.obj, read.rows)
                        advance(read.files)
                        self._log.report.files += read.files
                        self._log.report.bytes += read.bytes
                        is_postponed = is_postponed or read.is_postponed
                self._flush()
            active = [each for each in active if each.expand(level)]
            level += 1

    def _end(self, walk: _Walk) -> None:
        for rows in walk.end():
            self._keep(walk.obj, rows)
        if walk.has_changed:
            self.changed.add(walk.obj.table_id)
        name = f"{walk.obj.db}.{walk.obj.table}"
        self.lacking.pop(name, None)
        if walk.lacking:
            self.lacking[name] = len(walk.lacking), join(walk.obj.location, walk.lacking[0])

    def _keep(self, obj: DataObject, rows: pa.Table) -> None:
        """Records rows together with others: each call of `record` costs a row group of the log."""
        self._owners += [len(self._objects)] * rows.num_rows
        self._objects.append(obj)
        self._rows.append(rows)
        if len(self._owners) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._owners:
            self._record(self._objects, pa.concat_tables(self._rows), self._owners)
        self._objects, self._rows, self._owners = [], [], []


def _tasks(walks: Iterable[_Walk], level: int, root: str) -> Iterator[TreeTask]:
    parts, count = list[TreePart](), 0
    for walk in walks:
        for files in walk.wanted(level):
            parts.append(TreePart(walk.obj, walk.format.name, walk.top, walk.keeper, files))
            count += len(files)
            if count >= FILES:
                yield TreeTask(parts, root)
                parts, count = [], 0
    if parts:
        yield TreeTask(parts, root)


class _Walk:
    """The walk of one table. top: the path of its metadata file, the first of `tops`; is_there: it exists, and its tree
    can be followed; failed: why the table cannot be read; lacking: its missing files, by their paths; is_partial: some
    are missing, so it must be walked again."""

    def __init__(
        self, manifest: Manifest, obj: DataObject, format: TableFormat, tops: Sequence[str], keeper: Keeper
    ) -> None:
        self._manifest, self.obj, self.format, self.keeper = manifest, obj, format, keeper
        self._tops, self.top = tops, tops[0]
        self.is_there, self.failed, self.is_partial, self.has_changed = False, "", False, False
        self.lacking = list[str]()
        self._reads: Literal["all", "added", "nothing"] = "all"
        self._missing, self._damaged = list[str](), set[str]()
        self._before = "", ""  # path and checksum of the metadata file of the last walk

    def begin(self) -> None:
        rows = ((self.obj.table_id, path, self.format.leads_on(path, self.top)) for path in self._tops)
        self._manifest.change("INSERT OR IGNORE INTO temp.reached VALUES (?, ?, 0, ?, 0)", *rows)

    def wanted(self, level: int) -> Iterator[Sequence[WantedFile]]:
        """Yields the files of a level that are to be read. The metadata file always is, as all may be gone with it."""
        last, done = "", self._damaged.union(self._missing)
        while rows := self._manifest.select(_LEVEL, self.obj.location, self.obj.table_id, level, last, FILES):
            last, some = rows[-1][0], list[WantedFile]()
            for path, leads, examined, is_damaged, *file in rows:
                known = KnownFile(*file) if file[0] is not None else None
                keep = known is None or bool(is_damaged) or not is_kept_by(known, self.keeper)
                wanted = WantedFile(path, known, keep, bool(leads) and (keep or examined is None))
                is_first = path == self.top and not self.is_there
                if (is_first or keep or wanted.examine) and path not in done:
                    some.append(wanted)
            if some:
                yield some

    def add(self, read: TreeRead) -> None:
        """Notes what was read."""
        self.failed = self.failed or read.failed
        self._missing += read.missing
        self.has_changed = self.has_changed or read.rows.num_rows > 0
        for path, checksum, problem, named in read.examined:
            remember_log_file(self._manifest, checksum, self.obj.location, problem, named)
            if problem and not named:
                self._damaged.add(path)
        self.is_there = (self.is_there or read.is_there) and not self._damaged
        fresh = "UPDATE temp.reached SET fresh = 1 WHERE table_id = ? AND path = ?"
        self._manifest.change(fresh, *((self.obj.table_id, path) for path, *_ in read.examined))
        if read.directory is not None:
            self._manifest.set_directories([self.obj], [(0, *msgspec.structs.astuple(read.directory))])

    def expand(self, level: int) -> bool:
        """Adds the files that those of a level name. Returns False if there are none to read."""
        if not self.is_there or self.failed:
            return False
        if level == 0:
            self._decide()
        place, table = self.obj.location, self.obj.table_id
        if self._reads == "all":
            self._manifest.change(_EXPAND, (place, table, level))
        elif level:
            self._manifest.change(f"{_EXPAND} AND r.fresh", (place, table, level))
        elif self._reads == "added":
            known = "SELECT path FROM tree WHERE location = ? AND checksum = ? AND store = ''"
            self._manifest.change(f"{_EXPAND} AND e.path NOT IN ({known})", (place, table, 0, place, self._before[1]))
        return bool(
            self._manifest.select("SELECT 1 FROM temp.reached WHERE table_id = ? AND level = ?", table, level + 1)
        )

    def _decide(self) -> None:
        """Decides what is read: nothing, if the last walk began at the same file; what was added since then; or all, if
        files that lead on were dropped, or the last walk did not find all."""
        row = self._manifest.select("SELECT top, keeper FROM walks WHERE table_id = ?", self.obj.table_id)
        place, keeper = row[0] if row else ("/", "")
        top = relative(place, self.obj.location)
        if not top or keeper != self.keeper.name:
            return
        self._before = top, self._checksum(top)
        if top == self.top and not self.has_changed:
            self._reads = "nothing"
        elif self._names(self._before[1]) and not self._without(leads=True):
            self._reads = "added"

    def end(self) -> Iterator[pa.Table]:
        """Notes a complete walk. Yields rows that remove what is no longer part of the table."""
        manifest, table, place = self._manifest, self.obj.table_id, self.obj.location
        manifest.change("DELETE FROM walks WHERE table_id = ? AND ?", (table, self._reads != "nothing"))
        if not self.is_there or self.failed or self._reads == "nothing":
            return
        self.lacking = [path for path in self._missing if not self.format.may_lack(path)]
        is_unread = bool(manifest.select(_UNREAD, place, table))
        self.is_partial = is_unread or bool(self.lacking)
        if self._reads == "added":
            yield from self._removed([path for path in self._without() if self._checksum(path)])
            self._forget([self._before[1]])
        elif not is_unread:
            last = ""
            while rows := manifest.select(_UNREACHED, table, last, FILES):
                last = rows[-1][0]
                yield from self._removed([path for (path,) in rows])
            self._forget([checksum for (checksum,) in manifest.select(_UNUSED, place, table)])
        if not self.is_partial:
            manifest.change("INSERT INTO walks VALUES (?, ?, ?)", (table, join(place, self.top), self.keeper.name))

    def _removed(self, paths: Sequence[str]) -> Iterator[pa.Table]:
        rows = Rows()
        for path in paths:
            rows.remove(0, path)
        if paths:
            self.has_changed = True
            yield rows.table([self.obj])

    def _without(self, *, leads: bool = False) -> list[str]:
        """Returns the files that the last metadata file named, and this one does not, and that file itself."""
        now, (top, before) = {*self._names(self._checksum(self.top)), *self._tops}, self._before
        gone = [path for path, leads_on in self._names(before).items() if path not in now and (leads_on or not leads)]
        return gone if leads or top in now else [*gone, top]

    def _names(self, checksum: str) -> dict[str, bool]:
        query = "SELECT path, leads FROM tree WHERE location = ? AND checksum = ? AND store = ''"
        return dict(self._manifest.select(query, self.obj.location, checksum))

    def _checksum(self, path: str) -> str:
        query = "SELECT checksum FROM files WHERE table_id = ? AND partition_id = 0 AND path = ?"
        return next((each or "" for (each,) in self._manifest.select(query, self.obj.table_id, path)), "")

    def _forget(self, checksums: Iterable[str]) -> None:
        """Forgets both what files name and that they were examined."""
        rows = [(self.obj.location, each) for each in checksums if each != self._checksum(self.top)]
        for table in ("log_files", "tree"):
            self._manifest.change(f"DELETE FROM {table} WHERE location = ? AND checksum = ?", *rows)
