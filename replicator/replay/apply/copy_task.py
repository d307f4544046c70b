"""Copying of a dump's file entries to the target: the work of one Spark task.

A task reads one bucket of `_files`, folds its entries (the last one about a path counts, those from before a drop do
not), and copies its share. All entries of a path are in one bucket, so tasks do not communicate, and a list of files
exists in a task's memory only.
Files whose order matters to readers, such as logs, are published after all data (`publication.py`). Commits of other
writers are not replaced without a request.
"""

from __future__ import annotations

import heapq
import io
import threading
from bisect import bisect_right as bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.log.segment import reading
from cmroot.names import check_entries
from cmroot.store.checksum import checksum_at, checksum_stream
from cmroot.store.hdfs import carry_attributes
from cmroot.store.listing import may_name_places
from cmroot.store.place import Place, is_local, local_path, located, parent
from replicator.core.formats import FORMATS, of_metadata
from replicator.core.formats.interface import Removals, TableFormat
from replicator.core.model import Name
from replicator.core.named_files import NAMED
from replicator.core.not_replicated import CopyCounts
from replicator.errors import Error, FormatError
from replicator.replay.apply.copying import (
    FILE_COST,
    LARGE,
    Placed,
    Placing,
    compare_file,
    kept_prefixes,
    place_file,
    probe_file,
    remove_file,
    threads_of,
)
from replicator.replay.apply.format_files import NOWHERE, TableDirectories, TableLoad, translated_data
from replicator.replay.apply.named_places import Naming, translated_file
from replicator.replay.apply.origins import Directories, Roots, Wanted, directory_of, lacking_of
from replicator.replay.apply.staging import OPEN, Fence, noted, remove_emptied
from replicator.replay.plan import EntryKey, FileRules

# ---- copy task -------------------------------------------------------------------------------------------------------


def is_foreign(file: Wanted, format: TableFormat, load: TableLoad) -> bool:
    """Returns True if the target has a commit of this version that the source never had: its bytes differ, also from
    those of the translation, and the source's `$cmroot` does not have them either."""
    if not format.is_commit(file.target):
        return False
    try:
        checksum, size = checksum_at(file.target)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if (checksum, size) == (file.checksum, file.size) or load.how.roots.has(checksum, size):
        return False
    with suppress(FormatError):
        content = format.translated(file, load)
        return content is None or checksum_stream(io.BytesIO(content)) != (checksum, size)
    return True


COPY, REMOVE, PROBE, COMPARE = "copy", "remove", "probe", "compare"
MISSING_SHOWN = 1000  # missing files that a task names; more are only counted


@dataclass(frozen=True)
class CopyTask:
    """One bucket (its parts), and a share of its files: `share` of `shares`. `purpose`: COPY; REMOVE recycles files
    that the source removed, in a second pass after all copies; PROBE only checks that the bytes are available; COMPARE
    counts what would be copied. Files that wait for all data are left to `PublishTask`. `reread`: see place_file.
    `private`: the directories are new and have no readers yet; files hard-linked into them and then replaced remain in
    the old ones. `preserve`: ATTRIBUTES that copied files, and all their directories, get from the source's. `late`:
    REMOVE takes only files that readers use until the metastore has new metadata; otherwise only others."""

    parts: Sequence[str]
    rules: FileRules
    roots: Roots
    share: int
    shares: int
    purpose: str = COPY
    reread: bool = False
    private: bool = False
    preserve: Collection[str] = ()
    late: bool = False


@dataclass
class CopyReport(CopyCounts):
    """The result of a task. `missing`: (target path, position, reason), at most MISSING_SHOWN. `waiting`: parts of the
    dump with files that remain to be published; `lacking`: rights of replaced files that new ones lack, one text for
    each table of the target; `foreign`: commits on the target by other writers, each with its format in messages;
    `naming`: copied files that name places of the source, at most MISSING_SHOWN, more are counted. files_seen,
    bytes_seen: all files that the task has processed. copies: by comparison, files and bytes to copy by directory.
    `late`: tables of the target with files to remove late, see CopyTask; None: with files of no table."""

    files_removed: int = 0
    files_seen: int = 0
    bytes_seen: int = 0
    missing_count: int = 0
    missing: list[tuple[str, int, str]] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    foreign: dict[str, str] = field(default_factory=dict)
    naming_count: int = 0
    naming: list[Naming] = field(default_factory=list)
    lacking: dict[tuple[str, str], str] = field(default_factory=dict)
    copies: dict[str, tuple[int, int]] = field(default_factory=dict)
    late: set[Name | None] = field(default_factory=set)

    def note_naming(self, naming: Naming | None) -> None:
        """Counts a file that names a place of the source."""
        self.naming_count += naming is not None
        if naming is not None and len(self.naming) < MISSING_SHOWN:
            self.naming.append(naming)

    def note_copy(self, directory: str, files: int, size: int) -> None:
        """Counts files to copy into a directory of the target."""
        before = self.copies.get(directory, (0, 0))
        self.copies[directory] = before[0] + files, before[1] + size

    def add(self, other: CopyReport) -> None:
        self.count(other)
        self.files_seen += other.files_seen
        self.bytes_seen += other.bytes_seen
        self.missing_count += other.missing_count
        self.missing = (self.missing + other.missing)[:MISSING_SHOWN]
        self.foreign |= dict(islice(other.foreign.items(), MISSING_SHOWN - len(self.foreign)))
        self.waiting |= other.waiting
        self.naming_count += other.naming_count
        self.naming = (self.naming + other.naming)[:MISSING_SHOWN]
        self.lacking |= other.lacking
        self.late |= other.late
        for directory, (files, size) in other.copies.items():
            self.note_copy(directory, files, size)


def run_copy_task(task: CopyTask, fence: Fence = OPEN) -> CopyReport:
    """Copies or recycles a task's share. May run twice. Raises LeaseHeld if the attempt was abandoned."""
    homes: dict[str, EntryKey] = {}
    wanted, removed = fold_entries(entries(task.parts), task.rules, homes=homes)
    report, tables = CopyReport(), TableDirectories.of(homes, task.rules)
    if task.purpose == REMOVE:
        late, mine_removed = _late(homes, task.rules), list[str]()
        for target in removed[task.share :: task.shares]:
            if key := late.get(directory_of(target, late)):
                owner = task.rules.object_at(*key[:4])
                report.late.add(owner[0] if owner else None)
            if bool(key) == task.late:
                fence.check()
                report.files_removed += remove_file(target, task.roots, private=task.private)
                mine_removed.append(target)
        remove_emptied(mine_removed, homes)
        return report
    if task.purpose == COPY:
        data = [file for file in wanted if tables.waits_for(file.target) is None]
        is_whole = any(tables.whole(file.target) for file in data) if tables.formats else False
        report.waiting = set(task.parts) if len(data) < len(wanted) or is_whole else set()
        wanted = list(tables.in_hidden(data)) if is_whole else data
    mine = share_of(wanted, task.share, task.shares)
    kept, lists = kept_prefixes(task.roots.target), any(FORMATS[name].lists_places for name in task.rules.formats)

    def work(files: Iterable[Wanted], how: Placing) -> CopyReport:
        done = CopyReport()
        for file in files:
            naming = None
            home = tables.home(file.target)
            if task.purpose != PROBE and home and tables.formats[home].translates:
                load = TableLoad(home, homes[home], task.rules, how)
                file, naming = translated_data(file, tables.formats[home], load)
            elif task.purpose != PROBE and (lists or may_name_places(file.target) or of_metadata(file.target)):
                file, naming = translated_file(file, homes, task.rules, how)
            done.note_naming(naming)
            if task.purpose == PROBE:
                placed = probe_file(file, task.roots)
            elif task.purpose == COMPARE and home and _is_there(file, home, tables):
                placed = Placed("present", file.size or 0)
            elif task.purpose == COMPARE:
                placed = compare_file(file, task.roots, reread=task.reread)
            else:
                placed = place_file(file, how)
            copied = done.files_copied
            count(done, file, placed)
            if task.purpose == COMPARE and done.files_copied > copied:
                done.note_copy(parent(file.target), 1, file.size or 0)
            if placed.lacking:
                done.lacking |= lacking_of(file.target, placed.lacking, homes, task.rules)
        return done

    with noted(task.roots.target, (file.target for file in mine if task.purpose == COPY), fence) as attempt:
        make = Directories(homes, task.rules, report.lacking).make
        how = Placing(task.roots, attempt, kept, task.reread, task.private, task.preserve, make)
        for file in mine if task.purpose == PROBE else ():
            if (of := tables.waits_for(file.target)) is not None:
                home = of[0] or directory_of(file.target, homes)
                if is_foreign(file, of[1], TableLoad(home, homes.get(home, NOWHERE), task.rules, how)):
                    report.foreign[file.target] = of[1].said
        _share_out(mine, lambda files: work(files, how), report)
        for source, target in {(parent(file.source), parent(file.target)) for file in mine if task.preserve}:
            attempt.check()
            with suppress(FileNotFoundError):  # the attributes of a directory dropped at the source are unknown
                carry_attributes(source, target, task.preserve)
    seen = report.files_copied + report.files_skipped + report.missing_count
    if seen != len(mine):
        raise Error(f"a copying task of {len(mine)} files processed {seen}", hint="report this as a bug")
    return report


def _late(homes: Mapping[str, EntryKey], rules: FileRules) -> dict[str, EntryKey]:
    """Returns the directories whose files have readers until the metastore has new metadata."""
    formats = [FORMATS[name] for name in rules.formats if FORMATS[name].removals is Removals.METADATA]
    named = any(each.names_metadata for each in formats)
    return {
        directory: key
        for directory, key in (homes.items() if formats else ())
        if (named if key[2] == NAMED else rules.format_at(key) in formats)
    }


def _is_there(file: Wanted, home: str, tables: TableDirectories) -> bool:
    """Returns True for an existing file whose name is never given to another content."""
    return tables.formats[home].is_unique(file.target[len(home) :]) and located(file.target).exists()


def _share_out(mine: Sequence[Wanted], work: Callable[[Iterable[Wanted]], CopyReport], report: CopyReport) -> None:
    """Processes a task's files in one thread, or in several if they are large or the target's store is slow."""
    threads = threads_of(mine)
    if threads == 1:
        report.add(work(mine))
    else:
        queue, guard = iter(mine), threading.Lock()
        with ThreadPoolExecutor(threads) as pool:
            for future in [pool.submit(work, _handed_out(queue, guard)) for _ in range(threads)]:
                report.add(future.result())


def _handed_out(queue: Iterator[Wanted], guard: threading.Lock) -> Iterator[Wanted]:
    while True:
        with guard:
            file = next(queue, None)
        if file is None:
            return
        yield file


def fold_entries(
    rows: Iterable[pa.Table],
    rules: FileRules,
    owners: dict[str, tuple[tuple[str, str], str]] | None = None,
    homes: dict[str, EntryKey] | None = None,
) -> tuple[list[Wanted], list[str]]:
    """Returns the files that the target must have, and those that it must not, after all entries: the last one about a
    path counts. owners: is filled with directories of the target, and the table and partition of each; homes: is filled
    with all these directories, ending with a slash, each with the key of an entry of its object."""
    last: dict[str, tuple[int, Wanted | None]] = {}
    places: dict[EntryKey, tuple[str, str] | None] = {}
    objects: dict[EntryKey, tuple[str, EntryKey]] = {}
    for table in rows:
        for op, key, files in _runs(table):
            if key not in places:
                directories = rules.places(*key)
                places[key] = directories and (slashed(directories[0]), slashed(directories[1]))
                owner = rules.object_at(*key[:4]) if owners is not None else None
                if owners is not None and directories and owner:
                    owners[slashed(directories[1])] = owner
                if homes is not None and directories:
                    directory, own = rules.object_of(key, directories[1])
                    objects[key] = slashed(directory), own
            found = places[key]
            if found is None:
                continue
            (source, target), position, adds = found, key[0], op == "add"
            if homes is not None:
                homes.update((objects[key],))
            format = rules.format_at(key)
            for path, size, mtime_ns, checksum, version in files:
                place = file_in(target, format.replica_path(path) if format.special else path)
                before = last.get(place)
                if before is not None and (before[0], before[1] is not None) > (position, adds):
                    continue  # added at the same position: two paths of the source may be one on the replica
                wanted = None
                if adds:  # a version is stored under the object's name at the time of the record
                    at_version = (file_in(slashed(key[4]), path), version) if version else None
                    wanted = Wanted(file_in(source, path), place, size, mtime_ns, checksum, position, at_version)
                last[place] = (position, wanted)
    return (
        [wanted for _, wanted in last.values() if wanted is not None],
        [target for target, (_, wanted) in last.items() if wanted is None],
    )


def outside_files(parts: Sequence[str], rules: FileRules) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Returns the files of a dump that are outside of the locations of their Iceberg tables: by the directory of a
    table of the target, ending with a slash, paths in it and sizes."""
    tables, homes = entries(parts), dict[str, EntryKey]()
    roots = (
        table.filter(pc.match_substring_regex(table["location"].cast("string"), "^[^/]*//[^/]*/$")) for table in tables
    )
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for file in fold_entries(roots, rules, homes=homes)[0]:
        directory = directory_of(file.target, homes)
        found.setdefault(directory, {})[file.target[len(directory) :]] = (file.size or 0,)
    return found


def _runs(table: pa.Table) -> Iterator[tuple[str, EntryKey, Iterable[tuple[Any, ...]]]]:
    """Yields rows in order, by runs of one object at one position: (op, position to location, its files)."""
    if not table.num_rows:
        return
    about = [table[name].combine_chunks() for name in _ABOUT]
    changes = [pc.not_equal(column[1:], column[:-1]).fill_null(True) for column in about]
    starts = [0, *(before + 1 for before in pc.indices_nonzero(reduce(pc.or_, changes)).to_pylist())]
    keys = zip(*(column.take(pa.array(starts)).to_pylist() for column in about), strict=True)
    files = [table[name].to_pylist() for name in _OF_FILES]
    for (op, *key), start, end in zip(keys, starts, [*starts[1:], table.num_rows], strict=True):
        yield op, tuple(key), zip(*(column[start:end] for column in files), strict=True)


_ABOUT = ("op", "position", "db", "table", "partition", "location")
_OF_FILES = ("path", "size", "mtime_ns", "checksum", "version")


def slashed(directory: str) -> str:
    """Returns a directory as a prefix of the names in it, with a slash; a local one as a plain path."""
    return (local_path(directory) if is_local(directory) else directory).rstrip("/") + "/"


def file_in(directory: str, path: str) -> str:
    """Returns a file's path in a directory ending with a slash; an empty `path` means the location is itself a file."""
    return directory + path if path else directory[:-1]


def share_of(files: Sequence[Wanted], share: int, shares: int) -> list[Wanted]:
    """Returns one of `shares` parts of the files, of about equal cost; every task computes the same division.

    Large files are distributed, the largest first. Small ones are cut into contiguous ranges that level the parts:
    entries are ordered by directory, and two tasks that create files in one directory wait for each other."""
    if shares == 1:
        return list(files)
    large = sorted((file for file in files if _cost(file) > LARGE), key=lambda each: (-_cost(each), each.target))
    small = [file for file in files if _cost(file) <= LARGE]
    loads = [(0, number) for number in range(shares)]
    mine = []
    for file in large:
        load, number = heapq.heappop(loads)
        heapq.heappush(loads, (load + _cost(file), number))
        if number == share:
            mine.append(file)
    if not small:
        return mine
    ends = list(accumulate(map(_cost, small)))
    level = (ends[-1] + sum(load for load, _ in loads)) / shares
    room = [max(0.0, level - load) for load, _ in sorted(loads, key=lambda each: each[1])]
    first, last = (round(ends[-1] * sum(room[:number]) / sum(room)) for number in (share, share + 1))
    return mine + small[bisect(ends, first) : bisect(ends, last)]


def _cost(file: Wanted) -> int:
    return (file.size or 0) + FILE_COST


def count(report: CopyReport, file: Wanted, placed: Placed) -> None:
    """Adds one file to a report."""
    report.files_seen += 1
    report.bytes_seen += file.size or 0
    match placed.origin:
        case "missing":
            report.missing_count += 1
            if len(report.missing) < MISSING_SHOWN:
                report.missing.append((file.target, file.position, f"{file.source}: {placed.reason}"))
            return
        case "present":
            report.files_skipped += 1
            return
        case "source":
            report.files_from_source += 1
        case "cmroot":
            report.files_from_cmroot += 1
        case "dump":
            report.files_from_dump += 1
        case "target":
            report.files_from_target += 1
    report.files_copied += 1
    report.bytes_copied += placed.size


def entries(parts: Sequence[str]) -> Iterator[pa.Table]:
    """Yields the file entries of a dump's parts, batch by batch, with the columns that folding reads."""
    for part in parts:
        with Place(part).open_read() as file, reading(part):
            for batch in pq.ParquetFile(file).iter_batches(columns=[*_ABOUT, *_OF_FILES]):
                check_entries(batch, part, complete=True)
                rows = pa.Table.from_batches([batch])
                if "version" not in rows.column_names:  # dumps of the first releases
                    rows = rows.append_column("version", pa.nulls(rows.num_rows, pa.string()))
                yield rows
