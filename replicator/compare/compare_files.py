"""Comparison of files, on an engine, on executors too. Lists both sides of objects and compares by relative path.

It accesses no metastore and returns only counts and differences: a list of files never reaches the driver.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import BinaryIO

import msgspec
import xxhash

from cmroot.store.acid import State
from cmroot.store.buckets import Listings
from cmroot.store.checksum import checksum_at, checksum_stream
from cmroot.store.hdfs_checksums import Crc, composite_crc, in_zone
from cmroot.store.listing import FileState, Listing, file_state
from cmroot.store.place import join, located, parent, scheme
from replicator.captures.write_ids import as_on_replica
from replicator.compare.differences import Difference, Differences
from replicator.core.formats import FORMATS, PLAIN
from replicator.core.formats.outside import OUTSIDE
from replicator.core.named_files import is_on_nodes
from replicator.core.not_replicated import NotReplicated
from replicator.replay.apply.copying import at_most
from replicator.replay.apply.format_files import Mover, UriMover, renamed_database
from replicator.replay.apply.named_places import (
    LARGEST,
    TOO_LARGE,
    homes_of,
    limit_of,
    may_name,
    moved,
    reason,
    translated,
)
from replicator.replay.apply.staging import empty_directories

SIZE = "size"
CRC = "crc"
CHECKSUM = "checksum"

NAMED = 1000  # objects with files that name the source, of one task

_ASKED_AT_ONCE = 16
"""Files whose CRCs are requested concurrently: nearly all of the time is spent waiting."""


@dataclass(frozen=True)
class FilePair:
    """A table or partition that has files, by the source's name, with its locations on both sides. `size`: bytes, as
    far as the metastore knows. `homes`: further locations that its files may name, as for `homes_of`. `root`: the
    directory of a partitioned table, of which only files that no partition has are compared. `format`: the name of the
    format as which it is compared; `pointer`: the target's metadata file to which the metastore leads readers. `tree`:
    the name of the source's format, whose tree captures follow from `tops` on. Of a transactional table: `state`: the
    source's write ids, whose files are compared; `renamed`: paths on the source that differ from those on the replica.
    `outside`: places of the source's files outside of its location, by their paths on the replica. `store`:
    the location of its database at the source, if its files list places. `databases`: the names of its database on both
    sides. `sizes`: those of the target's files by path, of a format with a log; filled by the task."""

    name: str
    source: str
    target: str
    size: int = 0
    homes: Sequence[tuple[str | None, str | None]] = ()
    root: bool = False
    pointer: str = ""
    tree: str = PLAIN.name
    tops: Sequence[str] = ()
    state: State | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    format: str = PLAIN.name
    outside: Mapping[str, str] = field(default_factory=dict)
    store: str = ""
    databases: tuple[str, str] = ("", "")
    sizes: Mapping[str, int] = field(default_factory=dict)

    def both(self, path: str) -> tuple[str, str]:
        """Returns the places of a file on both sides, by its path on the replica."""
        here = self.outside.get(path) or join(self.source, self.renamed.get(path, path))
        return here, join(self.target, path)


@dataclass(frozen=True)
class FileTask:
    """Objects to compare. The contents of those with more than `largest` bytes are postponed; a task with `shares` only
    reads the contents of the files whose path hashes to `share`. `part`: (number, total) of the share of each object's
    contents to read at all."""

    pairs: Sequence[FilePair]
    level: str
    largest: int
    share: int = 0
    shares: int = 0
    part: tuple[int, int] = (0, 1)


@dataclass
class FilesCompared:
    """Files and bytes compared, the differences, and the postponed objects with their (files, bytes). `files_read`: at
    level crc, files whose contents were read because a side has no CRC; `naming`: objects whose files name locations of
    the source and are not translated, at most NAMED, and transactional ones of which rows are left out."""

    files: int = 0
    files_read: int = 0
    bytes: int = 0
    objects: int = 0
    differences: Differences = field(default_factory=Differences)
    later: list[tuple[FilePair, int, int]] = field(default_factory=list)
    naming: list[NotReplicated] = field(default_factory=list)


def compare_files(task: FileTask) -> FilesCompared:
    """Compares files. Reads only, so it may run twice. A file that vanishes is reported as missing on its side."""
    report = FilesCompared()
    roots = {index for index, pair in enumerate(task.pairs) if pair.root}
    sources = Listings([pair.source for pair in task.pairs], roots)
    targets = Listings([pair.target for pair in task.pairs], roots)
    for index, pair in enumerate(task.pairs):
        _compare(pair, sources.of(index), targets.of(index), task, report)
        report.objects += 1
    return report


def _compare(
    pair: FilePair, here: Listing | None, there: Listing | None, task: FileTask, report: FilesCompared
) -> None:
    left_out = ""
    if pair.state is not None and here is not None:
        here, renamed, left_out = as_on_replica(here, pair.source, pair.state)
        pair = replace(pair, renamed=renamed)
    source, target = _files(here), _files(there)
    format = FORMATS[pair.format]
    if (named := FORMATS[pair.tree].tree_paths(_Both(pair, report))) is not None:
        unlisted = [path for path in named if path not in source]  # hidden names, too, which no listing has
        found = {path: source[path] for path in named if path in source}
        source = found | _states({path: join(pair.source, path) for path in unlisted})
        target |= _states({path: join(pair.target, path) for path in unlisted if path not in target})
    naming = [path for path in source if may_name(path, format) and path in target]
    indexes = dict.fromkeys(path for path in naming if 0 < source[path].size <= limit_of(path, format))
    if format.reads_log:
        pair = replace(pair, sizes={path: state.size for path, state in target.items()})
    if format.has_outside:
        outside = format.outside(source, _Both(pair, report))
        outside = {path: place for path, place in outside.items() if not is_on_nodes(place, pair.source)}
        pair = replace(pair, outside=outside)
        source |= _states(outside) if outside else {}
    if format.translates:
        indexes = dict.fromkeys(path for path in source if format.waits(path) and path in target)
    same = {path for path, state in source.items() if path in target and target[path].size == state.size}
    alike = [path for path in source if path in same and path not in indexes]
    part, parts = task.part
    if parts > 1:  # other bits of the digest than for shares
        alike = [path for path in alike if (_digest(path) >> 32) % parts == part]
    if task.shares:
        _compare_bytes(pair, [path for path in alike if _digest(path) % task.shares == task.share], task, report)
        return
    _tell_unnamed(pair, here, there, report)
    if left_out:
        report.naming.append(_left_out(pair, left_out))
    _compare_names(pair, source, target, indexes, report)
    both = _Both(pair, report)
    if format.translates:
        format.compare_translated(list(indexes), both)
    elif naming:
        _compare_indexes(pair, source, naming, indexes, report)
    format.check(both)
    known = {each.relative for each in here.directories} if here else set()
    for name in empty_directories(there) if not pair.root else ():
        if format.has_outside and f"{name}/".startswith(f"{OUTSIDE}/"):
            continue
        if name not in known:  # some readers fail at it; one that exists only at the source is harmless here
            _add(report, pair, "directory extra", name, None, "empty")
    if task.level not in (CRC, CHECKSUM):
        return
    total = sum(source[path].size for path in alike)
    if total > task.largest and len(alike) > 1:
        report.later.append((pair, len(alike), total))
        return
    _compare_bytes(pair, alike, task, report)


def _digest(path: str) -> int:
    return xxhash.xxh3_64_intdigest(os.fsencode(path))


def _files(listing: Listing | None) -> dict[str, FileState]:
    """Returns files by relative path; none for a location without a directory."""
    return {file.path_relative: file for file in listing.files} if listing else {}


def _tell_unnamed(pair: FilePair, source: Listing | None, target: Listing | None, report: FilesCompared) -> None:
    """Reports each file whose name is not UTF-8 as a difference: such files are never replicated."""
    for name in source.unnamed if source else ():
        report.files += 1
        _add(report, pair, "file missing", name, "not UTF-8", None)
    for name in target.unnamed if target else ():
        report.files += 1
        _add(report, pair, "file extra", name, None, "not UTF-8")


def _compare_names(
    pair: FilePair,
    source: dict[str, FileState],
    target: dict[str, FileState],
    indexes: Collection[str],
    report: FilesCompared,
) -> None:
    for path in sorted(source.keys() | target.keys()):
        wanted, found = source.get(path), target.get(path)
        report.files += 1
        report.bytes += wanted.size if wanted else 0
        if found is None:
            _add(report, pair, "file missing", path, _bytes(wanted), None)
        elif wanted is None:
            _add(report, pair, "file extra", path, None, _bytes(found))
        elif (
            wanted.size != found.size
            and path not in indexes
            and not FORMATS[pair.format].is_translation(path, _Both(pair, report))
        ):
            _add(report, pair, "file size", path, _bytes(wanted), _bytes(found))


def _is_translated(pair: FilePair, path: str, report: FilesCompared) -> bool:
    return FORMATS[pair.format].is_translation(path, _Both(pair, report))


def _compare_indexes(
    pair: FilePair,
    source: Mapping[str, FileState],
    paths: Iterable[str],
    indexes: Collection[str],
    report: FilesCompared,
) -> None:
    """Compares files of the target with translations of the source's, whatever the level: sizes differ, too. paths:
    those that may name places; indexes: those that are translated."""
    format = FORMATS[pair.format]
    homes = homes_of([(pair.source, pair.target), *pair.homes], roots=format.lists_places)
    naming = dict[str, str]()
    for path in paths:
        if path not in indexes:
            naming |= {path: TOO_LARGE} if source[path].size > limit_of(path, format) == LARGEST else {}
            continue
        here, there = pair.both(path)
        try:
            with located(here).open_stream() as stream:
                data = at_most(stream, source[path].size + 1)
        except FileNotFoundError:
            _add(report, pair, "file extra", path, None, _checksum(there))
            continue
        content, named = translated(path, data, homes, format, pair.store)
        wanted, found = checksum_stream(io.BytesIO(content))[0], _checksum(there)
        if wanted != found:
            _add(report, pair, "file content" if found else "file missing", path, wanted, found)
        elif named:
            naming[path] = named
    if naming and len(report.naming) < NAMED:
        report.naming.append(_left_out(pair, reason(naming)))


def _left_out(pair: FilePair, reason: str) -> NotReplicated:
    return NotReplicated(pair.name.partition("/")[0], reason, pair.name.partition("/")[2])


# ---- formats ---------------------------------------------------------------------------------------------------------


def _states(places: Mapping[str, str]) -> dict[str, FileState]:
    """Returns the states of existing files, with the given paths."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="outside") as pool:
        found = zip(places, pool.map(_state, places.values()), strict=True)
        return {path: msgspec.structs.replace(state, path_relative=path) for path, state in found if state is not None}


def _state(place: str) -> FileState | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return file_state(place)
    return None


@dataclass(frozen=True)
class _Both:
    """A table with a log or a tree on both sides, for its format: `Compared`."""

    pair: FilePair
    report: FilesCompared

    @property
    def files(self) -> Mapping[str, int]:
        return self.pair.sizes

    @property
    def source(self) -> str:
        return self.pair.source

    @property
    def target(self) -> str:
        return self.pair.target

    @property
    def pointer(self) -> str:
        return self.pair.pointer

    @property
    def tops(self) -> Sequence[str]:
        return self.pair.tops

    def both(self, path: str) -> tuple[str, str]:
        return self.pair.both(path)

    @cached_property
    def move(self) -> Mover:
        return Mover(homes_of([(self.source, self.target)]))

    def move_own(self, text: str) -> str:
        return moved(text, homes_of([(self.source, self.target)]))

    def in_order(self, bounds: Sequence[str]) -> bool:
        return self.move.in_order(bounds)

    @cached_property
    def move_any(self) -> Mover:
        return Mover(homes_of([(self.source, self.target)]), former=True)

    @cached_property
    def move_uri(self) -> UriMover:
        return UriMover(homes_of([(self.source, self.target), *self.pair.homes]))

    def move_database(self, name: str) -> str:
        return renamed_database(name, *self.pair.databases)

    def is_replicated(self, place: str) -> bool:
        return self.move_uri.is_replicated(place)

    def read(self, place: str) -> bytes | None:
        with suppress(FileNotFoundError), located(place).open_stream() as stream:
            return stream.read()
        return None

    def open(self, place: str) -> BinaryIO:
        return located(place).open_read()

    def differs(self, kind: str, path: str, wanted: str | None, found: str | None) -> None:
        _add(self.report, self.pair, kind, path, wanted, found)


def _compare_bytes(pair: FilePair, paths: Sequence[str], task: FileTask, report: FilesCompared) -> None:
    """Compares files of equal sizes."""
    if task.level != CRC:
        for path in paths:
            _compare_contents(pair, path, report)
        return
    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="crc") as pool:
        directories = list({parent(place) for path in paths for place in pair.both(path)})
        readable = dict(zip(directories, pool.map(_has_crcs, directories), strict=True))
        crcs_of = pool.map(lambda path: _crcs(pair, path, readable), paths)
        for path, crcs in zip(paths, crcs_of, strict=True):
            if crcs is None:
                report.files_read += 1
                _compare_contents(pair, path, report)
            elif crcs[0] != crcs[1] and not _is_translated(pair, path, report):
                _add(report, pair, "file content", path, *map(str, crcs))


def _has_crcs(directory: str) -> bool:
    """Returns True if the directory's files have CRCs of their contents: on HDFS, and not of encrypted bytes. An
    encryption zone begins at a directory, so one query is enough for all its files."""
    try:
        return scheme(directory) == "hdfs" and not in_zone(directory)
    except OSError:  # reading the files reports the error
        return False


def _crcs(pair: FilePair, path: str, having: Mapping[str, bool]) -> tuple[Crc, Crc] | None:
    """Returns both sides' CRCs; None if they cannot be compared. having: True for directories with CRCs."""
    found = []
    for place in pair.both(path):
        try:
            crc = composite_crc(place) if having[parent(place)] else None
        except OSError:  # reading the file reports the error
            return None
        if crc is None:
            return None
        found.append(crc)
    source, target = found
    return (source, target) if source.kind == target.kind else None


def _compare_contents(pair: FilePair, path: str, report: FilesCompared) -> None:
    wanted, found = map(_checksum, pair.both(path))
    if wanted != found and not _is_translated(pair, path, report):
        kind = "file content" if wanted and found else "file missing" if wanted else "file extra"
        _add(report, pair, kind, path, wanted, found)


def _checksum(place: str) -> str | None:
    """Returns None if the file no longer exists."""
    try:
        return checksum_at(place)[0]
    except FileNotFoundError:
        return None


def _add(report: FilesCompared, pair: FilePair, kind: str, path: str, wanted: str | None, found: str | None) -> None:
    report.differences.add(Difference(pair.name, kind, wanted, found, path))


def _bytes(state: FileState | None) -> str | None:
    return None if state is None else f"{state.size} bytes"


def recorded_size(parameters: Mapping[str, str]) -> int:
    text = parameters.get("totalSize", "")
    return int(text) if text.isdigit() else 0
