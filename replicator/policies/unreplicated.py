"""What one side has and the other was never given: changes after given positions of a captured log, and events that no
capture has read yet, counted per table. Reads only.

Lag, a failover's loss report, what a failback keeps, and what came too late in a switchover are all counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD, REMOVE, Segment
from replicator.captures.events.decode import decode
from replicator.captures.events.record import Change
from replicator.captures.events.scope import Patterns, matches_name
from replicator.captures.fold import read_records
from replicator.core.model import Database, NotificationEvent
from replicator.core.roles import without_role
from replicator.replay.places.replica import own_parameters

NAMED = 20  # partitions of a table that are reported by name
COUNTED = 100_000  # partitions of a table that are distinguished; more count each time they are changed
TABLES = 1000  # that are listed one by one, those with the most bytes first


@dataclass
class TableChanges:
    """A table (or a database's own things, by its name alone). `changes`: records, `not_captured` of them only
    announced by events, so that their files are not known. files, bytes: written; `removed`: files taken away.
    `names`: some of the partitions. first, last: times of the changes, in seconds, by the clock of their metastore."""

    table: str
    changes: int = 0
    not_captured: int = 0
    partitions: int = 0
    files: int = 0
    bytes: int = 0
    removed: int = 0
    first: int | None = None
    last: int | None = None
    names: list[str] = field(default_factory=list)


class Unreplicated:
    """Counts changes by table. `after`: database -> the position that the other side has loaded; databases that are not
    named are passed over. `known`: the databases as they were, so that a role or checkpoint alone is no change.
    partitions: whether they are counted."""

    def __init__(
        self, after: Mapping[str, int], patterns: Patterns, known: Iterable[Database] = (), *, partitions: bool = True
    ) -> None:
        self._after, self._patterns, self._counts_partitions = dict(after), patterns, partitions
        self._known = {each.name: _plain(each) for each in known}
        self._tables: dict[str, TableChanges] = {}
        self._partitions: dict[str, set[str]] = {}
        self.lost_events = 0

    def captured(self, log: Sequence[Segment]) -> None:
        """Everything of the log after the positions. Raises FormatError where it is damaged."""
        if not self._after:
            return
        least = min(self._after.values())
        for segment in log:
            if segment.last <= least:
                continue
            for record in read_records(segment, least):
                self.lost_events += len(record.change.lost)
                if record.position > self._after.get(record.change.touched_db or "", record.position):
                    self._count(record.change, record.time)
            for batch in segment.file_batches(["position", "op", "db", "table", "partition", "size"]):
                self._files(pa.Table.from_batches([batch]))

    def announced(self, events: Iterable[NotificationEvent]) -> None:
        """Events that no capture has read."""
        for event in events:
            change = decode(event).change
            if (change.touched_db or "") in self._after:
                self._count(change, event.time, captured=False)

    def tables(self) -> list[TableChanges]:
        """Those with the most bytes first."""
        return sorted(self._tables.values(), key=lambda each: (-each.bytes, -each.changes, each.table))

    def as_json(self) -> dict[str, Any]:
        """Sums, and the tables."""
        found = self.tables()
        sums = {
            name: sum(getattr(each, name) for each in found)
            for name in ("changes", "not_captured", "partitions", "files", "bytes", "removed")
        }
        return {
            **sums,
            "lost_events": self.lost_events,
            "table_count": sum("." in each.table for each in found),
            "first": min((each.first for each in found if each.first is not None), default=None),
            "last": max((each.last for each in found if each.last is not None), default=None),
            "tables": [asdict(each) for each in found[:TABLES]],
        }

    # ---- counting -------------------------------------------------------------------------------------------------

    def _of(self, db: str, table: str | None) -> TableChanges | None:
        if table and not self._patterns.match(table):
            return None
        name = f"{db}.{table}" if table else db
        return self._tables.setdefault(name, TableChanges(name))

    def _count(self, change: Change, time: int, *, captured: bool = True) -> None:
        if self._only_ours(change):
            return
        table, db = change.touched, change.touched_db or ""
        about = change.partition_names or change.written_partitions
        wanted = {name for name in about if table is None or self._wanted(*table, name)}
        found = self._of(db, table[1] if table else None) if wanted or not about else None
        if found is None:
            return
        found.changes += 1
        found.not_captured += not captured
        found.first = time if found.first is None else min(found.first, time)
        found.last = time if found.last is None else max(found.last, time)
        for name in change.partition_names:
            if name in wanted:
                self._partition(found, name)

    def _wanted(self, db: str, table: str, partition: str) -> bool:
        """Whether the policy's filters let a partition be replicated at all."""
        wanted = self._patterns.filter_of(db, table)
        return wanted is None or matches_name(wanted, partition)

    def _only_ours(self, change: Change) -> bool:
        """A role, or a checkpoint, that was written into a database's properties."""
        if change.altered_database is None:
            return False
        before, now = self._known.get(change.altered_database.name), _plain(change.altered_database)
        return before is not None and before.parameters == now.parameters and before.location == now.location

    def _files(self, rows: pa.Table) -> None:
        for db, position in self._after.items():
            theirs = rows.filter(pc.and_(pc.equal(rows["db"], db), pc.greater(rows["position"], position)))
            if not theirs.num_rows:
                continue
            keys = ["op", "table"] + ["partition"] * (self._counts_partitions or bool(self._patterns.partitions))
            grouped = theirs.group_by(keys).aggregate([("size", "sum"), ([], "count_all")])
            for each in grouped.to_pylist():
                partition = each.get("partition")
                if partition and not self._wanted(db, each["table"], partition):
                    continue
                found = self._of(db, each["table"])
                if found is None:
                    continue
                if each["op"] == ADD:
                    found.files += each["count_all"]
                    found.bytes += each["size_sum"] or 0
                elif each["op"] == REMOVE:
                    found.removed += each["count_all"]
                else:
                    continue
                if partition:
                    self._partition(found, partition)

    def _partition(self, found: TableChanges, name: str) -> None:
        seen = self._partitions.setdefault(found.table, set())
        if name in seen or not self._counts_partitions:
            return
        if len(seen) < COUNTED:
            seen.add(name)
        found.partitions += 1
        if len(found.names) < NAMED:
            found.names.append(name)


def _plain(database: Database) -> Database:
    return msgspec.structs.replace(database, parameters=own_parameters(without_role(database.parameters)))
