"""Recording: writes what one capture finds to the log. Records and file rows become a segment, and the manifest.

The segment is published before the manifest's transaction commits, and the manifest is only an index: after a crash at
any point, the log is either unchanged or complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import UNREADABLE
from cmroot.lease import Lease
from cmroot.log.captured import ADD, Segment, SegmentWriter, segments
from cmroot.log.references import Intercepted, read_intercepted, remove_intercepted
from cmroot.root import ChangeRoot
from cmroot.store.place import Place, is_local
from replicator.captures.inventory import KnownFile
from replicator.captures.manifest import GRANTS, Manifest, is_known
from replicator.captures.unlistable import Sight, sight_at
from replicator.captures.walk import ScannedTables
from replicator.core.named_files import is_on_nodes
from replicator.core.not_replicated import INCOMPLETE, NotReplicated, Report
from replicator.core.text import time_text
from replicator.metastore.client import MetastoreReader, warehouse_of
from replicator.metastore.events.facts import Rename
from replicator.metastore.events.record import Change, ChangeRecord, EventsRead, encode

LISTED = 100  # maximum number of entries in the lists of a following capture


@dataclass
class Captured(Report):
    """The report of a capture. `through_event` and `position`: the end of the captured log; `keeper`: those used, such
    as "link, version"; `unknown`: events retained unread, the first ones by name; `unknown_kinds`: all of them, counted
    by kind; scan_seconds, compare_seconds: the time to scan directories (including listing those that changed), and to
    compare tables with the metastore; scanned: progress of a scan that did not reach all tables; covered_until: every
    change before this time is in the log, with or without an event (seconds since 1970; None: a database was never
    scanned completely);
    `databases`: all that the root captures, not only those of this call; `formats`: tables whose format loads
    leave out, with the reason; `outside`: tables whose log names files by absolute paths (see
    `named_outside`); `transactional`: tables that loads into metastores before Hive 3 leave out;
    `warnings`: objects whose directory is missing, fields that would be lost, repairs."""

    root: str
    first_position: int
    position: int
    through_event: int
    events: int = 0
    records: int = 0
    observed: int = 0
    files: int = 0
    bytes: int = 0
    keeper: str = ""
    databases: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    missing_directories: list[str] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    formats: dict[str, str] = field(default_factory=dict)
    outside: dict[str, dict[str, str]] = field(default_factory=dict)
    transactional: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    scan_seconds: float = 0.0
    compare_seconds: float = 0.0
    scanned: ScannedTables | None = None
    covered_until: int | None = None
    status: str = "captured"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "covered_until": time_text(self.covered_until)}


class CapturesFollowed(Report):
    """The report of all captures that follow a source: counts are summed; all else is the newest capture's."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    @property
    def rounds(self) -> int:
        return int(self._fields.get("rounds", 0))

    def add(self, captured: Captured) -> None:
        before, total = dict(self._fields), self._fields
        total.update(captured.to_dict())
        total["rounds"] = self.rounds + 1
        for name in ("events", "records", "observed", "files", "bytes", "seconds"):
            total[name] = round(total[name] + before.get(name, 0), 3)
        for name in ("unknown", "warnings"):
            known = before.get(name, [])
            total[name] = [*known, *(each for each in total[name] if each not in known)][:LISTED]
        total["unknown_kinds"] = dict(Counter(before.get("unknown_kinds", {})) + Counter(total["unknown_kinds"]))
        total["keeper"] = captured.keeper or before.get("keeper", "")
        total["first_position"] = before.get("first_position", captured.first_position)

    def to_dict(self) -> dict[str, Any]:
        return dict(self._fields)


class Recording:
    """The log of one capture, and the manifest as of its end. `base`: the position before the capture; `cursor`: the
    last event read; `renames`: in the order of their positions; `before`: what the last capture could not see; `began`:
    the start, in seconds; `covered`: the time until which the log has every change, by database."""

    def __init__(
        self, source: MetastoreReader, root: ChangeRoot, manifest: Manifest, clock: Callable[[], float], lease: Lease
    ) -> None:
        self._source, self._root, self._clock, self._lease = source, root, clock, lease
        self.manifest = manifest
        self.base = self.position = manifest.position
        self.began_anew = manifest.event is None
        self.began = self.now()
        # Invariant 1: the newest event id is read before anything is listed.
        self.cursor = source.current_event_id() if manifest.event is None else manifest.event
        self.renames: list[Rename] = []
        log = segments(root.place)
        self.before = sight_at(log, self.base)
        self.covered_before = covered_at(root.place, log, self.base)
        self.covered = dict(self.covered_before)
        self.report = Captured(str(root.place), self.base + 1, self.base, self.cursor)
        self._segment: SegmentWriter | None = None

    def observe(self, change: Change) -> int:
        """Records a change without an event. Returns its position."""
        self.report.observed += 1
        return self.append(change, self.cursor, self.now(), observed=True)

    def append(self, change: Change, event: int, time: int, *, observed: bool = False) -> int:
        """Appends a record. Returns its position."""
        self.position += 1
        record = ChangeRecord(position=self.position, event=event, time=time, change=change, observed=observed)
        self._writer().append_record(encode(record))
        self.manifest.apply(record)
        if rename := Rename.of(record.position, change):
            self.renames.append(rename)
        self.report.records += 1
        return self.position

    def files(self, rows: pa.Table) -> None:
        """Appends file entries that have the positions of their records."""
        if rows.num_rows:
            self._writer().append_files(rows)
            self.manifest.apply_files(rows)

    def publish(self, keeper: str, sight: Sight) -> None:
        """Makes the segment durable, then the manifest. `keeper`: those used, as named in the report; `sight`: what
        this capture could not see, stored in the segment's marker. Raises LeaseHeld if the lease was taken over; in
        that case nothing was published."""
        if self._segment is None and (self.cursor != self.manifest.event or sight.differs(self.before)):
            self.append(EventsRead(), self.cursor, self.now())
        self.covered = {db: at for db, at in self.covered.items() if db in self.manifest.scope()}
        self.report.position, self.report.through_event = self.position, self.cursor
        self.report.keeper, self.report.databases = keeper, sorted(self.manifest.scope())
        if self.covered and len(self.covered) == len(self.report.databases):
            self.report.covered_until = min(self.covered.values())
        self.report.status = INCOMPLETE if self.report.not_replicated else "captured"
        for struct, fields in self._source.unknown_fields().items():
            self.report.warnings.append(
                f"the metastore sends unknown fields of {struct}, which would be lost: {fields}"
            )
        if self._segment is not None:
            for rows in self.manifest.ended():
                self._segment.append_files(rows)
            scope = self.report.databases
            covered = {COVERED: pack(self.covered, scope), COVERED_BEFORE: pack(self.covered_before, scope)}
            self._segment.finish(
                self.position,
                event=self.cursor,
                time=self.now(),
                source=self._source.uri,
                keeper=keeper,
                databases=self.report.databases,
                constraints=is_known(self.manifest),
                grants=self.manifest.recall(GRANTS) is not None,
                **covered,
                **sight.about(),
            )
        self.manifest.advance(self.position, self.cursor, self.now())
        self.manifest.commit()
        if self.covered != self.covered_before:
            write_covered(self._root.place, self.position, self.covered)

    def cover(self, moments: Mapping[str, int | None]) -> None:
        """Advances the times until which all changes of some databases were searched for; None: not known."""
        _advance(self.covered, {db: at for db, at in moments.items() if at is not None})

    def abandon(self) -> None:
        """Discards everything except retained bytes, which a later capture finds in place."""
        self.manifest.rollback()
        if self._segment is not None:
            self._segment.abort()

    @cached_property
    def warehouse(self) -> str | None:
        """The source's warehouse directory, if the server returns it."""
        return warehouse_of(self._source)

    def on_nodes(self, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Returns those of some places, each with its captured database, that are on the nodes of the source's
        cluster."""
        asked = list(places)
        known = {db: self.manifest.database(db) for db in {db for db, _ in asked}}
        homes = {db: (database.location if database else None, self.warehouse) for db, database in known.items()}
        if all(not home or is_local(home) for each in homes.values() for home in each):
            return set()  # in nearly all warehouses
        return {each for each in asked if is_on_nodes(each[1], *homes[each[0]])}

    def now(self) -> int:
        """Returns the time in whole seconds since 1970."""
        return int(self._clock())

    def _writer(self) -> SegmentWriter:
        if self._segment is None:
            self._segment = SegmentWriter(self._root.place, self.base + 1, lease=self._lease)
        return self._segment


# ---- coverage --------------------------------------------------------------------------------------------------------
# Coverage: the time until which the log has every change of a database, with or without an event. It is the start of
# the last capture that read the events, compared all tables with the metastore and scanned all directories.


COVERED, COVERED_BEFORE = "covered", "covered_before"
"""Keys of a marker's `about`: the coverage at the end of the capture, and before it."""

NEWEST = "covered.json"
"""The file of a root with the newest coverage, because a capture that finds no change writes no segment."""

_OTHERS = ""  # in packed coverage: the time of all databases that are not listed


class Coverage(msgspec.Struct, frozen=True):
    """The content of `covered.json`. `covered`: packed; valid for every state of the log from `position` on."""

    position: int
    covered: dict[str, int]
    databases: list[str]


def covered_at(root: str, log: Sequence[Segment], position: int) -> dict[str, int]:
    """Returns, by database, the time in seconds until which a copy of the log up to `position` has every change;
    databases that no capture has covered are missing. `log`: the segments of the root."""
    found: dict[str, int] = {}
    newest = _newest_coverage(root)
    if newest is not None and newest.position <= position:
        found = unpack(newest.covered, newest.databases)
    for segment in reversed(log):
        for capture in reversed(segment.captures):
            scope = capture.about.get("databases", [])
            if capture.first - 1 <= position:
                _advance(found, unpack(capture.about.get(COVERED_BEFORE, {}), scope))
            if capture.last <= position:
                _advance(found, unpack(capture.about.get(COVERED, {}), scope))
                return found
    return found


def write_covered(root: str, position: int, covered: Mapping[str, int]) -> None:
    """Writes the newest coverage; call it after the records up to `position` are published. May run twice."""
    content = Coverage(position, pack(covered, covered), sorted(covered))
    (Place(root) / NEWEST).replace_own(msgspec.json.encode(content))


def pack(covered: Mapping[str, int], scope: Iterable[str]) -> dict[str, int]:
    """Returns the coverage of the captured databases in few entries: most have the same time; 0: none."""
    moments = {db: covered.get(db, 0) for db in scope}
    if not moments:
        return {}
    common, _ = Counter(moments.values()).most_common(1)[0]
    return {_OTHERS: common, **{db: at for db, at in moments.items() if at != common}}


def unpack(packed: Mapping[str, int], scope: Iterable[str]) -> dict[str, int]:
    """Returns the coverage by database. `scope`: the captured databases, as given to `pack`."""
    others = packed.get(_OTHERS, 0)
    found = {db: packed.get(db, others) for db in scope}
    return {db: at for db, at in found.items() if at}


def _newest_coverage(root: str) -> Coverage | None:
    """Returns the content of the file; None if it is missing or damaged, as an older time is still true."""
    try:
        return msgspec.json.decode((Place(root) / NEWEST).read_bytes(), type=Coverage)
    except (FileNotFoundError, *UNREADABLE):
        return None


def _advance(found: dict[str, int], others: Mapping[str, int]) -> None:
    for db, at in others.items():
        found[db] = max(found.get(db, 0), at)


# ---- intercepts ------------------------------------------------------------------------------------------------------
# Intercepted files: moved into `$cmroot` before the event of their drop, and recorded by the capture that reads it.
#
# A table that is created, filled and dropped between two captures is recorded with its bytes if it was dropped through
# the gateway. Intercepted files are identified by the id of the event (cmroot.log.references).


class Intercepts:
    """The intercepted files stored for the events of one capture."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._found: list[Intercepted] = []

    def look(self, until: int) -> None:
        """Finds files intercepted for events up to `until`; called after these are read, so that none is missed."""
        self._found = read_intercepted(self._root, until)

    def of(self, event: int, db: str, table: str) -> Iterator[tuple[str, pa.Table]]:
        """Yields (partition, file entries) of the files of a table intercepted before an event."""
        for taken in self._found:
            if taken.event == event:
                rows = taken.rows()
                rows = rows.set_column(1, rows.schema.field("op"), pa.array([ADD] * rows.num_rows, pa.string()))
                rows = rows.filter(pc.and_(pc.equal(rows["db"], db), pc.equal(rows["table"], table)))
                for partition in pc.unique(rows["partition"]).to_pylist():
                    yield partition, rows.filter(pc.equal(rows["partition"], partition))

    def finish(self) -> None:
        """Removes the intercepted files after the segment is published: they are recorded, or out of scope."""
        for taken in self._found:
            remove_intercepted(taken)


def not_known(rows: pa.Table, known: Mapping[str, KnownFile]) -> pa.Table:
    """Returns the entries whose bytes are not already recorded for their path."""
    fresh = [
        path not in known or known[path].checksum != checksum
        for path, checksum in zip(rows["path"].to_pylist(), rows["checksum"].to_pylist(), strict=True)
    ]
    return rows.filter(pa.array(fresh, pa.bool_()))
