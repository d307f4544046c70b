"""Files of the past: found in the captured log by path, table or checksum, with the events between which the source had
them; and restoring one of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cmroot.errors import KeepError
from cmroot.keep.content import LIMIT, Findings, Query, Reference, find
from cmroot.keep.restore import restore_file
from cmroot.log.captured import Segment, segments
from cmroot.root import ChangeRoot
from cmroot.store.checksum import ALGORITHM
from cmroot.store.listing import list_entries
from cmroot.store.place import normal
from replicator.core.not_replicated import Report, Rows
from replicator.errors import UsageError
from replicator.replay.restore.kept import events_at
from replicator.replay.restore.pins import resolve_at


@dataclass
class FoundList(Rows):
    """Matching files of the log, the newest: the events since and until which the source had them, and if their bytes
    are retained now. `total` is a lower bound."""

    status: str
    root: str
    total: int
    entries: list[dict[str, Any]]
    listed: ClassVar[str] = "entries"
    columns: ClassVar[Sequence[str]] = (
        *("path", "db", "table", "partition", "size", "checksum", "version", "kept"),
        *("since_position", "since_event", "since_time", "ended_position", "ended_event", "ended_time"),
    )


def find_files(
    root: ChangeRoot, *, path: str = "", table: str = "", checksum: str = "", limit: int = LIMIT
) -> FoundList:
    """Finds files that the source had at some time: by path (or a directory above), table and checksum; all criteria
    must match. Raises UsageError without criteria."""
    if not (path or table or checksum):
        raise UsageError("find what?", hint="give --path, --table or --checksum")
    log = segments(root.place)
    findings = find(root.place, log, Query(path, table, checksum), limit=limit)
    return FoundList(
        "found" if findings.total else "nothing found", root.place, findings.total, _reported(log, findings)
    )


def _reported(log: Sequence[Segment], findings: Findings) -> list[dict[str, Any]]:
    positions = {each.since for each in findings.references}
    positions |= {each.ended for each in findings.references if each.ended is not None}
    records = events_at(log, positions)
    nothing = (None, None)
    entries = []
    for each in findings.references:
        since, ended = records.get(each.since, nothing), records.get(each.ended or -1, nothing)
        entries.append(
            {
                "path": each.place,
                "db": each.db,
                "table": each.table,
                "partition": each.partition,
                "size": each.size,
                "checksum": each.checksum,
                "version": each.version,
                "kept": each.kept,
                "since_position": each.since,
                "since_event": since[0],
                "since_time": since[1],
                "ended_position": each.ended,
                "ended_event": ended[0],
                "ended_time": ended[1],
            }
        )
    return entries


# Restoring one file


@dataclass
class PutBack(Report):
    """A restored file: its path, and the source of its bytes."""

    status: str
    place: str
    origin: str
    size: int
    checksum: str


_Content = tuple[str | None, int | None]
_CHECKSUM = re.compile(rf"(?:{ALGORITHM}-)?([0-9a-fA-F]{{6,32}})(?:-(\d+))?")


def put_back(
    root: ChangeRoot, what: str, to: str | None = None, *, at: str | None = None, overwrite: bool = False
) -> PutBack:
    """Restores one retained file. what: the path of a file, or a checksum (its first six digits or more, or a content
    name). to: its new path; default: its old path. at: its state at an event or a time.

    Raises UsageError if several contents match, KeepError if none matches or its bytes are not retained; otherwise as
    `cmroot.keep.restore.restore_file`. May run twice."""
    log = segments(root.place)
    match = _CHECKSUM.fullmatch(what)
    references = _candidates(root.place, log, what, match is not None)
    if at is not None:
        position = resolve_at(root, log, at).position
        references = [
            each for each in references if each.since <= position and (each.ended is None or position < each.ended)
        ]
    contents: dict[_Content, Reference | None] = {(each.checksum, each.size): each for each in references}
    if not contents and match and at is None:
        contents = _unreferenced(root.place, match[1].lower(), match[2])
    if not contents:
        moment = f" at {at}" if at else ""
        hint = "`replicator cm find` lists what there was"
        raise KeepError(f"{what}: no capture has read such a file{moment}", hint=hint)
    if len(contents) > 1:
        raise _several(what, references)
    (((checksum, size), reference),) = contents.items()
    assert checksum is not None and size is not None
    place = to or (reference.place if reference else None)
    if place is None:
        raise UsageError(f"{what}: where it was is not known", hint="say where it goes: --to PLACE")
    version = (reference.place, reference.version) if reference and reference.version else None
    done = restore_file(root.place, checksum, size, place, overwrite=overwrite, version=version)
    return PutBack("restored", done.place, done.origin, done.size, done.checksum)


def _candidates(root: str, log: Sequence[Segment], what: str, by_checksum: bool) -> list[Reference]:
    if by_checksum:
        found = find(root, log, Query(checksum=what)).references
        size = _CHECKSUM.fullmatch(what)[2]  # type: ignore[index]
        return [each for each in found if size is None or each.size == int(size)]
    found = find(root, log, Query(path=what)).references
    return [each for each in found if each.checksum and each.size is not None and normal(each.place) == normal(what)]


def _unreferenced(root: str, digits: str, size: str | None) -> dict[_Content, Reference | None]:
    """Returns entries that no record names, such as files that a load replaced."""
    entries = list_entries(root, digits[:2]).entries
    pairs = zip(entries["checksum"].to_pylist(), entries["size"].to_pylist(), strict=True)
    return {pair: None for pair in pairs if pair[0].startswith(digits) and size in (None, str(pair[1]))}


def _several(what: str, references: Sequence[Reference]) -> UsageError:
    lines = [f"{each.checksum} ({each.size} bytes, position {each.since} on)" for each in references[-10:]]
    return UsageError(
        f"{what}: is {len({each.checksum for each in references})} different contents",
        hint=f"say which by --at or by checksum: {'; '.join(lines)}",
    )
