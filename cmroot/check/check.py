"""The check of a whole root: what is looked at, in which order.

The work runs on an engine; the driver holds numbers and the first findings.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cmroot.check.entries import PrefixTask, check_prefix, foreign
from cmroot.check.finding import DAMAGE, FINDINGS, RootFinding, RootFindings
from cmroot.check.leftovers import leftovers
from cmroot.check.required_contents import Workers, check_needed
from cmroot.check.segments import check_segment
from cmroot.errors import FormatError
from cmroot.log.captured import Segment, finished, segments
from cmroot.pins import Pins, read_pins
from cmroot.store.entries import PREFIXES
from cmroot.store.place import Place, join


@dataclass
class Checked:
    """What was looked at and what was found. `status`: sound, or damaged when a finding is damage; leftovers and
    strange names are none. `counts`: findings by kind, all of them; `findings`: the gravest first, as many as asked
    for. `references_checked`: False where the log is damaged, so that nobody can say what is needed."""

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
    """Look at everything of a root. `bytes`: read every entry, not only names and sizes. `limit`: findings reported.

    Takes no lease: a run at work may have files in `incoming/`. Raises Superseded when the log was compacted
    meanwhile."""
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
    """The log, when all of it can be believed."""
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
        found.add(RootFinding("pin", path, "cannot be understood, so nothing can expire", repair))
    return pins
