"""Selection: the part of the captured log in a dump: databases, tables by name, partitions by value. Pure.

Objects outside are treated as nonexistent. A table that enters within the range (it was renamed into the selection or
from one partition filter to another, or a partition was renamed into its filter) is new to the target: its records are
left out from then on, and the dump contains the complete table as it is at the end. A table that leaves is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import Capture, Segment
from cmroot.store.place import as_written
from replicator.captures.dumps.layout import FINISHED, Point, Scope, open_parts
from replicator.captures.manifest import read_records
from replicator.core.model import Name
from replicator.core.named_files import NAMED
from replicator.core.option import LogMoment, parse_moment
from replicator.core.text import PartitionFilter
from replicator.errors import BootstrapNeeded, FormatError, UsageError
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import Change, ChangeRecord
from replicator.metastore.events.scope import Patterns, matches_name


@dataclass(frozen=True)
class Selection:
    """Databases by name, with filters for their tables and partitions."""

    databases: tuple[str, ...]
    patterns: Patterns = field(default_factory=Patterns)

    def holds(self, name: Name) -> bool:
        """Returns True if a table is selected. Functions are, and so are all files that metadata names."""
        return name[0] in self.databases and (name[1] == NAMED or self.patterns.match(name[1]))

    def filter_of(self, name: Name) -> PartitionFilter | None:
        return self.patterns.filter_of(*name)

    def holds_partition(self, name: Name, partition: str) -> bool:
        """Returns True if a partition is selected. `partition`: its escaped name, or "" for the table itself."""
        wanted = self.filter_of(name) if partition else None
        return self.holds(name) and (wanted is None or matches_name(wanted, partition))

    def crosses(self, old: Name, new: Name) -> bool:
        """Returns True if a rename changes which parts of a table are selected."""
        return self.holds(old) != self.holds(new) or self.filter_of(old) != self.filter_of(new)


@dataclass
class Entering:
    """Tables that enter a selection within a range. `see` must process all records in order before any is reported."""

    selection: Selection
    _since: dict[Name, int] = field(default_factory=dict)
    _spells: dict[Name, list[tuple[int, int]]] = field(default_factory=dict)

    def see(self, records: Iterable[ChangeRecord]) -> None:
        for record in records:
            change, at = record.change, record.position
            match change:
                case kinds.CreateTable(table=table):
                    self._end((table.db, table.name), at)
                case kinds.DropTable(db=db, name=name):
                    self._end((db, name), at + 1)
                case kinds.DropDatabase(db=db):
                    for held in [held for held in self._since if held[0] == db]:
                        self._end(held, at + 1)
                case kinds.AlterTable() if change.renames:
                    old, new = (change.db, change.name), (change.table.db, change.table.name)
                    entered = self._end(old, at + 1)
                    if self.selection.holds(new) and (entered or self.selection.crosses(old, new)):
                        self._since[new] = at
                case kinds.AlterPartition() if self._enters(change):
                    self._since.setdefault((change.db, change.table), at)

    def _enters(self, change: kinds.AlterPartition) -> bool:
        name = (change.db, change.table)
        holds = self.selection.holds_partition
        return change.before != change.name and holds(name, change.name) and not holds(name, change.before)

    def _end(self, name: Name, at: int) -> bool:
        since = self._since.pop(name, None)
        if since is not None:
            self._spells.setdefault(name, []).append((since, at))
        return since is not None

    @property
    def names(self) -> set[Name]:
        """The tables that the dump must contain completely, by their names at the end."""
        return set(self._since)

    def spells(self, name: Name) -> list[tuple[int, int | None]]:
        """Returns the ranges (begin, exclusive end; None: no end) in which the records of a name are left out."""
        open_ = [(self._since[name], None)] if name in self._since else []
        return [*self._spells.get(name, ()), *open_]

    def silent(self, name: Name, at: int) -> bool:
        return any(begin <= at and (end is None or at < end) for begin, end in self.spells(name))

    # ---- reporting ------------------------------------------------------------------------------------------------

    def reported(self, change: Change, at: int) -> Change | None:
        """Returns the part of a record's change that is in the dump; None if nothing is."""
        name = change.touched
        if name is None:
            db = change.touched_db
            return change if db is None or db in self.selection.databases else None
        if isinstance(change, kinds.AlterTable) and change.renames:
            old = (change.db, change.name)
            if not self.selection.holds(old) or self.silent(old, at):
                return None
            return kinds.DropTable(db=old[0], name=old[1]) if self.selection.crosses(old, name) else change
        if not self.selection.holds(name):
            return None
        if isinstance(change, kinds.AlterPartition) and any(begin == at for begin, _ in self.spells(name)):
            return kinds.DropTable(db=name[0], name=name[1])
        if self.silent(name, at):
            return None
        wanted = self.selection.filter_of(name)
        return change if wanted is None else _filtered(change, wanted)

    def reported_rows(self, rows: pa.Table) -> tuple[pa.Table, set[Name]]:
        """Returns the file entries that are in the dump, and their tables. Columns as of cmroot.log.segment.FILES."""
        named: set[Name] = set()
        for db, table in sorted(set(zip(rows["db"].to_pylist(), rows["table"].to_pylist(), strict=True))):
            held, wanted = self.selection.holds((db, table)), self.selection.filter_of((db, table))
            if held and wanted is None and not self.spells((db, table)):
                named.add((db, table))
                continue
            theirs = pc.and_(pc.equal(rows["db"], db), pc.equal(rows["table"], table))
            reported = (
                pc.and_(theirs, self._reported_of(rows, rows.filter(theirs), (db, table), wanted)) if held else None
            )
            if reported is not None and pc.any(reported).as_py():
                named.add((db, table))
            out = pc.invert(theirs)
            rows = rows.filter(out if reported is None else pc.or_(out, reported))
        return rows, named

    def _reported_of(
        self, rows: pa.Table, theirs: pa.Table, name: Name, wanted: PartitionFilter | None
    ) -> pa.ChunkedArray:
        """Returns a mask over all rows: True if a row would be reported as this table's. `theirs`: the table's rows."""
        reported = pc.is_valid(rows["position"])
        for begin, end in self.spells(name):
            outside = pc.less(rows["position"], begin)
            if end is not None:
                outside = pc.or_(outside, pc.greater_equal(rows["position"], end))
            reported = pc.and_(reported, outside)
        if wanted is not None:
            partitions = pc.unique(theirs["partition"]).to_pylist()
            held = [each for each in partitions if not each or matches_name(wanted, each)]
            reported = pc.and_(reported, pc.is_in(rows["partition"].cast(pa.string()), pa.array(held, pa.string())))
        return reported


def _filtered(change: Change, wanted: PartitionFilter) -> Change | None:
    """Returns the part of a change of one table that concerns selected partitions."""
    match change:
        case kinds.AddPartitions():
            named = zip(change.partition_names, change.partitions, strict=True)
            partitions = tuple(partition for name, partition in named if matches_name(wanted, name))
            return msgspec.structs.replace(change, partitions=partitions) if partitions else None
        case kinds.DropPartitions(names=names):
            kept = tuple(name for name in names if matches_name(wanted, name))
            return msgspec.structs.replace(change, names=kept) if kept else None
        case kinds.AlterPartition(db=db, table=table, before=before, name=name):
            if matches_name(wanted, name):
                return change
            return kinds.DropPartitions(db=db, table=table, names=(before,)) if matches_name(wanted, before) else None
        case kinds.SetStatistics(statistics=statistics):
            some = tuple(each for each in statistics if not each.partition or matches_name(wanted, each.partition))
            return msgspec.structs.replace(change, statistics=some) if some else None
        case kinds.SetGrants(grants=grants):
            kept_grants = {name: each for name, each in grants.items() if not name or matches_name(wanted, name)}
            return msgspec.structs.replace(change, grants=kept_grants) if kept_grants else None
        case kinds.ChangeFiles(partition=partition) if partition and not matches_name(wanted, partition):
            return None
        case _:
            return change


# ---- points ----------------------------------------------------------------------------------------------------------
# Points: a recovery point or an earlier dump, as a position in the captured log.
#
# A time stands for the last record at or before it in the order of the log: clocks jump, positions do not. A record
# counts as at least as late as every segment before it, so a clock that was set back never includes a later record.
# An event stands for the last record with its id: changes that scans found before the next event have the id, too.


def resolve_until(log: Sequence[Segment], text: str | None) -> Point:
    """Returns the end of a dump: the last record of the log, the last one at or before an event id or time, or the one
    at a position. Raises UsageError for a position that the log does not contain."""
    if not log:
        raise UsageError("nothing has been captured yet", hint="run `replicator capture`, or let dump capture")
    newest = _end(log[-1])
    if text is None:
        return newest
    moment = parse_moment(text, "--until")
    if moment.event is not None and moment.event >= newest.event:
        return newest
    found = _at(log, moment, text, "--until")
    if found is None:
        raise UsageError(f"--until {text}: the captured log begins later", hint="see `replicator show` of its log")
    return found


def resolve_since(log: Sequence[Segment], text: str, root_id: str) -> Point:
    """Returns the begin of an incremental dump. Raises BootstrapNeeded if the log begins later."""
    there = end_of_dump(text, "--since", root_id)
    if there is not None:
        return there
    moment = parse_moment(text, "--since", dump=True)
    newest = _end(log[-1])
    if moment.event is not None and moment.event > newest.event:
        raise UsageError(
            f"--since {moment.event}: the newest captured event is {newest.event}",
            hint="give an event id of this source (see `replicator status`), or the earlier dump's directory",
        )
    if moment.event is not None and moment.event == newest.event:
        return newest
    found = _at(log, moment, text, "--since")
    if found is None:
        first = next(iter(read_records(log[0])))
        raise BootstrapNeeded(
            f"--since {text}: the captured log begins at event {first.event} (position {first.position})",
            hint="dump without --since, which is a bootstrap",
        )
    return found


def _at(log: Sequence[Segment], moment: LogMoment, text: str, option: str) -> Point | None:
    """Returns the last record at or before a recovery point; None if the log begins later. Raises UsageError for a
    position after its end."""
    if moment.position is None:
        return _last_before(log, moment.event, moment.time)
    if moment.position > log[-1].last:
        raise UsageError(
            f"{option} {text}: the captured log ends at position {log[-1].last}", hint="run a capture first"
        )
    return point_at(log, moment.position)


def point_at(log: Sequence[Segment], position: int) -> Point | None:
    """Returns a position of the log as a point; None if the log does not contain it."""
    for segment in log:
        if segment.first <= position <= segment.last:
            for record in read_records(segment, position - 1, position):
                return Point(record.position, record.event, record.time)
    return None


def end_of_dump(text: str, option: str, root_id: str) -> Point | None:
    """Returns the end of an earlier dump if `text` is its directory; None for any other text. Raises UsageError for a
    dump of another root."""
    if not (as_written(text) / FINISHED).exists():
        return None
    _, metadata = open_parts(text)
    if metadata.root_id != root_id:
        raise UsageError(
            f"{option} {text}: that dump was written from another $cmroot ({metadata.root})",
            hint="give the $cmroot it was written from, or run a bootstrap",
        )
    return metadata.end


def scope_of_dump(text: str) -> Scope | None:
    """Returns the scope of an earlier dump if `text` is its directory; None for any other text."""
    return open_parts(text)[1].scope if (as_written(text) / FINISHED).exists() else None


def _end(segment: Segment, capture: Capture | None = None) -> Point:
    """Returns the end of a segment, or of one of the captures that it was merged from."""
    last, about = (segment.last, segment.metadata) if capture is None else (capture.last, capture.about)
    try:
        return Point(last, int(about["event"]), int(about["time"]))
    except KeyError as error:
        raise FormatError(f"{segment.place}: its marker lacks {error}", hint="restore it from a copy") from error
    except (TypeError, ValueError) as error:
        raise FormatError(f"{segment.place}: its marker is invalid: {error}", hint="restore it from a copy") from error


def _last_before(log: Sequence[Segment], event: int | None, time: int | None) -> Point | None:
    """Returns the last record whose event id (or time) is not later than the given one."""
    best: Point | None = None
    latest = 0  # the latest time of the records so far
    for segment, capture in ((each, capture) for each in log for capture in each.captures):
        end = _end(segment, capture)
        if (event is not None and end.event <= event) or (time is not None and max(latest, end.time) <= time):
            best, latest = end, max(latest, end.time)
            continue
        for record in read_records(segment, capture.first - 1, capture.last):
            latest = max(latest, record.time)
            if (event is not None and record.event > event) or (time is not None and latest > time):
                return best
            best = Point(record.position, record.event, record.time)
        return best
    return best
