"""Compaction: runs of small segments of the captured log become one each, and say the same.

A warehouse that is captured every ten seconds has thousands of segments a day. Merging keeps each record, file entry
and position, in order, and what each capture said of itself. The merged segment is written to a staging file and
published by one rename; from then on readers prefer it, and those it covers go with a later sweep
(`cmroot.log.captured.sweep_log`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from cmroot.lease import Lease, acquire
from cmroot.log.captured import FILES_PART, RECORDS_PART, Segment, SegmentWriter, segments, sweep_log
from cmroot.log.parts import LINES

LINES_BYTES = RECORDS_PART // 8
"""Compressed bytes of records that a merged segment aims at: records shrink to about an eighth."""

CAPTURES = 10_000
"""Captures in one merged segment at most: its marker lists them, and every reader reads the marker."""

FAN = 4
"""A segment more than this many times as heavy as all that follow it in its run is not written again for them. So each
record is rewritten a few times in its life, not with every compaction."""


@dataclass(frozen=True)
class MergeGroup:
    """Adjacent segments that become one."""

    segments: tuple[Segment, ...]

    @property
    def first(self) -> int:
        return self.segments[0].first

    @property
    def last(self) -> int:
        return self.segments[-1].last


@dataclass
class Compacted:
    """What a compaction did: finished segments before and after, and what went into merged ones. `bytes_before` and
    `bytes_after` are those of the merged segments' parts; the old ones are removed an hour later."""

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
    """Which segments of a log (in order, without gap) become one, each run up to the size of a segment's parts."""
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
    """How much of a full segment this one is; 1 and more stays alone."""
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
    """Merge what `plan_compaction` says. May run beside captures, dumps and readers, and again after a crash.

    The lease is held for one run of segments at a time: a capture waits seconds, not minutes. Raises LeaseHeld when
    another run has it, FormatError naming a damaged segment; what was merged until then stays merged."""
    began = time.monotonic()
    with take_lease(root, "compact") as lease:
        swept = sweep_log(root, lease, clock=clock)  # also what a killed compaction left where the next one publishes
    log = segments(root)
    report = Compacted("compacted", root, segments_before=len(log), swept=swept)
    for run in plan_compaction(log):
        with take_lease(root, "compact") as lease:
            if not set(run.segments) <= set(segments(root)):  # another compaction has been here
                continue
            _add(report, run, merge(root, run, lease, clock=clock))
    report.segments_after = len(segments(root))
    report.seconds = round(time.monotonic() - began, 3)
    return report


def merge(root: str, run: MergeGroup, lease: Lease, *, clock: Callable[[], float] = time.time) -> Segment:
    """Write the one segment of a run, read it back, publish it. Streams; needs the lease. Raises FormatError when one
    of the run is damaged, and leaves all as it was."""
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
