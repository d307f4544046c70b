"""Counts of what a dump would hold, of what is captured by now. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cmroot.lease import acquire
from cmroot.log.captured import ADD, segments
from cmroot.root import ChangeRoot
from replicator.captures.dumps.dump import DumpSettings, range_of_dump
from replicator.captures.events.scope import Patterns
from replicator.captures.fold import open_manifest, read_records
from replicator.captures.manifest import Manifest
from replicator.core.report import Report
from replicator.metastore.client import MetastoreReader


@dataclass
class DumpPlan(Report):
    """What a dump would hold. partitions: of a bootstrap; records: of an increment. events_not_captured: newer than
    what was counted; approximate: always, as a dump captures first."""

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
    """What a dump of what is captured by now would hold; the source is not captured first. Raises as `write_dump`."""
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
