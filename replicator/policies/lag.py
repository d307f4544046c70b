"""The lag of a policy's target, per policy, database and table, in events, seconds and bytes; the reasons why a policy
is blocked; and how long the source's notification log retains the next required events. Reads only."""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cmroot.log.captured import Segment, segments
from cmroot.names import LARGEST
from cmroot.pins import find_slot
from cmroot.root import FORMAT, ChangeRoot, open_existing
from cmroot.store.place import as_written
from replicator.captures.dumps.selection import Selection
from replicator.captures.recording import covered_at
from replicator.captures.unlistable import sight_at
from replicator.core.not_replicated import PROPERTY, NotReplicated, Report, from_property, merged
from replicator.core.policy import Policy
from replicator.core.roles import RoleMark
from replicator.core.text import duration_text, time_text
from replicator.errors import Error, MetastoreUnreachable
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import Patterns, read_reach, waiting_events
from replicator.policies.direction import Pair, patterns_of, runs_in_reverse, survey
from replicator.policies.memory import History, Memory, RememberedScope, Run
from replicator.policies.replicas import reported
from replicator.policies.status import TableChanges, Unreplicated, seconds_bound
from replicator.replay.replica import LAST_ID

TABLES = 1000  # tables with the longest lag
RUNS = 20  # runs of the history


@dataclass
class TableLag:
    """The lag of one table. `seconds`: since the oldest change missing at the target. `not_replicated`: number of
    objects, of the table and its partitions, that cannot be read at the source."""

    table: str
    events: int = 0
    seconds: float = 0.0
    bytes: int = 0
    oldest: float = field(default=float("inf"), repr=False)
    not_replicated: int = 0

    def lack(self, obj: NotReplicated, now: float) -> None:
        self.not_replicated += 1
        self.oldest = min(self.oldest, obj.since or now)

    @classmethod
    def of(cls, found: TableChanges) -> TableLag:
        oldest = float("inf") if found.first is None else found.first
        return cls(found.table, found.changes, bytes=found.bytes, oldest=oldest)


@dataclass
class DatabaseLag:
    """The lag of one database. `event`, `position`: the replica's checkpoint; None if it does not exist or the target
    does not answer. events, seconds, bytes: known to be missing at the replica. `covered_until`, `seconds_bound`: as in
    Lag. source_role, target_role: of the sides as the
    policy names them, as text; empty if a side does not answer; source_mark, target_mark: the same as values."""

    db: str
    replica: str
    status: str
    event: int | None = None
    position: int | None = None
    events: int = 0
    seconds: float = 0.0
    seconds_bound: float | None = None
    covered_until: int | None = None
    bytes: int = 0
    source_role: str = ""
    target_role: str = ""
    source_mark: RoleMark | None = None
    target_mark: RoleMark | None = None


@dataclass
class Lag(Report):
    """The lag of a policy. `status`: current, behind, late (more than the policy's `max_lag`), blocked (see `blocks`)
    or none (not replicated yet). `events`: changes of the policy's databases missing at the target; `seconds`: the age
    of the oldest one; `bytes`: of files that were captured, and not loaded. These are the known changes. A change
    without an event, as Spark's writes, is not known before a scan finds it: the target has every change until
    `covered_until`, the start of the last complete scan whose findings are loaded, in seconds since 1970, and
    `seconds_bound` is the time since then, an upper bound of the lag (at least `seconds`). None: a database was never
    scanned completely, or the target does not answer; an objective is then not met. `captured_event`: the newest in the
    log, `source_event`: the newest at the source. The event log: `needed_seconds`, the age of the next event to be
    captured; `kept_seconds`, the server's retention of events (None: it does not report it); `headroom_seconds`, the
    time until the next event is deleted, the full retention if none waits; `reaches_back_seconds`, the age of the
    oldest event. `last_run`, `last_error`: of the history. `blocks_known`: False if not all sources of `blocks` could
    be read.

    `unexamined`: events that are not captured and were not assigned to tables: too many wait, or the source no longer
    has them.

    `not_replicated`: objects that differ from the source, by the source's names; those that cannot be read at the
    source count as behind since then.

    `unreachable`: sides that do not answer, and why. The metrics are then the last known ones: `events`, `seconds` and
    `bytes` are lower bounds (`at_least`), `event` and `source_event` are those of the last completed run, at
    `last_good_run`."""

    policy: str
    status: str = "current"
    reverse: bool = False
    source_event: int = 0
    captured_event: int | None = None
    event: int | None = None
    events: int = 0
    seconds: float = 0.0
    seconds_bound: float | None = None
    covered_until: int | None = None
    bytes: int = 0
    max_lag_seconds: float | None = None
    databases: list[DatabaseLag] = field(default_factory=list)
    tables: list[TableLag] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    blocks_known: bool = True
    needed_seconds: float | None = None
    kept_seconds: float | None = None
    headroom_seconds: float | None = None
    reaches_back_seconds: float | None = None
    last_run: str = ""
    last_error: str = ""
    last_good_run: str = ""
    at_least: bool = False
    unexamined: int = 0
    unreachable: dict[str, str] = field(default_factory=dict)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_late(self) -> bool:
        """Returns True if the objective is exceeded, or cannot be shown to be met because no scan covers a replica."""
        if self.max_lag_seconds is None:
            return False
        if self.seconds_bound is None:
            return self.seconds > self.max_lag_seconds or self.is_uncovered
        return self.seconds_bound > self.max_lag_seconds

    @property
    def is_uncovered(self) -> bool:
        """Returns True if no complete scan covers a replica whose position is known."""
        return not self.at_least and any(
            each.position is not None and each.covered_until is None for each in self.databases
        )

    def to_dict(self) -> dict[str, Any]:
        found = super().to_dict()
        for each in (found, *found["databases"]):
            each["covered_until"] = time_text(each["covered_until"])
        return found


def lag(
    policy: Policy, source: MetastoreReader, target: MetastoreReader, *, clock: Callable[[], float] = clocks.time
) -> Lag:
    """Returns the lag of a policy. `source`, `target`: as the policy names them. A side that does not answer is listed
    in `unreachable`, and the metrics are the last known ones."""
    report = Lag(policy.name)
    report.max_lag_seconds = policy.max_lag.total_seconds() if policy.max_lag else None
    memory, history, remembered = _remembered(policy, report)
    here, there = _answering("source", source, report), _answering("target", target, report)
    pairs = survey(policy, here, there, remembered if report.unreachable else None)
    if memory is None and any(pair.position is not None for pair in pairs):
        report.blocks_known = False  # databases with a checkpoint had a memory
    last = history.last_done if history else None
    report.reverse = runs_in_reverse(pairs, first=remembered is None and here is not None)
    if here is None and not report.reverse and last:
        report.reverse = last.reverse
    roles = _roles(pairs, here, there)
    place = policy.cmroot
    if report.reverse:
        here, there, place = there, here, policy.target_cmroot
        pairs = [pair.swapped for pair in pairs]
    root, log = _log(place, report)
    known = here is None
    pairs = [pair for pair in pairs if pair.source or known or (root and pair.made_from == root.id)]
    after = {pair.name: LARGEST if pair.position is None else pair.position for pair in pairs}
    patterns = patterns_of(policy, pairs)
    counted = Unreplicated(after, patterns, partitions=False)
    counted.captured(log)
    report.captured_event = int(log[-1].metadata["event"]) if log else None
    if here is not None:
        _read_source(report, counted, here, clock())
    report.not_replicated = _lacking(pairs, patterns, log)
    _sum_up(report, pairs, _waiting(counted, report.not_replicated, after, patterns, clock()))
    _bound(report, root, log, counted.first, clock())
    for each in report.databases:
        of = each.replica if report.reverse else each.db
        each.source_mark, each.target_mark = roles.get(of, (None, None))
        each.source_role, each.target_role = (str(mark or "") for mark in (each.source_mark, each.target_mark))
    if report.unreachable:
        _last_known(report, last, source_away=here is None, target_away=there is None)
    _find_blocks(report, policy, pairs, root, memory, history)
    if report.is_late:
        report.status = "late"
    if report.blocks:
        report.status = "blocked"
    return report


def _answering(side: str, metastore: MetastoreReader, report: Lag) -> MetastoreReader | None:
    """Returns the metastore, or None if it does not answer, which is then the first entry of `blocks`."""
    try:
        metastore.database_names()
    except MetastoreUnreachable as error:
        report.unreachable[side] = str(error)
        report.blocks.append(f"the {side} does not answer: {error}")
        return None
    return metastore


def _remembered(policy: Policy, report: Lag) -> tuple[Memory | None, History | None, RememberedScope | None]:
    """Returns the policy's memory. An unreadable root is a warning, as it may be unavailable together with its side."""
    try:
        root = _root(policy.target_cmroot)
        if root is None:
            return None, None, None
        memory = Memory(root, policy.name)
        return memory, memory.runs(RUNS), memory.read_scope()
    except (Error, OSError) as error:
        report.warnings.append(f"the policy's memory cannot be read: {error}")
        report.blocks_known = False
        return None, None, None


def _log(place: str, report: Lag) -> tuple[ChangeRoot | None, list[Segment]]:
    try:
        root = _root(place)
        return root, segments(root.place) if root else []
    except OSError as error:
        report.warnings.append(f"the captured log cannot be read: {error}")
        report.at_least = True
        return None, []


def _roles(
    pairs: Iterable[Pair], source: MetastoreReader | None, target: MetastoreReader | None
) -> dict[str, tuple[RoleMark | None, RoleMark | None]]:
    """Returns the roles of both sides by the source's name (of the policy); None for a side that does not answer."""
    return {pair.name: (pair.source_mark if source else None, pair.target_mark if target else None) for pair in pairs}


def _last_known(report: Lag, last: Run | None, *, source_away: bool, target_away: bool) -> None:
    """Fills in the values of the last completed run for a side that does not answer."""
    report.at_least = True
    if last is not None:
        report.last_good_run = last.ended or last.started
        if source_away:
            report.source_event = max(report.captured_event or 0, last.to_event or 0)
        if target_away:
            report.event = last.to_event
    if target_away:
        report.status = "none" if last is None else "behind"
    for each in report.databases:
        if target_away or each.status == "current":
            each.status = "unknown"


def _lacking(pairs: Sequence[Pair], patterns: Patterns, log: list[Segment]) -> list[NotReplicated]:
    """Returns the objects that the replicas report as missing, and those that the newest capture could not read."""
    said = [from_property(pair.target.parameters.get(PROPERTY), pair.name) if pair.target else [] for pair in pairs]
    selection = Selection(tuple(pair.name for pair in pairs), patterns)
    unseen = [
        each.reported()
        for each in (sight_at(log, log[-1].last).unseen if log else ())
        if selection.holds_partition((each.db, each.table), each.partition)
    ]
    return merged(*said, unseen)


def _waiting(
    counted: Unreplicated, lacking: Iterable[NotReplicated], names: Iterable[str], patterns: Patterns, now: float
) -> list[TableLag]:
    """Returns the changes that wait, by table; a database's own changes count under its name alone."""
    found = {each.table: TableLag.of(each) for each in counted.tables()}
    for each in lacking:
        db, _, table = each.object.partition(".")
        if each.unknown and db in names and (not table or patterns.match(table)):
            found.setdefault(each.object, TableLag(each.object)).lack(each, now)
    for one in found.values():
        one.seconds = 0.0 if one.oldest == float("inf") else round(max(0.0, now - one.oldest), 3)
    return list(found.values())


def _read_source(report: Lag, counted: Unreplicated, source: MetastoreReader, now: float) -> None:
    """Counts events that are not captured yet, and reads how far the event log reaches."""
    reach = read_reach(source, report.captured_event)
    report.source_event = reach.newest
    report.reaches_back_seconds = round(now - reach.oldest.time, 3) if reach.oldest else None
    report.kept_seconds = reach.life.total_seconds() if reach.life else None
    if report.captured_event is None:
        return
    report.headroom_seconds = report.kept_seconds
    if reach.needed is not None:
        report.needed_seconds = round(max(0.0, now - reach.needed.time), 3)
        if reach.needed.id > report.captured_event + 1:
            report.unexamined += reach.needed.id - 1 - report.captured_event
            gone = f"events {report.captured_event + 1} to {reach.needed.id - 1}"
            report.warnings.append(f"{gone} are gone: the next run compares every table")
        if report.kept_seconds is not None:
            report.headroom_seconds = round(report.kept_seconds - report.needed_seconds, 3)
            if report.headroom_seconds < report.kept_seconds / 4:
                report.warnings.append(
                    f"the source cleans event {reach.needed.id} in {duration_text(max(0.0, report.headroom_seconds))}, "
                    "but it is not captured yet"
                )
        waiting = waiting_events(source, report.captured_event, reach.newest)
        counted.announced(waiting.events)
        report.unexamined += waiting.more
        if waiting.more:
            report.warnings.append(f"{waiting.more:,} more waiting events were not assigned to tables")


def _sum_up(report: Lag, pairs: Iterable[Pair], waiting: Sequence[TableLag]) -> None:
    for pair in pairs:
        text = pair.target.parameters.get(LAST_ID, "") if pair.target else ""
        found = DatabaseLag(pair.name, pair.replica, "current", int(text) if text.isdigit() else None, pair.position)
        lacking = 0
        for each in waiting:
            if each.table.partition(".")[0] == pair.name:
                lacking += each.not_replicated
                found.events += each.events
                found.bytes += each.bytes
                found.seconds = max(found.seconds, each.seconds)
        if pair.position is None:
            found.status = "not replicated"
        elif pair.loading:
            found.status = "loading"
        elif found.events or found.bytes or lacking:
            found.status = "behind"
        report.databases.append(found)
    report.events = sum(each.events for each in report.databases)
    report.bytes = sum(each.bytes for each in report.databases)
    report.seconds = max((each.seconds for each in report.databases), default=0.0)
    events = [each.event for each in report.databases if each.event is not None]
    report.event = min(events, default=None)
    report.status = "behind" if any(each.status == "behind" for each in report.databases) else "current"
    if not events:
        report.status = "none"
    behind = (each for each in waiting if each.events or each.bytes or each.not_replicated)
    report.tables = sorted(behind, key=lambda each: (-each.seconds, each.table))[:TABLES]
    for each in report.tables:
        each.oldest = 0.0 if each.oldest == float("inf") else each.oldest


def _bound(report: Lag, root: ChangeRoot | None, log: Sequence[Segment], first: Mapping[str, int], now: float) -> None:
    """Sets until when scans prove that the replicas have every change. first: position of the first change that waits,
    by database; if none waits, the replica has the whole log."""
    if root is None or not log:
        return
    replicas = [each for each in report.databases if each.position is not None]
    covered: dict[int, Mapping[str, int]] = {}
    for each in replicas:
        position = first.get(each.db, LARGEST) - 1
        if position not in covered:
            covered[position] = covered_at(root.place, log, position)
        each.covered_until = covered[position].get(each.db)
        if each.covered_until is not None:
            each.seconds_bound = seconds_bound(each.covered_until, each.seconds, now)
    known = [each.seconds_bound for each in replicas if each.seconds_bound is not None]
    if known and len(known) == len(replicas):
        report.seconds_bound = max(known)
        report.covered_until = min(each.covered_until or 0 for each in replicas)
    elif report.is_uncovered:
        names = [each.db for each in replicas if each.covered_until is None]
        report.warnings.append(
            f"no complete scan covers {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}: changes without an "
            "event, as Spark's writes, are not counted"
        )


def _find_blocks(
    report: Lag,
    policy: Policy,
    pairs: Iterable[Pair],
    root: ChangeRoot | None,
    memory: Memory | None,
    history: History | None,
) -> None:
    """Collects the known reasons why the policy does not progress."""
    try:
        slot = find_slot(root.place, policy.slot) if root else None
        if slot is not None and slot.given_up:
            report.warnings.append(f"slot {slot.name} was invalidated at {slot.given_up}: files may have been deleted")
        unfinished = memory.unfinished_role_change() if memory else None
    except Error as error:
        report.warnings.append(str(error))
        report.blocks_known = False
        return
    if unfinished is not None:
        report.blocks.append(f"a {unfinished.verb} was begun at {unfinished.started} and has not ended")
    for pair in pairs:
        if pair.loading:
            report.warnings.append(f"{pair.replica}: the load of dump {pair.loading} began, but has not ended")
    last = history.last if history else None
    if history is None or last is None:
        return
    report.last_run = last.ended or last.started
    report.warnings += reported(next((run.compared for run in history.runs if run.compared), None))
    failed = _failing(history.runs)
    if failed is not None:
        report.last_error = failed.error
        report.blocks.append(f"the run at {failed.started} {failed.status}: {failed.error}")
    elif last.status == "running":
        report.warnings.append(f"a run has been in progress since {last.started}")


def _failing(runs: list[Run]) -> Run | None:
    """Returns the newest run that ended, if it failed."""
    ended = next((run for run in runs if run.status != "running"), None)
    return ended if ended and ended.status in ("failed", "killed") else None


def _root(place: str) -> ChangeRoot | None:
    """Opens the root; None if it does not exist yet."""
    return open_existing(place) if (as_written(place) / FORMAT).exists() else None
