"""Checking a segment of the captured log: its parts against the marker, the order of its positions. Reads only."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from cmroot.check.finding import RootFinding
from cmroot.errors import UNREADABLE, FormatError, Superseded
from cmroot.log.captured import Segment


class SegmentChecked(msgspec.Struct, frozen=True):
    """Records and file entries of a segment, or what is wrong with it."""

    records: int = 0
    files: int = 0
    finding: RootFinding | None = None


def check_segment(segment: Segment) -> SegmentChecked:
    """Reads all of it. Of one that was merged into another meanwhile there is nothing to say."""
    try:
        segment.verify()
        wrong = _wrong_positions(segment)
        if not wrong:
            return SegmentChecked(segment.record_count, segment.file_count)
    except Superseded:
        return SegmentChecked()
    except FormatError as error:
        wrong = error.message
    repair = "restore it from a copy of the root; until then consumers that need it must bootstrap"
    return SegmentChecked(finding=RootFinding("segment", segment.place, wrong, repair))


class _Positioned(msgspec.Struct, frozen=True):
    position: int


def _wrong_positions(segment: Segment) -> str:
    captures = segment.captures
    if (captures[0].first, captures[-1].last) != (segment.first, segment.last) or any(
        after.first != before.last + 1 for before, after in pairwise(captures)
    ):
        return "its marker's captures leave out positions"
    decoder = msgspec.json.Decoder(_Positioned)
    last = segment.first - 1
    for line in segment.records():
        try:
            position = decoder.decode(line).position
        except UNREADABLE as error:
            return f"the record after position {last} cannot be read: {error}"
        if position <= last or position > segment.last:
            return f"position {position} stands after {last}"
        last = position
    return ""
