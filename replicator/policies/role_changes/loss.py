"""The loss report of a failover: changes of the primary that the replica never received, as far as the remaining
systems can show. Reads only, without waiting: a system that does not answer in time counts as lost.

It has three sources: the replica's own checkpoints; the lost side's `$cmroot`, whose captured log may be ahead of them;
the lost side's metastore, which may have announced more. Later changes are reported as unknown, with the last event and
time that are known.
"""

from __future__ import annotations

import threading
import time as clocks
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from cmroot.log.captured import Segment, segments
from cmroot.root import ChangeRoot, open_existing
from cmroot.store.listing import list_tree
from cmroot.store.place import join, normal, relative, scratch
from replicator.captures.dumps.layout import DumpMetadata, DumpReader
from replicator.captures.dumps.selection import point_at, resolve_until
from replicator.captures.manifest import Manifest, manifest_at
from replicator.core.grouping import batched
from replicator.core.not_replicated import PROPERTY, NotReplicated, from_property
from replicator.core.policy import Policy
from replicator.errors import Error, MetastoreUnreachable, NotReached
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import Patterns, waiting_events
from replicator.policies.direction import Direction
from replicator.policies.memory import Memory, iso
from replicator.policies.status import Unreplicated
from replicator.policies.sync_plan import PolicyDumps
from replicator.replay.replica import LAST_ID

# ---- uncaptured ------------------------------------------------------------------------------------------------------
# Files in the lost side's directories that no capture has seen: its last writes, if its metastore is lost and its
# storage is not. Reads only: the manifest is folded again, in a temporary file, as nothing may be written at the lost
# side.


NAMED = 20  # directories of a table that are reported by name
THREADS = 8  # tables listed in parallel


@dataclass
class UncapturedFiles:
    """The files of a table that no capture has seen, or with another size than captured. Markers and empty files are
    included only if there are no others. `directories`: some of those that contain them."""

    table: str
    files: int = 0
    bytes: int = 0
    directories: list[str] = field(default_factory=list)


def uncaptured_files(
    root: ChangeRoot, databases: Sequence[str], patterns: Patterns, position: int
) -> list[UncapturedFiles]:
    """Lists every directory of the databases' tables, as of the log's end (`position`) at the lost side. Tables without
    such files are omitted. Keeps the file names of eight tables in memory at a time."""
    found: list[UncapturedFiles] = []
    with (
        scratch("fold") as here,
        manifest_at(root, position, here) as manifest,
        ThreadPoolExecutor(THREADS) as executor,
    ):
        tables = _tables(manifest, databases, patterns)
        for some in batched(tables, THREADS):
            found += executor.map(lambda each: _compare(*each), some)
    return [each for each in found if each.files]


def _tables(
    manifest: Manifest, databases: Sequence[str], patterns: Patterns
) -> Iterator[tuple[str, list[str], dict[str, int]]]:
    """Yields each table's name, the directories of its files, and its files by full path, with their sizes."""
    for db in databases:
        for name in manifest.table_names(db):
            table = manifest.table(db, name)
            if table is None or not table.location or table.is_view or not patterns.match(name):
                continue
            homes = {normal(table.location): None}
            known = {}
            for _, location, path, size, *_ in manifest.table_files(db, name):
                known[join(normal(location), path)] = size
                if relative(location, table.location) is None:
                    homes[normal(location)] = None
            yield f"{db}.{name}", list(homes), known


def _compare(table: str, homes: Sequence[str], known: dict[str, int]) -> UncapturedFiles:
    """Compares a table's files. Markers (`_SUCCESS`) and empty files have no rows: they count only without others."""
    found, rowless = UncapturedFiles(table), UncapturedFiles(table)
    for home in homes:
        listing = list_tree(home)
        found.files += len(listing.unnamed) if listing else 0  # names that are not UTF-8: no capture includes them
        for file in listing.files if listing else ():
            place = join(home, file.path_relative)
            if known.get(place) == file.size:
                continue
            directory, _, name = place.rpartition("/")
            side = rowless if file.size == 0 or name.startswith("_") else found
            side.files += 1
            side.bytes += file.size
            if directory not in side.directories and len(side.directories) < NAMED:
                side.directories.append(directory)
    return found if found.files else rowless


# ---- loss ------------------------------------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass
class DatabaseLoss:
    """The state of one replica. `time`: of its last change, by its source's clock; None if unknown. `loading`: the dump
    of an incomplete load; `completes`: that dump can be read, so its load counts as completed. `source`: id of the
    `$cmroot` of the checkpoint."""

    db: str
    replica: str
    event: int | None = None
    position: int | None = None
    time: int | None = None
    loading: str = ""
    completes: bool = False
    source: str | None = None


@dataclass
class Loss:
    """The loss of a failover. `log`, `metastore`: why the lost side's cannot be read; empty if it was read.
    `captured_event`: the newest in the log, `captured_time`: its capture; `source_event`: the newest in the metastore.

    changes and so on: as of `Unreplicated.as_json`, from the checkpoints on. `seconds`: from the oldest lost change to
    the newest, by the lost side's clock. `unseen`: files in the lost side's directories that no capture has seen, by
    table; None if not listed. Changes there after `unknown_after_event`, at about `unknown_after_time`, are unknown;
    `unknown_seconds`: since then, by this machine's clock, never negative. `not_replicated`: objects that, as the
    replica reports, differed from its source."""

    policy: str
    made: str
    lost: str
    survivor: str
    databases: list[DatabaseLoss] = field(default_factory=list)
    log: str = ""
    metastore: str = ""
    captured_event: int | None = None
    captured_time: int | None = None
    source_event: int | None = None
    changes: int = 0
    not_captured: int = 0
    table_count: int = 0
    partitions: int = 0
    files: int = 0
    bytes: int = 0
    removed: int = 0
    lost_events: int = 0
    first: int | None = None
    last: int | None = None
    seconds: int | None = None
    tables: list[dict[str, Any]] = field(default_factory=list)
    unseen_files: int = 0
    unseen_bytes: int = 0
    unseen: list[dict[str, Any]] | None = None
    unknown_after_event: int | None = None
    unknown_after_time: str = ""
    unknown_seconds: float | None = None
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Absent:
    """A metastore that does not answer: it has no databases, and all other calls raise at once."""

    def __init__(self, uri: str, reason: str) -> None:
        self.uri, self.reason = uri, reason

    def database_names(self) -> list[str]:
        return []

    def __getattr__(self, name: str) -> NoReturn:
        raise MetastoreUnreachable(f"{self.uri} is no longer queried: {self.reason}", hint="see the loss report")


def within(limit: timedelta, what: str, work: Callable[[], T]) -> T:
    """Returns the result of work that may hang forever, such as on lost storage. Raises NotReached on timeout; the
    thread of the work is abandoned, and ends with the process."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    if errors:
        raise errors[0]
    if not results:
        raise NotReached(f"{what}: no answer within {limit.total_seconds():g} s", hint="it counts as lost")
    return results[0]


def lost_root(place: str, limit: timedelta) -> tuple[ChangeRoot | None, str]:
    """Opens the lost side's `$cmroot`. Returns it, or None and the reason."""
    try:
        return within(limit, f"open {place}", lambda: open_existing(place)), ""
    except Exception as error:  # any error of a store: it is not available
        return None, _reason(error)


def loss_of(
    direction: Direction,
    lost: tuple[ChangeRoot | None, str],
    memory: Memory,
    *,
    completing: bool,
    look: bool,
    limit: timedelta,
    clock: Callable[[], float] = clocks.time,
) -> Loss:
    """Returns the loss report. `direction`: the one that was replicated, its source Absent if it does not answer;
    `lost`: as of `lost_root`. limit: timeout for reading the log; the metastore's client has its own. completing:
    interrupted loads are still to be completed if their dumps are readable. look: list the lost side's directories,
    too."""
    source, (root, why) = direction.source, lost
    report = Loss(direction.policy.name, iso(clock()), lost=source.uri, survivor=direction.target.uri, log=why)
    log: list[Segment] = []
    if root is not None:
        try:
            log = within(limit, f"read the log of {root.place}", lambda: segments(root.place))
            report.log = "" if log else "nothing was captured"
        except Exception as error:
            report.log = _reason(error)
    after = _checkpoints(report, direction, log, limit, completing=completing)
    databases = [pair.source for pair in direction.pairs if pair.source]
    found = Unreplicated(after, direction.patterns, databases)
    if log:
        try:
            within(limit, f"read the log of {root.place if root else ''}", lambda: _read(report, found, log))
        except Exception as error:
            report.log = _reason(error)
    _ask(report, found, source)
    _fill(report, found)
    if look and root is not None and log:
        _look(report, direction, root, log, limit)
    _unknown(report, memory, clock())
    report.warnings += [f"not replicated when the replica was loaded last: {each}" for each in report.not_replicated]
    return report


def _checkpoints(
    report: Loss, direction: Direction, log: Sequence[Segment], limit: timedelta, *, completing: bool
) -> dict[str, int]:
    """Returns each replica's position; an interrupted load that can be completed counts as completed."""
    after = {}
    for pair in direction.pairs:
        text = pair.target.parameters.get(LAST_ID, "") if pair.target else ""
        found = DatabaseLoss(pair.name, pair.replica, int(text) if text.isdigit() else None, pair.position)
        found.source = pair.made_from
        report.not_replicated += from_property(pair.target.parameters.get(PROPERTY) if pair.target else None, pair.name)
        report.databases.append(found)
        if pair.loading:
            found.loading = pair.loading
            dump = _dump(direction.policy, pair.loading, limit) if completing else None
            if dump is not None:
                found.completes = True
                found.event, found.position, found.time = dump.end.event, dump.end.position, dump.end.time
        if found.position is None:
            report.warnings.append(f"{pair.replica}: none of its loads was completed, so its losses are unknown")
            continue
        after[pair.name] = found.position
        if found.time is None and log:
            try:
                point = within(limit, "read the log", lambda at=found.position: point_at(log, at))  # type: ignore[misc]
                found.time = point.time if point else None
            except Exception as error:
                report.log = _reason(error)
    return after


def _dump(policy: Policy, id: str, limit: timedelta) -> DumpMetadata | None:
    def read() -> DumpMetadata | None:
        place = PolicyDumps(policy.dumps, policy.name).find(id)
        return DumpReader(place).metadata if place else None

    try:
        return within(limit, f"look for the dump {id}", read)
    except Exception:  # it is not available, for whatever reason
        return None


def _read(report: Loss, found: Unreplicated, log: Sequence[Segment]) -> None:
    found.captured(log)
    end = resolve_until(log, None)
    report.captured_event, report.captured_time = end.event, end.time


def _ask(report: Loss, found: Unreplicated, source: MetastoreReader) -> None:
    """Counts the events that the lost metastore has announced after the last capture, if it answers."""
    events = [each.event for each in report.databases if each.event is not None]
    known = report.captured_event if report.captured_event is not None else min(events, default=None)
    try:
        newest = source.current_event_id()
        report.source_event = newest
        if known is None:
            return
        waiting = waiting_events(source, known, newest)
        found.announced(waiting.events)
        if waiting.more:
            report.warnings.append(f"{waiting.more:,} more events that were not captured are not counted")
    except Error as error:
        report.metastore = _reason(error)


def _look(report: Loss, direction: Direction, root: ChangeRoot, log: Sequence[Segment], limit: timedelta) -> None:
    """Lists the directories of the lost side, if its storage answers."""
    names = [pair.name for pair in direction.pairs]
    try:
        unseen = within(
            limit,
            "list the lost side's directories",
            lambda: uncaptured_files(root, names, direction.patterns, log[-1].last),
        )
    except Exception as error:  # any error of a store: it is not available
        report.warnings.append(f"the lost side's directories could not be listed: {_reason(error)}")
        return
    report.unseen = [asdict(each) for each in unseen]
    report.unseen_files = sum(each.files for each in unseen)
    report.unseen_bytes = sum(each.bytes for each in unseen)


def _fill(report: Loss, found: Unreplicated) -> None:
    for key, value in found.as_json().items():
        setattr(report, key, value)
    if report.first is not None and report.last is not None:
        report.seconds = max(0, report.last - report.first)


def _unknown(report: Loss, memory: Memory, now: float) -> None:
    """Determines the point from which changes are unknown. Its times are from other machines' clocks: they are
    reported, and used only to compute their age."""
    events = [each.event for each in report.databases if each.event is not None]
    if report.source_event is not None:
        report.unknown_after_event = report.source_event
        report.warnings.append(
            "its metastore answers: a switchover would lose nothing; changes without an event since the last capture "
            "are unknown"
        )
    else:
        report.unknown_after_event = report.captured_event or min(events, default=None)
    since: float | None = report.captured_time
    if since is None:
        last = memory.runs(50).last_done
        since = datetime.fromisoformat(last.ended).timestamp() if last and last.ended else None
    if since is not None:
        report.unknown_after_time, report.unknown_seconds = iso(since), round(max(0.0, now - since), 3)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
