"""Dump: writes the captured log, as of a point in it, to a dump directory.

A bootstrap is the manifest at its end position; an incremental dump is the records between two positions. Both are
streams of the same kind of records. Nothing is read from the metastore or the tables: capture did that.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from cmroot.errors import PinError
from cmroot.lease import acquire
from cmroot.log.captured import ADD, Segment, segments
from cmroot.pins import DumpPin, Slot, confirm_slot, create_slot, drop_slot, find_slot, iso, pin_dump, unpin_dump
from cmroot.root import ChangeRoot, open_existing
from cmroot.store.place import Place, scratch
from replicator.captures.dumps import layout
from replicator.captures.dumps.layout import DumpData, DumpMetadata, DumpReader, Keys, Point, Scope
from replicator.captures.dumps.rows import Content, covers, reached, scope_of, scope_text
from replicator.captures.dumps.selection import Selection, point_at, resolve_since, resolve_until, scope_of_dump
from replicator.captures.dumps.writer import DumpWriter
from replicator.captures.manifest import Manifest, manifest_at, open_manifest, read_records
from replicator.captures.walk import ScannedTables
from replicator.core.logging import tell_event
from replicator.core.not_replicated import INCOMPLETE, SUPPORTED, FormatChoice, NotReplicated, Report
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import BootstrapNeeded, Error, FormatError, UsageError
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import Patterns

# ---- slots -----------------------------------------------------------------------------------------------------------
# Slots in dumps and loads: a consumer loads one dump after another, and what its next dump requires must be retained.
#
# `dump --slot` registers the consumer before anything of the dump is written, so that no expiry intervenes. The dump
# names the slot, and the load that has acknowledged the dump confirms the slot. `cmroot.pins` and docs/decisions/0005
# specify where pins are stored and what they retain.


BOOTSTRAP = "a bootstrap"  # the dump that the consumer of a slot awaits if the slot was created with a bootstrap dump


def confirmed(root: str, name: str) -> Slot | None:
    """Returns a slot whose consumer has reached its position; None if it does not exist or awaits its bootstrap.

    Raises PinError for a slot that was invalidated, FormatError for a damaged one."""
    slot = find_slot(root, name)
    if slot is not None and slot.given_up:
        raise PinError(
            f"slot {name} was invalidated at {slot.given_up} because of its lag; files that it needs may have expired",
            hint=f"drop it (`replicator cm slots drop {name}`), then dump with it again, which is a bootstrap",
        )
    return None if slot is None or slot.awaits else slot


def begin_of(log: Sequence[Segment], slot: Slot) -> Point:
    """Returns the begin of a slot's next dump. Raises FormatError if the log does not contain the slot's position."""
    point = point_at(log, slot.position)
    if point is not None:
        return point
    raise FormatError(
        f"slot {slot.name} is at position {slot.position}, which the captured log does not contain",
        hint="the log was replaced: drop the slot, then dump with it again, which is a bootstrap",
    )


def refuse_wider(slot: Slot, scope: Scope) -> None:
    """Raises BootstrapNeeded if a dump is to contain more than the slot's consumer has at its position."""
    for db in scope.databases if slot.scopes else ():
        wanted, known = reached(scope, db), slot.scopes.get(db)
        if known is None or not covers(known, wanted):
            has = "nothing" if known is None else scope_text(known)
            raise BootstrapNeeded(
                f"slot {slot.name}: of {db}, its consumer has {has}, but this dump would contain {scope_text(wanted)}",
                hint=f"drop the slot (`replicator cm slots drop {slot.name}`), then dump with it again, which is a "
                "bootstrap; or give with --since the last dump that the consumer has loaded",
            )


@contextmanager
def pinned(
    root: str, *, dump: str, place: str, slot: str, begin: Point | None, end: Point, clock: Callable[[], float]
) -> Iterator[None]:
    """Pins what a dump requires, and creates its slot (no name: none). Both remain after the block.

    A failed dump removes both, a killed one leaves both; the next dump with the slot is then the same again."""
    needs, now = begin or end, iso(clock())
    created = bool(slot) and find_slot(root, slot) is None
    if created:
        awaits = BOOTSTRAP if begin is None else ""
        create_slot(root, Slot(slot, needs.position, needs.event, created=now, confirmed=now, awaits=awaits))
    pin_dump(root, DumpPin(dump, place, needs_after=needs.position, event=needs.event, created=now))
    try:
        yield
    except BaseException:
        unpin_dump(root, dump)
        if created:
            drop_slot(root, slot)
        raise


def _check_root(metadata: DumpMetadata, root: str) -> None:
    """Checks that the root is the dump's own and that its log reaches the dump's end, because a confirmed slot releases
    everything before its position. Raises FormatError."""
    if open_existing(root).id != metadata.root_id:
        raise FormatError(f"{root} is not the root that the dump was written from", hint="give it with --source-cmroot")
    log = segments(root)
    if metadata.end.position > (log[-1].last if log else 0):
        raise FormatError(f"{root}: its log ends before position {metadata.end.position}, the end of the dump")


def confirm(metadata: DumpMetadata, place: str, root: str, clock: Callable[[], float]) -> str:
    """Advances the dump's slot to the position that its consumer has loaded. Returns a warning if that was not
    possible, otherwise ""; a slot that is further already is unchanged. `place`: the dump's location. May run twice."""
    if not metadata.slot:
        return ""
    try:
        _check_root(metadata, root)
        slot = find_slot(root, metadata.slot)
        if slot is None:
            return f"slot {metadata.slot} no longer exists in {root}: no files are kept for this target"
        if slot.position <= metadata.end.position:
            scopes = {db: reached(metadata.scope, db) for db in metadata.scope.databases}
            confirm_slot(root, slot.name, metadata.end.position, metadata.end.event, now=clock, scopes=scopes)
    except (Error, OSError) as error:
        return (
            f"slot {metadata.slot} was not confirmed ({error}): until it is, expiry keeps files that this target "
            "already has. On a host that can write to the root, run "
            f"`replicator cm slots confirm {metadata.slot} --cmroot {root} --at {place}`"
        )
    return ""


# ---- dump ------------------------------------------------------------------------------------------------------------


@dataclass
class Dumped(Report):
    """The report of a dump: its directory, kind, range, and counts (files and bytes are those named). With data
    (`with_data`): contents and bytes that the dump has itself, contents that this run copied, and those that earlier
    dumps have. `observed`: changes found by scan. `captured`: records added by the capture before it. `scanned`:
    progress of that capture's scan, if it was time-limited. `unkept`: files that only the source has."""

    dump: str
    kind: str
    from_event: int | None
    to_event: int
    from_position: int | None
    to_position: int
    records: int
    files: int
    bytes: int
    observed: int
    unknown: list[str] = field(default_factory=list)
    missing_directories: list[str] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    captured: int = 0
    scanned: ScannedTables | None = None
    seconds: float = 0.0
    status: str = "dumped"
    slot: str = ""
    unkept: int = 0
    with_data: bool = False
    data_files: int = 0
    data_bytes: int = 0
    data_files_copied: int = 0
    data_files_referenced: int = 0


UNKEPT = "{} kept nowhere: a load is exact only as long as they remain unchanged at the source"
"""The limit of a dump that names files whose bytes neither it nor `$cmroot` has."""


class Carried(Protocol):
    """The bytes of a dump with data: `data` describes them, `copied` counts the contents that this run has copied."""

    @property
    def data(self) -> DumpData: ...

    @property
    def copied(self) -> int: ...

    def check(self) -> None:
        """Raises FormatError if an earlier dump that `data` refers to was removed since."""


Carry = Callable[[DumpWriter, DumpMetadata], Carried]
"""A function that copies the bytes of the files that a dump names into it."""


@dataclass(frozen=True)
class DumpSettings:
    """The content and options of a dump.

    source: URI of the captured metastore. since: an event id, a time, an earlier dump or a point of the log (None: the
    position confirmed by the slot's consumer; without a slot, or before the first confirmation, a bootstrap). until: an
    event id, a time or a point of the log (None: its end). slot: the consumer's name, registered if it is new. id: the
    dump's (None: a new one). empty: a bootstrap may contain no table. epochs: those of the source databases (see
    `DumpMetadata`). formats: "as-they-are" for dumps whose loads leave no format out. keys: the first one signs the
    dump (None: it is not signed)."""

    source: str
    databases: Sequence[str]
    patterns: Patterns = field(default_factory=Patterns)
    since: str | layout.Point | None = None
    until: str | layout.Point | None = None
    slot: str = ""
    id: str | None = None
    empty: bool = False
    epochs: Mapping[str, int] = field(default_factory=dict)
    formats: FormatChoice = SUPPORTED
    keys: Keys | None = None


def write_dump(
    root: ChangeRoot, out: str, options: DumpSettings, runtime: Runtime, carry: Carry | None = None
) -> Dumped:
    """Writes a dump of the captured databases. Everything it names is pinned in the root before anything is written.
    carry: copies the bytes into the dump, while captures may continue; afterwards nothing is pinned for the dump.

    Raises UsageError for a range or pattern that matches nothing, BootstrapNeeded if records of the range are missing.
    May run again after a crash: an unfinished dump is written again."""
    began = clocks.monotonic()
    with ExitStack() as reading:
        lease = reading.enter_context(acquire(root.place, "dump"))
        log, slot = segments(root.place), options.slot
        begin, end = range_of_dump(root, log, options)
        if isinstance(options.since, str):
            _refuse_wider(options.since, options.databases, options.patterns)
        elif options.since is None and slot and (consumer := find_slot(root.place, slot)):
            refuse_wider(consumer, scope_of(options.databases, options.patterns))
        if begin is not None and begin.position > end.position:
            raise UsageError(
                f"--since (event {begin.event}) is later than --until (event {end.event})",
                hint="omit --until to dump up to now",
            )
        selection, clock = Selection(tuple(options.databases), options.patterns), runtime.clock
        manifest = reading.enter_context(_manifest(root, end.position))
        with DumpWriter(out, options.id, with_data=carry is not None) as writer:
            work = Content(root, manifest, writer, selection, begin, end, runtime.progress)
            with pinned(root.place, dump=writer.id, place=writer.place, slot=slot, begin=begin, end=end, clock=clock):
                if begin is None:
                    work.bootstrap(empty=options.empty)
                else:
                    work.incremental()
                metadata = work.metadata(options.source, slot, options.epochs, options.formats)
                carried: Carried | None = None
                check = lease.check
                if carry is not None:
                    check()
                    reading.close()  # the pin retains the bytes from here on
                    carried = carry(writer, metadata)
                    check = carried.check
                    metadata = msgspec.structs.replace(metadata, data=carried.data, unkept=0)
                writer.finish(metadata, options.keys, before_publishing=check)
                if carried is not None:
                    _keep_unbroken(writer.place, carried)
            if carried is not None:
                unpin_dump(root.place, writer.id)
    tell_event("dumped", end.event, end.position)
    return Dumped(
        dump=writer.place,
        kind=metadata.kind,
        from_event=begin.event if begin else None,
        to_event=end.event,
        from_position=begin.position if begin else None,
        to_position=end.position,
        records=writer.records,
        files=writer.files,
        bytes=writer.bytes,
        observed=writer.observed,
        unknown=work.unknown.listed(),
        missing_directories=list(metadata.missing_directories),
        seconds=round(clocks.monotonic() - began, 3),
        not_replicated=list(metadata.not_replicated),
        status=INCOMPLETE if metadata.not_replicated else "dumped",
        slot=slot,
        unkept=metadata.unkept or 0,
        warnings=[UNKEPT.format(count_text(metadata.unkept, "file"))] if metadata.unkept else [],
        **_counts(carried),
    )


def _keep_unbroken(place: str, carried: Carried) -> None:
    """Takes a dump back if an expiry has removed one that it needs: each of the two looks after its own change."""
    try:
        carried.check()
    except Error:
        (Place(place) / layout.FINISHED).remove_own()
        raise


def _counts(carried: Carried | None) -> dict[str, Any]:
    if carried is None:
        return {}
    return {
        "with_data": True,
        "data_files": carried.data.files,
        "data_bytes": carried.data.bytes,
        "data_files_copied": carried.copied,
        "data_files_referenced": carried.data.referenced,
    }


def range_of_dump(
    root: ChangeRoot, log: Sequence[Segment], options: DumpSettings
) -> tuple[layout.Point | None, layout.Point]:
    """Returns the begin (None: a bootstrap) and the end of a dump."""
    since, until, slot = options.since, options.until, options.slot
    end = until if isinstance(until, layout.Point) else resolve_until(log, until)
    if isinstance(since, layout.Point):
        return since, end
    if since is not None:
        return resolve_since(log, since, root.id), end
    known = confirmed(root.place, slot) if slot else None
    return begin_of(log, known) if known else None, end


@contextmanager
def temporary_dump(
    root: ChangeRoot, kind: str, options: DumpSettings, runtime: Runtime, directory: str | None
) -> Iterator[DumpReader]:
    """Writes a dump for the duration of a block, in a temporary directory of this kind. Everything it names is pinned
    in the root for as long. directory: one that executors can read, too (None: the system's)."""
    assert options.id is not None
    with scratch(kind, directory) as here:
        place = str(here / "dump")
        write_dump(root, place, options, runtime)
        try:
            yield DumpReader(place)
        finally:
            unpin_dump(root.place, options.id)


def _refuse_wider(since: str, databases: Sequence[str], patterns: Patterns) -> None:
    """Raises BootstrapNeeded if `since` contained less of a database: its targets cannot continue with this dump."""
    earlier = scope_of_dump(since)
    for db in databases:
        wanted = reached(scope_of(databases, patterns), db)
        if earlier is not None and db in earlier.databases and not covers(reached(earlier, db), wanted):
            raise BootstrapNeeded(
                f"--since {since}: of {db}, that dump contains {scope_text(reached(earlier, db))}, but this one would "
                f"contain {scope_text(wanted)}",
                hint="dump without --since, which is a bootstrap of everything; or give its event with --since, for "
                "targets that have the other tables",
            )


@contextmanager
def _manifest(root: ChangeRoot, position: int) -> Iterator[Manifest]:
    """Opens the state at a position: the current manifest at the log's end, otherwise a temporary one."""
    with open_manifest(root) as manifest:
        if manifest.position == position:
            yield manifest
            return
    with scratch("fold") as here, manifest_at(root, position, here) as then:
        yield then


# ---- preview ---------------------------------------------------------------------------------------------------------
# Counts of what a dump of the captured log would contain. Writes nothing.


@dataclass
class DumpPlan(Report):
    """The expected content of a dump. partitions: of a bootstrap; records: of an increment. events_not_captured: newer
    than the counted ones; approximate: always, as a dump captures first."""

    dump: str
    kind: str
    from_event: int | None
    to_event: int
    tables: list[str]
    files: int
    bytes: int
    events_not_captured: int
    partitions: int | None = None
    records: int | None = None
    approximate: bool = True
    status: str = "planned"

    def to_dict(self) -> dict[str, Any]:
        counts = {"partitions": self.partitions, "records": self.records}
        absent = {name for name, count in counts.items() if count is None}
        return {name: value for name, value in super().to_dict().items() if name not in absent}


def preview(source: MetastoreReader, root: ChangeRoot, out: str, options: DumpSettings) -> DumpPlan:
    """Returns the expected content of a dump, without capturing the source first. Raises as `write_dump`."""
    with acquire(root.place, "dump"), open_manifest(root) as manifest:
        log = segments(root.place)
        begin, end = range_of_dump(root, log, options)
        databases, patterns = options.databases, options.patterns
        found = (
            _count_state(manifest, databases, patterns)
            if begin is None
            else _count_range(root, begin.position, end.position, databases, patterns)
        )
        waiting = max(0, source.current_event_id() - (manifest.event or 0)) if options.until is None else 0
    return DumpPlan(
        dump=out,
        kind="bootstrap" if begin is None else "incremental",
        from_event=begin.event if begin else None,
        to_event=end.event,
        events_not_captured=waiting,
        **found,
    )


def _count_state(manifest: Manifest, databases: Sequence[str], patterns: Patterns) -> dict[str, Any]:
    tables, partitions, files, size = [], 0, 0, 0
    for db in databases:
        for name in filter(patterns.match, manifest.table_names(db)):
            tables.append(f"{db}.{name}")
            partitions += manifest.partition_count(db, name)
            for row in manifest.table_files(db, name):
                files += 1
                size += row[3]
    return {"tables": tables, "partitions": partitions, "files": files, "bytes": size}


def _count_range(
    root: ChangeRoot, after: int, until: int, databases: Sequence[str], patterns: Patterns
) -> dict[str, Any]:
    tables: set[str] = set()
    records = files = size = 0
    for segment in segments(root.place):
        if segment.last <= after or segment.first > until:
            continue
        for record in read_records(segment, after, until):
            table = record.change.touched
            if table and table[0] in databases and patterns.match(table[1]):
                tables.add(".".join(table))
                records += 1
        for batch in segment.file_batches(["position", "op", "db", "table", "size"]):
            for row in batch.to_pylist():
                in_range = after < row["position"] <= until and row["op"] == ADD
                if in_range and row["db"] in databases and patterns.match(row["table"]):
                    files += 1
                    size += row["size"] or 0
    return {"tables": sorted(tables), "records": records, "files": files, "bytes": size}
