"""Content of a `$cmroot`, as text and data: entries with their origin, the event since which they are known, the pins
that require them, and until when.

Reads the log and lists `files/` on an engine; the largest entries are listed individually, all are counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.expire.retention import EXPIRED, KEPT, LIVE, UNREFERENCED, UNREFERENCED_YOUNG, VERSION, ends_when, kept
from cmroot.log.captured import Segment, segments
from cmroot.log.references import work
from cmroot.pins import read_pins
from cmroot.root import ChangeRoot
from cmroot.store.place import is_local, join
from replicator.captures.events.scope import captured_databases
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Rows

# ---- headers ---------------------------------------------------------------------------------------------------------
# Events and times of positions in the captured log, for listings: few positions, read from their records.


class _Header(msgspec.Struct, frozen=True):
    position: int
    event: int
    time: int


def events_at(log: Sequence[Segment], positions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Returns (event id, time) of the records at some positions; positions not in the log are omitted."""
    wanted = sorted(positions)
    decoder = msgspec.json.Decoder(_Header)
    found = {}
    for segment in log:
        here = [each for each in wanted if segment.first <= each <= segment.last]
        if not here:
            continue
        waiting = set(here)
        for line in segment.records(here[0] - 1, here[-1]):
            header = decoder.decode(line)
            if header.position in waiting:
                found[header.position] = header.event, header.time
    return found


# ---- kept ------------------------------------------------------------------------------------------------------------


LIMIT = 1000
"""Entries listed individually; all are counted."""

NOBODY = "nobody"
"""`needed_by` of an entry that the next expiry may remove."""


@dataclass
class KeptList(Rows):
    """Matching entries. `total`: their number and bytes; `by_need`: the same by what requires them; `shared`: those
    that share the source's inode and use no space of their own. `entries`: the largest; see `_entry`. `databases`:
    those that the root captures; None: unknown until the next capture."""

    status: str
    root: str
    total: dict[str, int]
    by_need: dict[str, dict[str, int]]
    shared: dict[str, int]
    entries: list[dict[str, Any]]
    damaged_pins: list[str] = field(default_factory=list)
    databases: list[str] | None = None
    listed: ClassVar[str] = "entries"
    columns: ClassVar[Sequence[str]] = (
        *("checksum", "size", "keeper", "origin", "db", "table", "partition", "version"),
        *("since_position", "since_event", "since_time", "released_position", "released_event", "released_time"),
        *("needed_by", "until", "links"),
    )


# Listing


def list_kept(root: ChangeRoot, engine: AutoEngine, *, table: str = "", need: str = "", limit: int = LIMIT) -> KeptList:
    """Lists all retained entries. table: only entries last recorded in `db.table`. need: only those that are required
    by this (`live`, `slot NAME`, `hold`, `nobody`; a prefix is enough). Changes nothing, takes no lease.

    Raises Superseded if the log was compacted concurrently, FormatError if it is damaged."""
    log, pins = segments(root.place), read_pins(root.place)
    tally: dict[str, list[int]] = {}
    shared, largest = [0, 0], KEPT.empty_table()
    for batch in kept(root.place, log, pins, engine.for_work(work(root.place))):
        rows = _needs(pa.Table.from_batches([batch]))
        if table:
            rows = rows.filter(_of_table(rows, table))
        if need:
            rows = rows.filter(pc.starts_with(rows["reason"], need))
        if not rows.num_rows:
            continue
        for row in rows.group_by("reason").aggregate([("size", "count"), ("size", "sum")]).to_pylist():
            _count(tally.setdefault(row["reason"], [0, 0]), row["size_count"], row["size_sum"])
        linked = rows.filter(pc.fill_null(pc.greater(rows["links"], 1), False))
        _count(shared, linked.num_rows, pc.sum(linked["size"]).as_py() or 0)
        several = pa.concat_tables([largest, rows])
        chosen = pc.select_k_unstable(several, limit, [("size", "descending"), ("checksum", "ascending")])
        largest = several.take(chosen).combine_chunks() if limit else largest
    report = KeptList(
        "listed",
        root.place,
        _said([sum(each[0] for each in tally.values()), sum(each[1] for each in tally.values())]),
        {reason: _said(count) for reason, count in sorted(tally.items())},
        _said(shared),
        [],
        pins.damaged,
        captured_databases(log),
    )
    described = _RecoveryPoints(log, largest.to_pylist())
    report.entries = [_entry(row, described, root.place) for row in described.rows]
    return report


def _needs(rows: pa.Table) -> pa.Table:
    """Replaces the reasons for which an expiry would remove an entry by `nobody`."""
    free = pc.is_in(rows["reason"], pa.array([EXPIRED, UNREFERENCED, UNREFERENCED_YOUNG]))
    return rows.set_column(rows.schema.get_field_index("reason"), "reason", pc.if_else(free, NOBODY, rows["reason"]))


def _of_table(rows: pa.Table, text: str) -> Any:
    db, _, name = text.rpartition(".")
    fits = pc.equal(rows["table"], name.lower())
    return pc.fill_null(pc.and_(fits, pc.equal(rows["db"], db.lower())) if db else fits, False)


def _count(total: list[int], entries: int, size: int) -> None:
    total[0] += entries
    total[1] += size


def _said(total: Sequence[int]) -> dict[str, int]:
    return {"entries": total[0], "bytes": total[1]}


def _entry(row: dict[str, Any], recovery_points: _RecoveryPoints, root: str) -> dict[str, Any]:
    """Returns one entry as data: `keeper` is link, copy, version or recycle; `since_*`: of the first record that names
    it; `released_*`: of the last that ended a use of it."""
    since, released = row["since"], row["released"]
    if since is not None and since < 1:  # from an intercept that no capture has recorded yet
        since = None
    return {
        "checksum": row["checksum"],
        "size": row["size"],
        "keeper": _keeper(row, recovery_points, root),
        "origin": join(row["location"], row["path"]) if row["location"] else None,
        "db": row["db"],
        "table": row["table"],
        "partition": row["partition"],
        "version": row["version"],
        "since_position": since,
        "since_event": recovery_points.event(since),
        "since_time": recovery_points.time(since),
        "released_position": released,
        "released_event": recovery_points.event(released),
        "released_time": recovery_points.time(released),
        "needed_by": row["reason"],
        "until": _until(row["reason"], released),
        "links": row["links"],
    }


def _keeper(row: dict[str, Any], recovery_points: _RecoveryPoints, root: str) -> str:
    """Returns how an entry was retained, determined from its names, the store and the capture's marker."""
    if row["state"] == VERSION:
        return "version"
    if (row["links"] or 0) > 1:
        return "link"
    if row["location"] is None:
        return "recycle"
    said = recovery_points.keeper(row["position"])
    if "copy" in said and "link" not in said:
        return "copy"
    return "link" if is_local(root) and is_local(row["location"]) else "copy"


def _until(need: str, released: int | None) -> str:
    live = "the source drops or replaces it, and no retention covers it"
    return ends_when(need, released) or (live if need == LIVE else "the next expiry")


class _RecoveryPoints:
    """Data of the log about positions: the event and time of a record, the keeper of its capture. For few rows."""

    def __init__(self, log: Sequence[Segment], rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        named = ("since", "released", "position")
        wanted = {row[name] for row in rows for name in named if row.get(name) is not None and row[name] > 0}
        self._records = events_at(log, wanted)
        captures = [capture for segment in log for capture in segment.captures]
        self._lasts = [capture.last for capture in captures]
        self._keepers = [str(capture.about.get("keeper", "")) for capture in captures]

    def event(self, position: int | None) -> int | None:
        found = self._records.get(position) if position is not None else None
        return found[0] if found else None

    def time(self, position: int | None) -> int | None:
        found = self._records.get(position) if position is not None else None
        return found[1] if found else None

    def keeper(self, position: int | None) -> str:
        index = bisect_left(self._lasts, position or 0)
        return self._keepers[index] if position and index < len(self._keepers) else ""
