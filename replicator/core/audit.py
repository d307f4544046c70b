"""The audit: a record of every removal with user, time and reason, and of the location to which the bytes were moved.
Parquet below `$cmroot/audit/`.

`audit/<job>/<run>/<n>-<id>.parquet`, one file per batch, never changed: Spark reads the directories as one dataset
(schema AUDIT). A row is written before a removal ("intended") and after it, and one for each removed file. After any
crash, every removed file is therefore reported, and found by its checksum in `$cmroot/files`.
"""

from __future__ import annotations

import getpass
import heapq
import os
import re
import socket
import time as clocks
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.errors import FormatError
from cmroot.keep.recycle import Record, Recycled, forget
from cmroot.pins import seconds
from cmroot.store.local import LocalStore
from cmroot.store.place import Place, is_local, join, local_path
from cmroot.store.spelling import naming, normal, split_authority, upwards
from cmroot.text import shown
from replicator.core.not_replicated import Rows
from replicator.core.option import absolute_moment
from replicator.errors import UsageError

INTENDED, REMOVED, REFUSED, FAILED, DONE = "intended", "removed", "refused", "failed", "done"
"""Outcomes: about to be removed; removed, with its bytes in `$cmroot`; forbidden by a rule; attempted and failed; a
completed change of metadata."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")  # of a job or run, which are directories

AUDIT = pa.schema(
    [
        ("time", pa.timestamp("ms", tz="UTC")),
        ("job", pa.string()),  # housekeeping | retention | purge | ...
        ("run", pa.string()),
        ("who", pa.string()),  # user@host
        ("outcome", pa.string()),
        ("what", pa.string()),  # the kind of a removal: see Removal; "file" for each file of it
        ("object", pa.string()),  # db.table, or empty
        ("partition", pa.string()),
        ("path", pa.string()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("checksum", pa.string()),  # of a file: its entry in `$cmroot/files` has this checksum and `bytes`
        ("reason", pa.string()),  # why it was to be removed
        ("detail", pa.string()),  # of a refusal or failure: why it was not removed; of a change: JSON
    ]
)


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A directory to be removed. what: "path", "partition", "table", "version", "backup", "staging" or "trash". object:
    the "db.table" it belongs to, or empty; partition: escaped name. reason: a sentence with the numbers that led to it.
    files, bytes: as planned. drops: the object is dropped, too, so its own references do not count. same: other names
    of the object, for legal holds."""

    path: str
    what: str
    reason: str
    object: str = ""
    partition: str = ""
    files: int = 0
    bytes: int = 0
    drops: bool = False
    same: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The object's name, as in patterns of legal holds."""
        return f"{self.object}/{self.partition}" if self.partition else self.object

    @property
    def bare(self) -> Removal:
        """The removal without its counts and `drops`, for comparison."""
        return msgspec.structs.replace(self, files=0, bytes=0, drops=False)


@dataclass(frozen=True)
class Refusal:
    """A removal that is forbidden, and why, as a sentence."""

    removal: Removal
    why: str


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row as returned by `read_audit`; times are ISO 8601."""

    time: str
    job: str
    run: str
    who: str
    outcome: str
    what: str
    object: str
    partition: str
    path: str
    files: int | None
    bytes: int | None
    checksum: str | None
    reason: str
    detail: str


@dataclass
class AuditShown(Rows):
    """The matching rows of the record; `more`: there are further rows beyond the limit."""

    status: str
    root: str
    found: list[AuditRow]
    more: bool
    listed: ClassVar[str] = "rows"
    columns: ClassVar[Sequence[str]] = AuditRow.__struct_fields__

    def to_dict(self) -> dict[str, Any]:
        rows = msgspec.to_builtins(self.found)
        return {"status": self.status, "root": self.root, "rows": rows, "more": self.more}


@dataclass(frozen=True)
class AuditLog:
    """The audit writer of one run of a job. A frozen value that may be pickled: tasks write their own files."""

    root: str
    job: str
    run: str
    who: str
    clock: Callable[[], float] = clocks.time

    @property
    def place(self) -> str:
        return join(self.root, "audit", self.job, self.run)

    def intended(self, removals: Sequence[Removal]) -> None:
        """Records removals before they are made. Durable when it returns, as are all methods."""
        self._write([self._row(each, INTENDED) for each in removals])

    def refused(self, refusals: Sequence[Refusal]) -> None:
        self._write([self._row(each.removal, REFUSED, detail=each.why) for each in refusals])

    def failed(self, removal: Removal, why: str) -> None:
        self._write([self._row(removal, FAILED, detail=why)])

    @contextmanager
    def recorder(self) -> Iterator[FileRecorder]:
        """Records the files of several removals in one task, each durably before its last link is removed: line by line
        on disk, and finally as one Parquet file that replaces the lines."""
        name = self._name(".jsonl")
        recorder = FileRecorder(self, local_path(name) if is_local(name) else None)
        try:
            yield recorder
        finally:
            recorder.finish(name)

    def removed(self, removals: Sequence[Removal]) -> None:
        """Records completed removals. Their files and bytes are the numbers actually removed."""
        self._write([self._row(each, REMOVED) for each in removals])

    def recycled(self, removal: Removal, recycled: Sequence[Recycled]) -> None:
        """Records files of a removal that are retained now."""
        self._write(self.file_rows(removal, recycled))

    def file_rows(self, removal: Removal, recycled: Sequence[Recycled]) -> list[dict[str, Any]]:
        rows = []
        for each in recycled:
            row = self._row(removal, REMOVED)
            row |= {"what": "file", "path": each.path, "files": 1, "bytes": each.kept.size}
            rows.append(row | {"checksum": each.kept.checksum})
        return rows

    def changed(
        self,
        object: str,
        reason: str,
        *,
        what: str,
        partition: str = "",
        path: str = "",
        detail: dict[str, Any] | None = None,
        begins: bool = False,
    ) -> None:
        """Records a change of metadata, or another action relevant to readers of the audit; `detail` as JSON. begins:
        before it is made; without a path, as none of its files are moved to the root (see `record_begun`)."""
        said = msgspec.json.encode(detail).decode() if detail else ""
        removal = Removal(path=path, what=what, object=object, partition=partition, reason=reason)
        outcome = INTENDED if begins else DONE
        self._write([self._row(removal, outcome, detail=said) | {"files": None, "bytes": None}])

    def _row(self, removal: Removal, outcome: str, detail: str = "") -> dict[str, Any]:
        return {
            "time": int(self.clock() * 1000),
            "job": self.job,
            "run": self.run,
            "who": self.who,
            "outcome": outcome,
            "what": removal.what,
            "object": removal.object,
            "partition": removal.partition,
            "path": removal.path,
            "files": removal.files,
            "bytes": removal.bytes,
            "checksum": None,
            "reason": removal.reason,
            "detail": detail,
        }

    def _write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        with Place(self._name(".parquet")).open_write() as file:
            pq.write_table(pa.Table.from_pylist(rows, schema=AUDIT), file, compression="zstd")

    def _name(self, suffix: str) -> str:
        """Returns a name for a new file; names sort by time."""
        return join(self.place, f"{int(self.clock() * 1000):015}-{uuid.uuid4().hex[:12]}{suffix}")


class FileRecorder:
    """A writer of rows for files as they are removed. `of(removal)` is a recorder for `cmroot.keep.recycle`."""

    def __init__(self, audit: AuditLog, lines: str | None) -> None:
        """lines: a local file to append to; None on object stores, where each call writes its own Parquet file."""
        self._audit, self._lines = audit, lines
        self._rows: list[dict[str, Any]] = []

    def of(self, removal: Removal) -> Callable[[list[Recycled]], None]:
        return lambda recycled: self._record(removal, recycled)

    def _record(self, removal: Removal, recycled: Sequence[Recycled]) -> None:
        rows = self._audit.file_rows(removal, recycled)
        if self._lines is None:
            self._audit._write(rows)
        elif rows:
            self._append(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            self._rows += rows

    def _append(self, data: bytes) -> None:
        assert self._lines is not None
        LocalStore().mkdirs(os.path.dirname(self._lines))
        with naming(self._lines), open(self._lines, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def finish(self, name: str) -> None:
        """Replaces the lines by one Parquet file; a crash in between leaves both, with the same rows."""
        if self._rows:
            self._audit._write(self._rows)
            Place(name).remove_own()


def begin_audit(root: str, job: str, *, run: str = "", clock: Callable[[], float] = clocks.time) -> AuditLog:
    """Returns the record of a new run, or of one that continues (`run`). Writes nothing yet."""
    moment = clocks.strftime("%Y%m%dT%H%M%SZ", clocks.gmtime(clock()))
    return AuditLog(root, job, run or f"{moment}-{uuid.uuid4().hex[:8]}", who(), clock)


def unwatched(audit: AuditLog) -> AuditLog:
    """Returns a copy for a task, with the system clock, because a test's clock cannot be pickled."""
    return replace(audit, clock=clocks.time)


def read_audit(
    root: str,
    *,
    job: str | None = None,
    run: str | None = None,
    object: str | None = None,
    path: str | None = None,
    **others: str | None,
) -> Iterator[AuditRow]:
    """Yields rows by job and run, in the order in which they were written. object: "db.table", case-insensitive; path:
    rows at and below it; others: outcome, since, until, who, reason, as in `_others`. Holds one file at a time in
    memory. Raises FormatError for a damaged file, UsageError for an invalid time, job or run."""
    for option, name in (("--job", job), ("--run", run)):
        if name is not None and not _NAME.fullmatch(name):
            raise UsageError(
                f"{option} {name[:100]!r} is not a valid name", hint="`replicator audit ls` shows the names"
            )
    top = Place(root) / "audit"
    wanted = _filter([*_about(object, path), *_others(**others)])
    for named in top.list() if job is None else [job]:
        for one in (top / named).list() if run is None else [run]:
            for name in (top / named / one).list():
                yield from _rows(str(top / named / one / name), wanted)


def record_begun(root: str, recycled: list[Recycled], *, unknown: Record = forget) -> None:
    """Records files that a killed run had moved without recording them, as files of that run: of the newest run that
    intended to remove a directory at or above them, and has not finished it. unknown: records those of no such run; by
    default they are a load's, which has no audit. All files are from one directory. Durable when it returns."""
    begun = _begun(root, recycled[0].path) if recycled else None
    if begun is None:
        unknown(recycled)
        return
    audit = AuditLog(root, begun.job, begun.run, begun.who)
    known = {name: getattr(begun, name) for name in ("path", "what", "reason", "object", "partition")}
    audit.recycled(Removal(**known), recycled)


def _begun(root: str, path: str) -> AuditRow | None:
    """Reads the audit from its newest run on. Compares paths without the filesystem, which is the root's: only what is
    renamed into it waits there."""
    above = set(upwards(split_authority(path)[1]))
    top = Place(root) / "audit"
    runs = [(run, job) for job in top.list() for run in (top / job).list()]
    for run, job in sorted(runs, reverse=True):
        unfinished: dict[str, AuditRow] = {}
        for row in read_audit(root, job=job, run=run):
            place = split_authority(shown(normal(row.path)))[1] if row.path else ""
            if row.what == "file" or place not in above:
                continue
            if row.outcome == INTENDED:
                unfinished[place] = row
            elif row.outcome == REMOVED:
                unfinished.pop(place, None)
        if unfinished:
            return unfinished[max(unfinished, key=len)]
    return None


def show_audit(root: str, limit: int, *, newest: bool = False, **wanted: str | None) -> AuditShown:
    """Returns at most `limit` rows; `wanted` and errors as for `read_audit`. newest: these, the newest first, which
    reads all files of the audit; otherwise the first ones by job, run and time."""
    rows = read_audit(root, **wanted)
    found = heapq.nlargest(limit + 1, rows, key=lambda row: row.time) if newest else list(islice(rows, limit + 1))
    return AuditShown("shown", root, found[:limit], len(found) > limit)


def _rows(place: str, wanted: Any) -> Iterator[AuditRow]:
    try:
        with Place(place).open_read() as file:
            if place.endswith(".jsonl"):  # of a killed task; if its last line is torn, that file was not removed
                lines = file.read().split(b"\n")[:-1]
                table = pa.Table.from_pylist([msgspec.json.decode(line) for line in lines], schema=AUDIT)
            else:
                table = pq.read_table(pa.PythonFile(file, mode="r"), schema=AUDIT)
    except (pa.ArrowException, msgspec.DecodeError, OSError) as error:
        raise FormatError(
            f"{place}: damaged: {error}", hint="move this one file away; the others remain readable"
        ) from error
    if wanted is not None:
        table = table.filter(wanted)
    for row in table.to_pylist():
        yield AuditRow(**row | {"time": row["time"].isoformat(timespec="milliseconds")})


def _about(object: str | None, path: str | None) -> Iterator[Any]:
    if object is not None:
        yield pc.equal(pc.utf8_lower(pc.field("object")), object.lower())
    if path is not None:
        below = path.rstrip("/") + "/"
        yield (pc.field("path") == below[:-1]) | pc.starts_with(pc.field("path"), below)


def _others(
    *,
    outcome: str | None = None,
    since: str | None = None,
    until: str | None = None,
    who: str | None = None,
    reason: str | None = None,
) -> Iterator[Any]:
    """since (inclusive), until (exclusive): ISO 8601. who: "user@host", or a user on any host. reason: text in the
    reason or the detail, case-insensitive."""
    if outcome is not None:
        yield pc.field("outcome") == outcome
    if since is not None:
        yield pc.field("time") >= _moment("--since", since)
    if until is not None:
        yield pc.field("time") < _moment("--until", until)
    if who is not None:
        named = pc.field("who") == who
        yield named if "@" in who else named | pc.starts_with(pc.field("who"), f"{who}@")
    if reason is not None:
        has = [pc.match_substring(pc.field(name), reason, ignore_case=True) for name in ("reason", "detail")]
        yield has[0] | has[1]


def _moment(option: str, text: str) -> Any:
    try:
        moment = seconds(absolute_moment(text, clocks.time()))
        return pa.scalar(int(moment * 1000), pa.timestamp("ms", tz="UTC"))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} {text!r}: {error}", hint="write an ISO 8601 time such as 2026-11-01") from error


def _filter(conditions: Sequence[Any]) -> Any:
    found: Any = None
    for condition in conditions:
        found = condition if found is None else found & condition
    return found


def who() -> str:
    """Returns user@host, the form in which records identify users."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
