"""Checks of a root: retained files against their names, the log against its markers, required contents.

The checks run on an engine, in a fixed order; the driver holds counts and the first findings.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from cmroot.errors import UNREADABLE, FormatError, Superseded
from cmroot.keep.content import content_name, locate
from cmroot.log.captured import Segment, finished, segments
from cmroot.pins import Pins, read_pins
from cmroot.required_contents import DAMAGE, FINDINGS, RootFinding, RootFindings, Workers, check_needed
from cmroot.store.checksum import checksum_at
from cmroot.store.place import Place, join
from cmroot.store.retained_entries import PREFIXES, content_of, list_entries

__all__ = ["DAMAGE", "Checked", "RootFinding", "Workers", "check"]


# ---- entries ---------------------------------------------------------------------------------------------------------
# Checking the entries of `files/`: that the content of each matches its name. One task per prefix; reads only.


SHOWN = 100
"""The maximum number of damaged entries of one prefix that are listed individually."""


@dataclass(frozen=True)
class PrefixTask:
    """The entries of one of the 256 directories; `bytes`: reads them, not only their sizes."""

    root: str
    prefix: str
    bytes: bool


@dataclass
class PrefixChecked:
    """Entries and bytes as reported by the store, bytes read, findings; `damaged`: by the content in the name."""

    entries: int
    bytes: int = 0
    bytes_read: int = 0
    findings: list[RootFinding] = field(default_factory=list)
    damaged: list[tuple[tuple[str, int], RootFinding]] = field(default_factory=list)
    damaged_count: int = 0


def check_prefix(task: PrefixTask) -> PrefixChecked:
    """Checks the entries of one prefix. May run twice; entries removed concurrently are left out."""
    listed = list_entries(task.root, task.prefix)
    report = PrefixChecked(listed.entries.num_rows)
    columns = (listed.entries[name].to_pylist() for name in ("checksum", "size", "bytes"))
    for checksum, size, there in zip(*columns, strict=True):
        report.bytes += there
        place = locate(task.root, checksum, size)
        try:
            holds = (checksum, size) if there == size and not task.bytes else checksum_at(place)
        except FileNotFoundError:  # expired concurrently
            continue
        except OSError as error:
            repair = "check the disk for errors, then check the root again"
            report.findings.append(RootFinding("unreadable", place, str(error), repair))
            continue
        report.bytes_read += holds[1] if task.bytes or there != size else 0
        if holds != (checksum, size):
            report.damaged_count += 1
            if len(report.damaged) < SHOWN:
                report.damaged.append(((checksum, size), _damaged(place, holds)))
    if listed.unknown:
        report.findings += _strange(task.root, task.prefix)
    return report


def _damaged(place: str, holds: tuple[str, int]) -> RootFinding:
    return RootFinding(
        "damaged",
        place,
        f"holds {holds[1]} bytes with xxh3_128 {holds[0]}",
        f"rename it after its content: {content_name(*holds)}",
    )


def _strange(root: str, prefix: str) -> Iterator[RootFinding]:
    """Yields findings for names that do not belong in this directory, up to the limit."""
    directory = join(root, "files", prefix)
    reported = 0
    for name in Place(directory).list():
        content = content_of(name)
        if name.startswith(".") or (content and content[0][:2] == prefix) or reported == SHOWN:
            continue
        reported += 1
        if content is None:
            yield RootFinding("stray", join(directory, name), "is not a content name", "nothing reads it: move it away")
        else:
            repair = f"move it to {locate(root, *content)}"
            yield RootFinding(
                "misplaced", join(directory, name), "is in a directory where no reader looks for it", repair
            )


def foreign(root: str, names: Iterable[str]) -> Iterator[RootFinding]:
    """Yields findings for names directly in `files/` that are not one of the 256 directories."""
    for name in names:
        if name not in PREFIXES and not name.startswith("."):
            yield RootFinding("stray", join(root, "files", name), "is not a directory of kept files", "move it away")


# ---- segments --------------------------------------------------------------------------------------------------------
# Checking a segment of the captured log: its parts against the marker, the order of its positions. Reads only.


class SegmentChecked(msgspec.Struct, frozen=True):
    """Records and file entries of a segment, or what is wrong with it."""

    records: int = 0
    files: int = 0
    finding: RootFinding | None = None


def check_segment(segment: Segment) -> SegmentChecked:
    """Reads the entire segment. Returns an empty result for one that was merged into another concurrently."""
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
        return "the captures in its marker leave out positions"
    decoder = msgspec.json.Decoder(_Positioned)
    last = segment.first - 1
    for line in segment.records():
        try:
            position = decoder.decode(line).position
        except UNREADABLE as error:
            return f"the record after position {last} cannot be read: {error}"
        if position <= last or position > segment.last:
            return f"position {position} follows position {last}"
        last = position
    return ""


# ---- leftovers -------------------------------------------------------------------------------------------------------
# Leftovers of interrupted runs. They are not damage; each is removed by a later run.


_LEFT = (
    ("incoming", "copy-", "part of a copy", "the next capture removes it"),
    ("incoming", "probe-", "a probe for links", "the next capture removes it"),
    ("incoming", "recycle-", "files that were being moved into the root", "the next capture stores them"),
    ("incoming", "damaged-", "a kept file that was being renamed", "the next capture stores it by its content"),
    ("recycling", "", "files that were being moved into the root", "the next capture stores them"),
    ("taking", "", "an intercept whose outcome is unknown", "its gateway resolves it when it starts"),
    ("taken", "", "files that were intercepted before an event", "the capture that reads the event records them"),
    ("expiring", "", "a plan of an expiry", "the next expiry discards it"),
)


def leftovers(root: str) -> Iterator[RootFinding]:
    """Yields findings for files left by interrupted runs, or in use by running ones."""
    for directory, beginning, what, then in _LEFT:
        above = Place(root) / directory
        for name in above.list():
            if name.startswith(beginning) and not name.endswith(".origin"):
                yield RootFinding("leftover", str(above / name), f"{what}, of a killed or a running process", then)
    there, covered = finished(root)
    known = {segment.place for segment in (*there, *(segment for segment, _ in covered))}
    log = Place(root) / "log"
    for name in log.list():
        if (place := str(log / name)) not in known:
            yield RootFinding(
                "leftover",
                place,
                "an unfinished segment, of a killed or a running process",
                "the next capture removes it",
            )


# ---- check -----------------------------------------------------------------------------------------------------------


@dataclass
class Checked:
    """The result of a check. `status`: sound, or damaged when a finding is damage; leftovers and strange names are not.
    `counts`: findings by kind, all of them; `findings`: the most severe first, up to the limit. `references_checked`:
    False where the log is damaged, so that the required contents are unknown."""

    status: str
    root: str
    entries: int = 0
    bytes: int = 0
    bytes_read: int = 0
    versions: int = 0
    segments: int = 0
    records: int = 0
    files: int = 0
    pins: int = 0
    references_checked: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def check(root: str, engine: Workers, *, bytes: bool = True, limit: int = FINDINGS) -> Checked:
    """Checks everything in a root. `bytes`: reads every entry, not only names and sizes. `limit`: findings reported.

    Takes no lease: a running run may have files in `incoming/`. Raises Superseded when the log was compacted
    concurrently."""
    began = time.monotonic()
    report, found = Checked("sound", root), RootFindings(limit)
    log = _check_log(root, engine, report, found)
    _check_entries(root, engine, report, found, bytes)
    pins = _check_pins(root, report, found)
    if log is None:
        report.references_checked = False
    else:
        report.versions = check_needed(root, log, pins, engine, found, ask_buckets=bytes)
    for finding in leftovers(root):
        found.add(finding)
    for right, stays in Place(root).lacking_rights():
        found.add(RootFinding("right", root, f"this user lacks {right}: {stays}", f"allow {right} on its bucket"))
    report.counts = found.counts
    report.status = "damaged" if DAMAGE & report.counts.keys() else "sound"
    report.findings = [msgspec.to_builtins(finding) for finding in found.reported()]
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _check_log(root: str, engine: Workers, report: Checked, found: RootFindings) -> list[Segment] | None:
    """Returns the log, if all of it is valid."""
    sound = True
    try:
        segments(root)
    except FormatError as error:
        found.add(RootFinding("log", join(root, "log"), error.message, error.hint))
        sound = False
    there, _ = finished(root)
    for each in engine.run(check_segment, there):
        report.segments += 1
        report.records += each.records
        report.files += each.files
        if each.finding is not None:
            found.add(each.finding)
            sound = False
    return there if sound else None


def _check_entries(root: str, engine: Workers, report: Checked, found: RootFindings, bytes: bool) -> None:
    names = (Place(root) / "files").list()
    for finding in foreign(root, names):
        found.add(finding)
    there = sorted(set(PREFIXES) & set(names))
    for each in engine.run(check_prefix, (PrefixTask(root, prefix, bytes) for prefix in there)):
        report.entries += each.entries
        report.bytes += each.bytes
        report.bytes_read += each.bytes_read
        for finding in each.findings:
            found.add(finding)
        for content, finding in each.damaged:
            found.add_damaged(content, finding)
        found.add_untold("damaged", each.damaged_count - len(each.damaged))


def _check_pins(root: str, report: Checked, found: RootFindings) -> Pins:
    pins = read_pins(root)
    report.pins = len(pins.slots) + len(pins.holds) + len(pins.dumps)
    repair = "restore it from a copy of the root, or drop the pin by its name if it is not needed"
    for path in pins.damaged:
        found.add(RootFinding("pin", path, "cannot be read, so nothing can expire", repair))
    return pins
