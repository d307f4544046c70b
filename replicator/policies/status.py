"""Status: how far a target is, by its own word, and how far that is behind the source. Reads only."""

from __future__ import annotations

import time as clocks
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD, Segment, segments
from cmroot.root import ChangeRoot
from replicator.captures.events.reach import waiting_events
from replicator.captures.fold import read_records
from replicator.core.not_replicated import PROPERTY, NotReplicated, from_property
from replicator.core.report import Report
from replicator.core.text.quantity import time_text
from replicator.errors import UsageError
from replicator.metastore.client import MetastoreReader
from replicator.replay.places.replica import LAST_ID, LOADING, POSITION, SOURCE


@dataclass
class Status(Report):
    """`status`: current, behind, loading (a load has begun and not ended), replica (there is no source to compare
    with), or `no replica`. `time` is that of the last record applied, in seconds; lags are None where they cannot be
    reported: events and seconds need the source, bytes and time its $cmroot. `lag_events` counts all databases' events
    that may change something.
    `not_replicated`: what the target says that it does not have as the source has it; what nobody could see there
    counts as behind since then."""

    status: str
    target: str
    db: str
    event: int | None = None
    position: int | None = None
    time: int | None = None
    source: str | None = None
    loading: str | None = None
    source_event: int | None = None
    lag_events: int | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "time": time_text(self.time)}


def status(
    target: MetastoreReader,
    db: str,
    *,
    source: MetastoreReader | None = None,
    root: ChangeRoot | None = None,
    source_db: str | None = None,
    clock: Callable[[], float] = clocks.time,
) -> Status:
    """How far database `db` of the target is. source_db: its name at the source, where it was renamed.

    Raises ObjectNotFound when there is no such database, UsageError for a $cmroot that is not its source's."""
    parameters = target.database(db).parameters
    report = Status(
        status="replica",
        target=target.uri,
        db=db,
        event=_number(parameters.get(LAST_ID)),
        position=_number(parameters.get(POSITION)),
        source=parameters.get(SOURCE),
        loading=parameters.get(LOADING) or None,
        not_replicated=from_property(parameters.get(PROPERTY), source_db or db),
    )
    if report.event is None:
        report.status = "loading" if report.loading else "no replica"
        return report
    if root is not None:
        _read_log(report, root, source_db or db)
    if source is not None:
        _ask_source(report, source, clock)
        unseen = [each.since for each in report.not_replicated if each.unknown]
        if unseen:
            since = min((each for each in unseen if each), default=clock())
            report.lag_seconds = max(report.lag_seconds or 0.0, round(clock() - since, 3))
        report.status = "behind" if report.lag_events or report.lag_bytes or unseen else "current"
    if report.loading:
        report.status = "loading"
    return report


def _ask_source(report: Status, source: MetastoreReader, clock: Callable[[], float]) -> None:
    """The lag in events, and since when the first of them waits."""
    assert report.event is not None
    report.source_event = source.current_event_id()
    report.lag_events = max(0, report.source_event - report.event)
    report.lag_seconds = 0.0
    if report.source_event < report.event:
        report.warnings.append(f"the source's newest event is {report.source_event}: it is not the one replicated")
    if not report.lag_events:
        return
    waiting = source.next_events(report.event, 1)
    gone = not waiting or waiting[0].id > report.event + 1
    if not gone:
        found = waiting_events(source, report.event, report.source_event)
        waiting, report.lag_events = found.events, len(found.events) + found.more
    if waiting:
        report.lag_seconds = round(max(0.0, clock() - waiting[0].time), 3)
    if gone:
        report.warnings.append("the source has cleaned away events that were not applied: the lag is at least this")


def _read_log(report: Status, root: ChangeRoot, db: str) -> None:
    """The time of the position, and the bytes that were captured after it."""
    if report.source not in (None, root.id):
        raise UsageError(
            f"{root.place} is not the $cmroot that {report.db} was made from ({report.source})",
            hint="name the one that its dumps were written from",
        )
    log = segments(root.place)
    position = report.position or 0
    report.time = _time_of(log, position)
    report.lag_bytes = 0
    for segment in log:
        if segment.last > position:
            for batch in segment.file_batches(["position", "op", "db", "size"]):
                report.lag_bytes += _added_bytes(pa.Table.from_batches([batch]), position, db)


def _time_of(log: list[Segment], position: int) -> int | None:
    for segment in log:
        if segment.first <= position <= segment.last:
            return next((record.time for record in read_records(segment, position - 1, position)), None)
    return None


def _added_bytes(rows: pa.Table, after: int, db: str) -> int:
    added = pc.and_(pc.equal(rows["op"], ADD), pc.equal(rows["db"], db))
    chosen = rows.filter(pc.and_(added, pc.greater(rows["position"], after)))
    return int(pc.sum(chosen["size"]).as_py() or 0)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
