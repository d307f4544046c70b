"""The state of purges on disk: runs, and the progress of each partition. `$cmroot/purge/`.

    lease                     one purge, retain or undo at a time
    <run>/run.json            the request, its start and end
    <run>/ids/*.parquet       the ids, as they were when the run began; removed with its last backup
    <run>/found/<table>-<n>/  which ids Spark found in which file, in the n-th attempt; removed when the table is done
    <run>/matched/<stamp>/    which ids a search has found; removed when the run has ended
    <run>/units/<n>.jsonl     states of partitions, one line each; the last line about a partition counts
    <run>/files/<n>.parquet   the files of partitions before they were swapped or dropped (schema SWAPPED_FILES)

Files are published atomically and never changed, except run.json, which is replaced.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError
from cmroot.pins import iso
from cmroot.store.listing import FileState
from cmroot.store.place import Place, join
from replicator.errors import UsageError
from replicator.lifecycle.purge.options import PurgeGap

VERSION = 1
PURGE = "purge"
_RUN = re.compile(r"(\d{13})-[0-9a-f]{8}")

State = Literal["PENDING", "STAGED", "VERIFIED", "SWAPPED", "DONE", "FAILED", "EXHAUSTED", "SKIPPED"]

SWAPPED_FILES = pa.schema(
    [
        ("table", pa.string()),
        ("partition", pa.string()),
        ("location", pa.string()),  # `Unit.old`
        ("name", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("identity", pa.string()),
        # Rows erased from it; 0: unchanged, or read by no reader; in the second row of a dropped partition's file: 1.
        ("matched", pa.int64()),
        # Of rewritten files as they were, and of files that no reader reads; else null. Files of dropped partitions
        # have two rows: one as listed, with null, and one with the checksum as soon as they are in `$cmroot`.
        ("checksum", pa.string()),
        ("checksum_after", pa.string()),  # of the files that replaced them; else null, and in runs of earlier releases
    ]
)


class Unit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A partition in a run ("" for an unpartitioned table). attempt: counts from 1. reason: why something was not done.
    old: its location. new: the directory of the new files until these replace the old ones, then the location; in runs
    of earlier releases, the new location. aside: the directory of the backup, which has the replaced files; "" in those
    runs, whose backup is the entire old directory. rows, matched, rows_after: before, erased, after. bytes,
    bytes_after: of the old and the new files. files: number of new files, including `rewritten` ones; files_before: of
    old ones. time: of this state, in seconds since 1970. event: the metastore's newest after the swap or drop. backup:
    it is kept, recycled to `$cmroot` (by the audit's run `recycled_by`), or restored to the table; "" if there is none,
    because nothing was swapped; "none" of an Iceberg table, whose own expiry deletes the old files. dropped: the
    partition as the metastore had it, if the purge drops it; then the files in `$cmroot` are the backup, which is
    "recycled" as soon as the drop is recorded."""

    table: str
    partition: str
    state: State
    time: float
    attempt: int = 1
    reason: str = ""
    old: str = ""
    new: str = ""
    aside: str = ""
    files: int = 0
    files_before: int = 0
    rewritten: int = 0
    rows: int = 0
    matched: int = 0
    rows_after: int = 0
    bytes: int = 0
    bytes_after: int = 0
    event: int = 0
    backup: Literal["", "kept", "recycled", "restored", "none"] = ""
    recycled_by: str = ""
    dropped: dict[str, Any] = {}

    @property
    def key(self) -> tuple[str, str]:
        return self.table, self.partition

    @property
    def name(self) -> str:
        return f"{self.table}/{self.partition}" if self.partition else self.table

    def at(self, state: State, clock: Callable[[], float], **changes: Any) -> Unit:
        """Returns a copy in another state."""
        return msgspec.structs.replace(self, state=state, time=clock(), **changes)

    def file_row(
        self, state: FileState, *, matched: int = 0, checksum: str | None = None, after: str | None = None
    ) -> dict[str, Any]:
        """Returns a row of SWAPPED_FILES for a file at the old location. after: the checksum of its replacement."""
        return {
            "table": self.table,
            "partition": self.partition,
            "location": self.old,
            "name": state.path_relative,
            "size": state.size,
            "mtime_ns": state.mtime_ns,
            "identity": state.identity,
            "matched": matched,
            "checksum": checksum,
            "checksum_after": after,
        }


@dataclass
class TableDone:
    """The result for one table. partitions: all of the table; swapped, failed: of those with matching rows; dropped:
    of the swapped ones, those whose value is an id. error: why the table was not searched; gaps: unsearched parts."""

    table: str
    partitions: int = 0
    swapped: int = 0
    failed: int = 0
    dropped: int = 0
    rows_erased: int = 0
    rows_before: int = 0
    rows_after: int = 0
    files_rewritten: int = 0
    files_carried: int = 0
    files_proved: int = 0
    bytes_rewritten: int = 0
    error: str = ""
    units: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[PurgeGap] = field(default_factory=list)

    def add(self, units: Iterable[Unit]) -> None:
        """Adds partitions that require no further attempt."""
        for unit in units:
            self.units.append(msgspec.to_builtins(unit))
            if unit.state != "DONE":
                self.failed += 1
                continue
            self.swapped += 1
            self.rows_erased += unit.matched
            self.rows_before += unit.rows
            self.rows_after += unit.rows_after
            if unit.dropped:
                self.gaps = [gap for gap in self.gaps if gap.table != unit.name]
                self.dropped += 1
                continue
            self.files_rewritten += unit.rewritten
            self.files_carried += unit.files - unit.rewritten
            self.bytes_rewritten += unit.bytes


class Counted(msgspec.Struct, frozen=True):
    """A change of a table's own counts, recorded before it is made. was, sums: rows, bytes and files by which all swaps
    have changed the table, without and with this change. before, after: the properties."""

    was: tuple[int, int, int]
    sums: tuple[int, int, int]
    before: dict[str, str]
    after: dict[str, str]


class PurgeRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a purge, or an undo. stamp: 13 digits, part of the names of the directories it creates. status:
    `running` until it has ended; `abandoned`: it was killed, and another request, or the next undo, has ended it.
    request: JSON that is equal for equal requests; that of a purge has `ids`. ids, ids_type: their number and type, 0
    and "" until they are stored; ids_digest: of `Ids.digest`; "" in runs of earlier releases. tables: the finished
    ones. never_found: the number of ids that no table had, None if unknown; near_misses: how many of these a table had
    in another spelling. counted: the last change of each partitioned table's own counts."""

    id: str
    stamp: str
    status: Literal["running", "done", "failed", "abandoned"]
    started: str
    request: dict[str, Any]
    ended: str = ""
    ids: int = 0
    ids_type: str = ""
    ids_digest: str = ""
    tables: tuple[str, ...] = ()
    never_found: int | None = None
    near_misses: int | None = None
    counted: dict[str, Counted] = {}
    version: int = VERSION


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory. Its only writer is the holder of the lease, which may be a later run that completes it."""

    root: str
    id: str

    @property
    def place(self) -> str:
        return join(self.root, PURGE, self.id)

    @property
    def ids(self) -> str:
        return join(self.place, "ids")

    @property
    def matched(self) -> str:
        """The ids that were found, a directory for each search."""
        return join(self.place, "matched")

    def found(self, table: str, attempt: int) -> str:
        return join(self.place, "found", f"{table}-{attempt}")

    def write_run(self, run: PurgeRun) -> None:
        body = msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"
        (Place(self.place) / "run.json").replace_own(body)

    def read_run(self) -> PurgeRun:
        path = Place(self.place) / "run.json"
        try:
            run = msgspec.json.decode(path.read_bytes(), type=PurgeRun)
        except UNREADABLE as error:
            raise FormatError(f"{path}: {error}", hint="restore it from a copy of the root") from error
        if run.version != VERSION:
            raise FormatError(
                f"{path}: version {run.version}, this release knows {VERSION}", hint="use a newer release"
            )
        return run

    def write_units(self, units: Iterable[Unit]) -> None:
        """Appends states of partitions. They are durable when it returns."""
        lines = b"".join(msgspec.json.encode(unit) + b"\n" for unit in units)
        if lines:
            self._write("units", ".jsonl", lines)

    def units(self) -> dict[tuple[str, str], Unit]:
        """Returns the last state of each partition."""
        return {unit.key: unit for unit in self.reported()}

    def reported(self) -> Iterator[Unit]:
        """Yields every state of every partition, in order."""
        place = Place(self.place) / "units"
        decode = msgspec.json.Decoder(Unit).decode
        for name in place.list():
            for line in (place / name).read_bytes().splitlines():
                yield decode(line)

    @property
    def is_restore(self) -> bool:
        """True if the run is an undo of a purge, which keeps the files that it replaces; False if it reverts one."""
        return "restore" in self.read_run().request

    def write_files(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=SWAPPED_FILES), sink, compression="zstd")
        self._write("files", ".parquet", sink.getvalue().to_pybytes())

    def files(self) -> Iterator[pa.Table]:
        """Yields the files of swapped and dropped partitions. For a retried one, yields the rows of each attempt in
        order."""
        place = Place(self.place) / "files"
        for name in place.list():
            with (place / name).open_read() as file:
                yield pq.read_table(pa.PythonFile(file, mode="r"), schema=SWAPPED_FILES)

    def _write(self, kind: str, suffix: str, data: bytes) -> None:
        place = Place(self.place) / kind
        number = len(place.list())
        while not (place / f"{number:08d}{suffix}").create_exclusive(data):
            number += 1


def new_run(root: str, request: dict[str, Any], clock: Callable[[], float]) -> tuple[RunDirectory, PurgeRun]:
    """Creates a run in memory. Writes nothing."""
    stamp = f"{int(clock() * 1000):013d}"
    run = PurgeRun(
        id=f"{stamp}-{uuid.uuid4().hex[:8]}", stamp=stamp, status="running", started=iso(clock()), request=request
    )
    return RunDirectory(root, run.id), run


def runs(root: str) -> list[RunDirectory]:
    """Returns all runs that were started, oldest first."""
    place = Place(root) / PURGE
    return [
        RunDirectory(root, name)
        for name in place.list()
        if _RUN.fullmatch(name) and (place / name / "run.json").exists()
    ]


def runs_of(root: str, metastore: str, ids: str, run: str | None) -> list[RunDirectory]:
    """Returns a run of a metastore (its URI), `latest` for the newest, or all with these ids ("db.table:column"),
    oldest first. Raises UsageError for an unknown run."""
    known = []
    for directory in runs(root):
        request = directory.read_run().request
        if "ids" in request and request["metastore"] == metastore:
            known.append((directory, request["ids"]))
    if run is not None:
        found = [directory for directory, _ in known if run in (directory.id, "latest")][-1:]
        if not found:
            raise UsageError(f"{root}: no purge {run!r}", hint=f"known purges: {', '.join(d.id for d, _ in known)}")
        return found
    return [directory for directory, own in known if own == ids]


# ---- what runs have purged -------------------------------------------------------------------------------------------


RecordedUnit = tuple[RunDirectory, Unit]
"""A partition, as a run has recorded it last."""


def recorded_units(directories: Sequence[RunDirectory]) -> tuple[list[RecordedUnit], list[RecordedUnit]]:
    """Returns the partitions that these runs have purged, and those whose drop they have begun and not completed. A
    drop that any other run of the root has completed since counts as purged, by that run's record: it has the files
    that the former have moved, too."""
    purged, left = list[RecordedUnit](), dict[tuple[str, str], RecordedUnit]()
    for directory in directories:
        for unit in directory.units().values():
            if unit.backup:
                purged.append((directory, unit))
            elif unit.dropped:
                left[unit.key] = directory, unit
    known, metastores = (
        {each.id for each in directories},
        {each.read_run().request["metastore"] for each in directories},
    )
    for directory in runs(directories[0].root) if left else ():
        if directory.read_run().request["metastore"] not in metastores:
            continue
        for unit in directory.units().values():
            was = left[unit.key][1] if unit.dropped and unit.backup and unit.key in left else None
            if was is not None and unit.old == was.old and unit.time >= was.time:
                del left[unit.key]
                purged += [] if directory.id in known else [(directory, unit)]
    return purged, list(left.values())


def erased_rows(purged: Iterable[RecordedUnit]) -> dict[str, int]:
    """Returns the number of rows that were erased, by table."""
    rows: dict[str, int] = {}
    for _, unit in purged:
        rows[unit.table] = rows.get(unit.table, 0) + unit.matched
    return rows


def swapped_units(purged: Iterable[RecordedUnit]) -> dict[str, list[Unit]]:
    """Returns the purged partitions by table, in the state of their last run."""
    latest: dict[tuple[str, str], Unit] = {unit.key: unit for _, unit in purged}
    by_table: dict[str, list[Unit]] = {}
    for unit in latest.values():
        by_table.setdefault(unit.table, []).append(unit)
    return by_table
