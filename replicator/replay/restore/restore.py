"""Restore: a database, its tables, or one file, as at an event or a time, from the captured log and `$cmroot`.

A bootstrap dump of that state is loaded under another name, so all guarantees of a load apply here, too. Every file of
the state is looked for before the target is changed. Bytes are copied, never shared with the live table, and the result
is a plain database, not a replica.
Section `files` finds single ones in the log by path, table or checksum, with the events between which the source had
them.
"""

from __future__ import annotations

import os
import re
import time as clocks
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from cmroot.errors import KeepError
from cmroot.keep.content import LIMIT, Findings, Query, Reference, find
from cmroot.keep.versions import restore_file
from cmroot.log.captured import Segment, segments
from cmroot.root import ChangeRoot
from cmroot.store.checksum import ALGORITHM
from cmroot.store.place import is_local, local_path, normal
from cmroot.store.retained_entries import list_entries
from replicator.core.model import Database
from replicator.core.not_replicated import INCOMPLETE, CopyCounts, NotReplicated, Report, Rows
from replicator.core.roles import after_restore, mark_of
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import FilesMissing, ObjectExists, Refused, UsageError
from replicator.metastore.client import Metastore
from replicator.replay.apply.load import load
from replicator.replay.placement import uri
from replicator.replay.replica import RESTORING, own_parameters
from replicator.replay.restore.kept import resolve_at
from replicator.replay.restore.plan import DecidedRestore, RestoreSettings, planned
from replicator.replay.restore.recovery_points import events_at, moment_text


@dataclass
class Restored(CopyCounts):
    """The result of a restore. `event`, `position`, `time`: the recovery point; `states`, `states_from`, `moments`:
    as of a RestorePlan; `partitions`: the restored ones, if
    only some were; `files`, `bytes`: of the state; `dropped`: tables of an existing database that the state did not
    have; `missing`: the first of `files_missing` files that exist nowhere; `not_replicated`: tables that were not
    restored, and objects that were restored without files, because no capture read them."""

    before: ClassVar[str] = "files_missing"
    db: str
    into: str
    target: str
    event: int
    position: int
    time: str
    status: str = "restored"
    tables: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    files_missing: int = 0
    bytes_missing: int = 0
    missing: list[dict[str, Any]] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    states: int = 1
    states_from: int = 0
    moments: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def carry_out(plan: DecidedRestore, target: Metastore, runtime: Runtime) -> Restored:
    """Executes a plan. A restore that was killed is run again.

    Raises FilesMissing before any change if bytes exist nowhere (unless that is allowed), otherwise as a load."""
    began = clocks.monotonic()
    missing, metadata = plan.available.missing, plan.reader.metadata
    if missing.files and not plan.options.allow_missing:
        raise _files_missing(plan)
    _begin(plan, target)
    loaded = load(plan.reader.place, target, plan.options, runtime)
    _make_plain(plan, target)
    report = Restored(
        db=metadata.scope.databases[0],
        into=plan.into,
        target=target.uri,
        event=plan.point.event,
        position=plan.point.position,
        time=moment_text(plan.point),
        status=INCOMPLETE if missing.files or loaded.not_replicated or plan.unread else "restored",
        tables=plan.tables,
        partitions=plan.partitions,
        not_replicated=[*loaded.not_replicated, *plan.unread],
        files=metadata.files,
        bytes=metadata.bytes,
        files_missing=missing.files,
        bytes_missing=missing.bytes,
        missing=plan.available.named,
        dropped=plan.dropped,
        warnings=plan.warnings + loaded.warnings,
        states=plan.covered.number,
        states_from=plan.covered.first,
        moments=plan.moments,
        seconds=round(clocks.monotonic() - began, 3),
    )
    report.count(loaded)
    return report


def _files_missing(plan: DecidedRestore) -> FilesMissing:
    missing, first = plan.available.missing, plan.available.named[0]
    return FilesMissing(
        f"{count_text(missing.files, 'file')} ({count_text(missing.bytes, 'byte')}) of event {plan.point.event} "
        f"no longer found anywhere, the first: {first['file']} of {first['object']}: {first['reason']}",
        hint="nothing was done; choose another time or other tables, or --allow-missing to restore the rest; "
        "--dry-run lists them",
        details={"files_missing": missing.files, "bytes_missing": missing.bytes, "missing": plan.available.named},
    )


def _begin(plan: DecidedRestore, target: Metastore) -> None:
    """Creates the database with the mark by which a repeated restore recognises it; ends the role of a replica."""
    mark = {RESTORING: plan.key}
    if plan.existing is None:
        begun = (record.change.creates for record in plan.reader.records())
        then = next(each for each in begun if isinstance(each, Database))
        if is_local(plan.location):
            os.makedirs(local_path(plan.location), exist_ok=True)
        made = Database(
            name=plan.into,
            description=then.description,
            location=uri(plan.location),
            parameters=own_parameters(then.parameters) | mark,
            owner=then.owner,
            owner_type=then.owner_type,
        )
        try:
            target.create_database(made)
        except ObjectExists:
            raise Refused(
                f"database {plan.into} was created concurrently by another process",
                hint="choose another name with --into",
            ) from None
    elif plan.existing.parameters.get(RESTORING) != plan.key:
        parameters = _plain(plan.existing) | mark
        target.alter_database(plan.into, msgspec.structs.replace(plan.existing, parameters=parameters))


def _make_plain(plan: DecidedRestore, target: Metastore) -> None:
    """Removes the load's marks, the database's last: until then a repeated restore resumes."""
    for table in target.tables(plan.into, plan.tables):  # one by one: in parallel they wait for the event log's lock
        plain = own_parameters(table.parameters)
        if plain != table.parameters:
            target.alter_table(table.db, table.name, msgspec.structs.replace(table, parameters=plain))
    there = target.database(plan.into)
    target.alter_database(plan.into, msgspec.structs.replace(there, parameters=_plain(there)))


def _plain(database: Database) -> dict[str, str]:
    """Returns a database's properties without marks of replication, except the role that a restore leaves it."""
    name = f"database {database.name}"
    return own_parameters(database.parameters) | after_restore(mark_of(database.parameters, name), name).parameters()


def restore(root: ChangeRoot, target: Metastore, options: RestoreSettings, runtime: Runtime) -> Restored:
    """Plans and executes a restore; raises as `planned` and `carry_out`. May run again after a crash."""
    began = clocks.monotonic()
    with planned(root, target, options, runtime) as plan:
        report = carry_out(plan, target, runtime)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


# ---- files -----------------------------------------------------------------------------------------------------------


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
        raise UsageError("no search criterion", hint="give --path, --table or --checksum")
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
    `cmroot.keep.versions.restore_file`. May run twice."""
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
        hint = "`replicator cm find` lists the captured files"
        raise KeepError(f"{what}: no capture has read such a file{moment}", hint=hint)
    if len(contents) > 1:
        raise _several(what, references)
    (((checksum, size), reference),) = contents.items()
    assert checksum is not None and size is not None
    place = to or (reference.place if reference else None)
    if place is None:
        raise UsageError(f"{what}: its former path is unknown", hint="give the destination with --to PLACE")
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
        f"{what}: matches {len({each.checksum for each in references})} different contents",
        hint=f"choose one with --at or by checksum: {'; '.join(lines)}",
    )
