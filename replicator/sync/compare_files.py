"""Comparing files: what an engine runs, on executors too. Lists both sides of objects and compares by relative path.

It knows no metastore and returns counts and differences only: no list of files ever reaches the driver.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from cmroot.checksum import checksum_file, checksum_stream
from cmroot.listing import FileState, list_tree
from cmroot.place import is_local, join, local_path, store_for
from replicator.sync.differences import Difference, Differences

SIZE = "size"
CHECKSUM = "checksum"


@dataclass(frozen=True)
class FilePair:
    """A table or partition that holds files, by the source's name, and where they lie on either side. `size`: bytes, as
    far as the metastore knows."""

    name: str
    source: str
    target: str
    size: int = 0


@dataclass(frozen=True)
class FileTask:
    """Objects to compare. Contents of those with more than `largest` bytes are put off; a task with `shares` reads the
    contents of every file whose path falls into `share`, and nothing else. `part`: (number, of how many) of each
    object's contents that are to be read at all."""

    pairs: Sequence[FilePair]
    level: str
    largest: int
    share: int = 0
    shares: int = 0
    part: tuple[int, int] = (0, 1)


@dataclass
class FilesCompared:
    """Files and bytes compared, what differs, and the objects put off with their (files, bytes)."""

    files: int = 0
    bytes: int = 0
    objects: int = 0
    differences: Differences = field(default_factory=Differences)
    later: list[tuple[FilePair, int, int]] = field(default_factory=list)


def compare_files(task: FileTask) -> FilesCompared:
    """Reads only, so it may run twice. A file that vanishes meanwhile is reported as missing on its side."""
    report = FilesCompared()
    for pair in task.pairs:
        _compare(pair, task, report)
        report.objects += 1
    return report


def _compare(pair: FilePair, task: FileTask, report: FilesCompared) -> None:
    source, target = _files(pair.source), _files(pair.target)
    alike = [path for path, state in source.items() if path in target and target[path].size == state.size]
    part, parts = task.part
    if parts > 1:  # other bits of the digest than for shares
        alike = [path for path in alike if (_digest(path) >> 32) % parts == part]
    if task.shares:
        for path in alike:
            if _digest(path) % task.shares == task.share:
                _compare_contents(pair, path, report)
        return
    _compare_names(pair, source, target, report)
    if task.level != CHECKSUM:
        return
    total = sum(source[path].size for path in alike)
    if total > task.largest and len(alike) > 1:
        report.later.append((pair, len(alike), total))
        return
    for path in alike:
        _compare_contents(pair, path, report)


def _digest(path: str) -> int:
    return xxhash.xxh3_64_intdigest(os.fsencode(path))


def _files(location: str) -> dict[str, FileState]:
    """By relative path; a location without a directory has none."""
    listing = list_tree(location)
    return {file.path_relative: file for file in listing.files} if listing else {}


def _compare_names(
    pair: FilePair, source: dict[str, FileState], target: dict[str, FileState], report: FilesCompared
) -> None:
    for path in sorted(source.keys() | target.keys()):
        wanted, found = source.get(path), target.get(path)
        report.files += 1
        report.bytes += wanted.size if wanted else 0
        if found is None:
            _add(report, pair, "file missing", path, _bytes(wanted), None)
        elif wanted is None:
            _add(report, pair, "file extra", path, None, _bytes(found))
        elif wanted.size != found.size:
            _add(report, pair, "file size", path, _bytes(wanted), _bytes(found))


def _compare_contents(pair: FilePair, path: str, report: FilesCompared) -> None:
    wanted, found = _checksum(join(pair.source, path)), _checksum(join(pair.target, path))
    if wanted != found:
        kind = "file content" if wanted and found else "file missing" if wanted else "file extra"
        _add(report, pair, kind, path, wanted, found)


def _checksum(place: str) -> str | None:
    """None when the file is gone."""
    try:
        if is_local(place):
            return checksum_file(local_path(place))[0]
        with store_for(place).open_read(place) as file:
            return checksum_stream(file)[0]
    except FileNotFoundError:
        return None


def _add(report: FilesCompared, pair: FilePair, kind: str, path: str, wanted: str | None, found: str | None) -> None:
    report.differences.add(Difference(pair.name, kind, wanted, found, path))


def _bytes(state: FileState | None) -> str | None:
    return None if state is None else f"{state.size} bytes"
