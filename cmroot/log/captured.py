"""The captured log: its segments, and writing the next one; consecutive and immutable.

A segment is `log/<first>-<last>/`; its content, and reading it, is in `segment`. It is written in
`log/<first>-writing/` and renamed when finished. A segment merged from others (see `compact`) replaces them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from cmroot.errors import FormatError
from cmroot.lease import Lease, acquire
from cmroot.log.part_writing import LinesWriter, ParquetWriter, PartsWriter, close_together
from cmroot.log.segment import (
    ADD,
    DICTIONARY,
    FILES,
    FORMAT,
    LINES,
    MARKER,
    PARQUET,
    RELEASE,
    REMOVE,
    SEGMENT_NAME,
    VERSION,
    Capture,
    PartsReader,
    Segment,
)
from cmroot.store.local import sync_directory
from cmroot.store.place import Place, join
from cmroot.store.spelling import naming

__all__ = [
    "ADD",
    "DICTIONARY",
    "FILES",
    "FILES_PART",
    "FORMAT",
    "MARKER",
    "RECORDS_PART",
    "RELEASE",
    "REMOVE",
    "VERSION",
    "Capture",
    "Segment",
    "SegmentWriter",
    "finished",
    "segments",
    "sweep_log",
]

RECORDS_PART = 256 * 1024 * 1024
FILES_PART = 4 * 1024 * 1024
"""A new part begins after this many bytes of lines before compression, or this many rows of file entries."""

COVERED_MARGIN = timedelta(hours=1)
"""How long merged segments remain next to their replacement: readers that listed them before may be running."""


def segments(root: str) -> list[Segment]:
    """Returns the finished segments in order, without those merged into another. Raises FormatError unless each begins
    where the one before ended."""
    found, _ = finished(root)
    for before, after in pairwise(found):
        if after.first != before.last + 1:
            raise FormatError(
                f"{join(root, 'log')}: positions {before.last + 1} to {after.first - 1} are missing"
                if after.first > before.last
                else f"{after.place}: overlaps {before.place}",
                hint="restore the segment from a copy of the root; until then consumers need a new bootstrap",
            )
    return found


def finished(root: str) -> tuple[list[Segment], list[tuple[Segment, Segment]]]:
    """Returns the finished segments by first position, unchecked, and pairs (merged segment, its replacement)."""
    found: list[Segment] = []
    covered: list[tuple[Segment, Segment]] = []
    for segment in sorted(_marked(root), key=lambda segment: (segment.first, -segment.last)):
        if found and segment.last <= found[-1].last and found[-1].covers(segment):
            covered.append((segment, found[-1]))
        else:
            found.append(segment)
    return found, covered


def _marked(root: str) -> Iterator[Segment]:
    """Yields every segment with a marker; one without is unfinished, and removed by the next writer."""
    log = Place(root) / "log"
    if log.local:
        names = [name for name in log.list() if SEGMENT_NAME.fullmatch(name)]
        names = [name for name in names if (log / name / MARKER).exists()]
    else:  # one listing of everything instead of a request for each segment
        below = (name.rpartition("/") for name in log.find())
        names = [above for above, _, name in below if name == MARKER]
    for name in names:
        if match := SEGMENT_NAME.fullmatch(name):
            yield Segment(str(log / name), int(match[1]), int(match[2]))


def sweep_log(root: str, lease: Lease | None = None, *, clock: Callable[[], float] = time.time) -> list[str]:
    """Removes unfinished segments, which were never visible to readers, and those merged into another more than an hour
    ago. Call under the lease, which is checked again before each removal. Returns their names.

    A segment without a marker whose positions precede the log's end and are in no other segment was finished once: it
    is retained, and `segments` reports the gap, until its marker is restored."""
    log = Place(root) / "log"
    names = log.list()  # before the finished ones are read: segments finished by others later are not among them
    found, covered = finished(root)
    staying = {segment.place for segment in found}
    for segment, by in covered:
        if by.merged_at is None or clock() - by.merged_at < COVERED_MARGIN.total_seconds():
            staying.add(segment.place)
        else:
            _ask(lease)
            (Place(segment.place) / MARKER).remove_own()  # first: now it is unfinished, not damaged
    swept = []
    for name in names:
        if str(log / name) not in staying and not _is_lost(name, found):
            _ask(lease)
            (log / name).remove_own_tree()
            swept.append(name)
    return swept


def _ask(lease: Lease | None) -> None:
    if lease is not None:
        lease.check()


def _is_lost(name: str, found: list[Segment]) -> bool:
    """Returns True if a directory without a marker has positions that are missing from the finished segments."""
    match = SEGMENT_NAME.fullmatch(name)
    if not match or not found:
        return False
    missing = int(match[1])
    for segment in found:
        if segment.first <= missing <= segment.last:
            missing = segment.last + 1
    return missing <= min(int(match[2]), found[-1].last)


class SegmentWriter:
    """A writer of the next segment, under the lease. Nothing is visible before `finish` returns; memory is constant.

    Records are appended in order of position. As a `with` block: an error aborts.
    """

    def __init__(
        self, root: str, first_position: int, *, over: Sequence[Segment] = (), lease: Lease | None = None
    ) -> None:
        """`over`: adjacent finished segments that this one replaces; see `finish_merged`. `lease`: the writer's; if
        given, nothing is published after it was lost, and LeaseHeld is raised."""
        before = segments(root)
        if not over and before and before[-1].last + 1 != first_position:
            raise FormatError(
                f"{root}: the log ends at position {before[-1].last}, a segment cannot begin at {first_position}",
                hint="another process has written to the log: read it again",
            )
        self._root = root
        self._over = over
        self._first = first_position
        self._lease = lease
        # On object stores two writers may be running for a while, one of which has lost the lease: use distinct names.
        self._own = f"-{lease.epoch}" if lease is not None and not Place(root).local else ""
        self._place = Place(root) / "log" / f"{first_position:020d}-writing{self._own}"
        self._place.remove_own_tree()
        self._place.mkdirs()
        self._writer = PartsWriter(str(self._place))
        self._records: LinesWriter | None = None
        self._records_bytes = 0
        self._records_parts = 0
        self._files: ParquetWriter | None = None
        self._files_parts = 0
        self._done = False

    def append_record(self, line: bytes) -> None:
        """Appends one JSON record with a key `position`; it must contain no line end."""
        if self._records is None:
            self._records = self._writer.lines(f"records-{self._records_parts:05d}{self._own}.jsonl.gz")
            self._records_parts += 1
        self._records.write(line)
        self._records_bytes += len(line)
        if self._records_bytes >= RECORDS_PART:
            self._records.close()
            self._records, self._records_bytes = None, 0

    def append_files(self, table: Any) -> None:
        """Appends file entries: an Arrow table with columns of FILES; missing columns are null."""
        if self._files is None:
            self._files = self._writer.parquet(self._next_files(), FILES, DICTIONARY)
        self._files.write(table)
        if self._files.rows >= FILES_PART:
            self._files.close()
            self._files = None

    def _next_files(self) -> str:
        self._files_parts += 1
        return f"files-{self._files_parts - 1:05d}{self._own}.parquet"

    def finish(self, last_position: int, **metadata: Any) -> Segment:
        """Publishes the segment: parts durable, retained bytes durable, marker, then the name that readers look for."""
        if last_position < self._first:
            raise FormatError(f"{self._place}: ends at {last_position}, before it begins", hint="report this as a bug")
        self._close_parts()
        if self._place.local:
            self._place.sync()  # links in files/ that these records refer to
        return self._finish(last_position, {"about": metadata}, lambda: None)

    def finish_merged(self, merged_at: int, before_publishing: Callable[[], None]) -> Segment:
        """Publishes in place of the segments `over`, after reading back. From then on readers prefer it to those.

        `merged_at`: now, in seconds since the epoch. Raises FormatError when rows are missing."""
        self._close_parts()
        wanted = (sum(each.record_count for each in self._over), sum(each.file_count for each in self._over))
        found = {kind: sum(part.rows for part in self._writer.parts if part.kind == kind) for kind in (LINES, PARQUET)}
        if (found[LINES], found[PARQUET]) != wanted:
            raise FormatError(f"{self._place}: has {found}, of {wanted} rows", hint="report this as a bug")
        metadata = {
            "about": self._over[-1].metadata,
            "captures": [msgspec.to_builtins(capture) for segment in self._over for capture in segment.captures],
            "merged_at": merged_at,
        }

        def check() -> None:
            PartsReader(str(self._place), MARKER, format=FORMAT, version=VERSION).verify()
            before_publishing()

        return self._finish(self._over[-1].last, metadata, check)

    def _close_parts(self) -> None:
        close_together([part for part in (self._records, self._files) if part is not None])

    def _finish(self, last: int, metadata: dict[str, Any], before_publishing: Callable[[], None]) -> Segment:
        self._writer.finish(MARKER, {"first": self._first, "last": last, **metadata}, format=FORMAT, version=VERSION)
        before_publishing()
        final = self._place.parent / f"{self._first:020d}-{last:020d}"
        self._publish(final)
        self._done = True
        return Segment(str(final), self._first, last)

    def _publish(self, final: Place) -> None:
        """Publishes by one rename on a local root. On object stores part by part, the marker last, because parts
        without one are ignored; under a lease, by the write that is refused after a take-over."""
        _ask(self._lease)
        if final.local:
            with naming(final.local):
                os.rename(self._place.local, final.local)
                sync_directory(final.parent.local)
            return
        if self._lease is None:
            final.remove_own_tree()  # part of an attempt that ended here in a crash
        for part in self._writer.parts:
            (self._place / part.name).move(final / part.name)
        if self._lease is None:
            (self._place / MARKER).move(final / MARKER)
        else:
            marker = (self._place / MARKER).read_bytes()
            self._lease.publish(f"log/{final.name}/{MARKER}", marker)
        self._place.remove_own_tree()

    def abort(self) -> None:
        """Removes everything written. May run twice; does nothing after `finish`."""
        if self._done:
            return
        for part in (self._records, self._files):
            if part is not None:
                part.abort()
        self._place.remove_own_tree()
        self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()


# ---- compact ---------------------------------------------------------------------------------------------------------
# Compaction: merges runs of small segments of the captured log into one each, with the same content.
#
# A warehouse that is captured every ten seconds has thousands of segments a day. Merging retains each record, file
# entry and position, in order, and the metadata of each capture. The merged segment is written to a staging file and
# published by one rename; from then on readers prefer it, and the segments it covers are removed by a later sweep
# (`cmroot.log.captured.sweep_log`).


LINES_BYTES = RECORDS_PART // 8
"""The target size of a merged segment, in compressed bytes of records: records shrink to about an eighth."""

CAPTURES = 10_000
"""The maximum number of captures in one merged segment: its marker lists them, and every reader reads the marker."""

FAN = 4
"""A segment more than this many times as heavy as all that follow it in its run is not rewritten for them. So each
record is rewritten a few times in total, not with every compaction."""


@dataclass(frozen=True)
class MergeGroup:
    """Adjacent segments that are merged into one."""

    segments: tuple[Segment, ...]

    @property
    def first(self) -> int:
        return self.segments[0].first

    @property
    def last(self) -> int:
        return self.segments[-1].last


@dataclass
class Compacted:
    """The result of a compaction: finished segments before and after, and the content of the merged ones.
    `bytes_before` and `bytes_after` are those of the merged segments' parts; old segments are removed an hour later."""

    status: str
    root: str
    runs: int = 0
    merged: int = 0
    segments_before: int = 0
    segments_after: int = 0
    records: int = 0
    files: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    swept: list[str] = field(default_factory=list)
    seconds: float = 0.0


def plan_compaction(log: Sequence[Segment]) -> list[MergeGroup]:
    """Returns the groups of segments to merge, each up to the size of a segment's parts. `log`: in order, no gaps."""
    runs: list[MergeGroup] = []
    run: list[tuple[float, Segment]] = []
    for segment in log:
        weight = _weight(segment)
        if run and sum(each for each, _ in run) + weight > 1:
            runs += _worth_it(run)
            run = []
        run.append((weight, segment))
    return runs + _worth_it(run)


def _weight(segment: Segment) -> float:
    """Returns the size of a segment as a fraction of a full one; from 1 on it is not merged."""
    size = sum(part.size for part in segment.parts if part.kind == LINES)
    return max(size / LINES_BYTES, segment.file_count / FILES_PART, len(segment.captures) / CAPTURES)


def _worth_it(run: Sequence[tuple[float, Segment]]) -> list[MergeGroup]:
    start = 0
    while start < len(run) - 1 and run[start][0] > FAN * sum(weight for weight, _ in run[start + 1 :]):
        start += 1
    rest = tuple(segment for _, segment in run[start:])
    return [MergeGroup(rest)] if len(rest) > 1 else []


def compact(
    root: str, *, clock: Callable[[], float] = time.time, take_lease: Callable[[str, str], Lease] = acquire
) -> Compacted:
    """Merges the groups of `plan_compaction`. May run during captures, dumps and reads, and again after a crash.

    The lease is held for one group of segments at a time: a capture waits seconds, not minutes. Raises LeaseHeld when
    another run holds it, FormatError naming a damaged segment; groups merged before that remain merged."""
    began = time.monotonic()
    with take_lease(root, "compact") as lease:
        swept = sweep_log(root, lease, clock=clock)  # also files of a killed compaction
    log = segments(root)
    report = Compacted("compacted", root, segments_before=len(log), swept=swept)
    for run in plan_compaction(log):
        with take_lease(root, "compact") as lease:
            if not set(run.segments) <= set(segments(root)):  # another compaction has changed the log
                continue
            _add(report, run, merge(root, run, lease, clock=clock))
    report.segments_after = len(segments(root))
    report.seconds = round(time.monotonic() - began, 3)
    return report


def merge(root: str, run: MergeGroup, lease: Lease, *, clock: Callable[[], float] = time.time) -> Segment:
    """Writes the merged segment of a group, reads it back, publishes it. Streams; requires the lease. Raises
    FormatError when a segment of the group is damaged, and leaves everything unchanged."""
    for segment in run.segments:
        segment.verify()
    with SegmentWriter(root, run.first, over=run.segments, lease=lease) as writer:
        for segment in run.segments:
            for line in segment.records():
                writer.append_record(line)
            for batch in segment.file_batches():
                writer.append_files(pa.Table.from_batches([batch]))
        return writer.finish_merged(int(clock()), before_publishing=lease.check)


def _add(report: Compacted, run: MergeGroup, merged: Segment) -> None:
    report.runs += 1
    report.merged += len(run.segments)
    report.records += merged.record_count
    report.files += merged.file_count
    report.bytes_before += _bytes(run.segments)
    report.bytes_after += _bytes([merged])


def _bytes(some: Iterable[Segment]) -> int:
    return sum(part.size for segment in some for part in segment.parts)
