"""Queries about roots and tables: the list of roots, their size over time, slots, holds and expiry; the timeline
of a table: its records in the captured log, removals, comparisons, runs, and the dumps and holds of its root.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from cmroot.log.captured import segments
from cmroot.pins import seconds
from cmroot.root import open_existing
from replicator.captures.dumps.table_moments import has_log, log_versions_at, recorded_moment
from replicator.commands.cm import cm_slots, configured_expiry
from replicator.commands.guard import audit_ls
from replicator.commands.policies import history
from replicator.commands.stored_states import show, states_at
from replicator.compare.sampling import memory_of, read_memory
from replicator.core.policy import Policy, matching_databases
from replicator.core.text import count_text
from replicator.errors import UsageError
from replicator.policies.memory import Memory
from replicator.replay.restore.kept import PinList
from replicator.service.runs import iso
from replicator.service.series import RootSample, root_samples
from replicator.service.web.endpoint import Asking, asked_of_command, duration_of, roots_of
from replicator.service.web.policy_queries import has_root, moment_of, time_after
from replicator.service.web.serving import Late

SLOW = 30.0
"""Seconds for a query that reads a complete log."""


@dataclass(frozen=True)
class RootView:
    """A root. name: the value for `root`. policies: those that use the location, by any of its names."""

    name: str
    place: str
    policies: tuple[str, ...]


@dataclass(frozen=True)
class RootList:
    """Roots of the configuration that may be queried, by name."""

    roots: list[RootView]


def roots(asking: Asking) -> RootList:
    there = [each for each in roots_of(asking.serving.config) if each.may(asking.who)]
    return RootList([RootView(each.name, each.place, each.policies) for each in there])


# ---- size ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizePoint:
    """The size of a root at a time. at: ISO 8601. entries, bytes: retained; null if they could not be measured: `error`
    contains the reason. shared_bytes: the part that consists of the source's own files and takes no space of its
    own."""

    at: str
    entries: int | None
    bytes: int | None
    shared_bytes: int | None
    error: str

    @classmethod
    def of(cls, found: RootSample) -> SizePoint:
        said = {name: value for name, value in vars(found).items() if name != "root"}
        return cls(**said | {"at": iso(found.at) or ""})


@dataclass(frozen=True)
class SizeSeries:
    """The size of a root over time, oldest first, measured every `service.measure_roots`, retained for
    `service.keep`."""

    root: str
    points: list[SizePoint]


def size(asking: Asking) -> SizeSeries:
    since, after = moment_of(asking, "since"), time_after(asking.after)
    place = asking.root.place
    found = root_samples(asking.serving.store, place, since=since, after=after, limit=asking.limit + 1)
    return SizeSeries(place, [SizePoint.of(each) for each in found])


# ---- slots and holds ----------------------------------------------------------------------------------------------


def slots(asking: Asking) -> PinList:
    """Returns slots without what each holds back, which requires reading the complete log."""
    return cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)


@dataclass(frozen=True)
class HoldList:
    """Named recovery points that are held. damaged: files that cannot be parsed."""

    root: str
    holds: list[dict[str, Any]]
    damaged: list[str]


def holds(asking: Asking) -> HoldList:
    found: PinList = cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)
    return HoldList(found.root, found.holds, found.damaged)


def expiry(asking: Asking) -> Any:
    """Plans an expiry: without a retention, with that of the job that expires this root."""
    configured = configured_expiry(asking.serving.config, asking.root.place)
    given = asking.values["older_than"] or (f"{configured.period.total_seconds():.3f}s" if configured else "")
    if not given:
        hint = 'give older_than=30d, or configure a job with command = ["cm", "expire", ...]'
        raise UsageError("no retention is given or configured", hint=hint)
    duration_of("older_than", given)
    more = (f"--older-than={given}", "--dry-run", "--engine=local")
    return asked_of_command(("cm", "expire"), (), more)(asking)


# ---- the timeline of a table -----------------------------------------------------------------------------------------


ROWS = 100_000  # audit rows of one table
RUNS = 1000  # newest runs of each policy
_WRITING = ("create_table", "alter_table", "change_files")  # records with file entries of a table
KINDS = ("record", "removal", "verification", "run", "dump", "hold")


@dataclass(frozen=True)
class TimelineEntry:
    """An entry of a timeline. at: ISO 8601. kind: record (of the captured log; `what`: the change), removal (a row of
    the audit), verification, run (of a policy, that loaded something; not of this table alone), dump or hold (of the
    root). event: of the source's log. by: the run, policy or user. text: for display. moment: the state of the table in
    the terms of its format, of a record that changes it; empty for Hive's layout. detail: as the command reports it.
    restore: the arguments of `replicator restore` for the table's state at the entry (of a drop: before it); empty:
    it cannot be restored."""

    at: str
    kind: str
    what: str
    id: str
    event: int | None = None
    by: str = ""
    text: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    restore: list[str] = field(default_factory=list)
    moment: str = ""

    @property
    def key(self) -> str:
        return f"{self.at} {self.kind} {self.id}"


@dataclass(frozen=True)
class Timeline:
    """A table's history, by time. root: whose log it is. The newest 1,000 runs of each policy are included."""

    table: str
    root: str
    entries: list[TimelineEntry]


def timeline(asking: Asking) -> Timeline:
    """Returns the timeline of a table. Raises UsageError for an invalid table or time, Late if the log is too long for
    the time limit."""
    db, dot, table = asking.values["table"].lower().partition(".")
    if not (db and dot and table):
        raise UsageError(f"{asking.values['table']!r} is not a table name", hint="write DB.TABLE")
    since, until, name = moment_of(asking, "since"), moment_of(asking, "until"), f"{db}.{table}"
    deadline, records = time.monotonic() + asking.seconds, _Records(asking.root.place)
    kinds, newest = asking.values["kind"], asking.values["order"] == "newest"

    def follows(key: str) -> bool:
        return not asking.after or (key < asking.after if newest else key > asking.after)

    def wanted() -> Iterator[TimelineEntry]:
        for kind, source in (("record", records.entries), *_SOURCES.items()):
            if kinds in (None, kind):
                for each in source(asking, db, table, since):
                    if time.monotonic() > deadline:
                        raise Late(begun=True)
                    if _within(each.at, since, until) and follows(each.key):
                        yield each

    first = heapq.nlargest if newest else heapq.nsmallest
    found = first(asking.limit + 1, wanted(), key=lambda each: each.key)
    return Timeline(name, asking.root.place, records.with_versions(found))


def key_of_entry(entry: dict[str, Any]) -> str:
    return f"{entry['at']} {entry['kind']} {entry['id']}"


def _within(at: str, since: float, until: float) -> bool:
    return (not since or at >= (iso(since) or "")) and (not until or at <= (iso(until) or ""))


class _Records:
    """The records of one table, each with its moment."""

    def __init__(self, root: str) -> None:
        self._root, self._has_log = root, False

    def entries(self, asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
        """Yields the entries; the versions of a log are not read yet."""
        for record, restore in show(self._root, table=f"{db}.{table}").rows():
            self._has_log = self._has_log or has_log(record.change.objects)
            if record.time < since:
                continue
            change = msgspec.to_builtins(record.change)
            yield TimelineEntry(
                at=iso(record.time) or "",
                kind="record",
                what=str(change.get("kind", "")),
                id=f"{record.position:020}",
                event=record.event,
                text=" ".join(filter(None, [record.change.object, record.change.detail])),
                detail=change,
                restore=restore[2:],  # without the root
                moment=recorded_moment(record.change),
            )

    def with_versions(self, entries: list[TimelineEntry]) -> list[TimelineEntry]:
        """Returns the entries of a page with the versions of the table. Reads the file entries of their records, if the
        table has ever had a log."""
        positions = {int(each.id) for each in entries if each.kind == "record" and each.what in _WRITING}
        if not (self._has_log and positions):
            return entries
        versions = log_versions_at(segments(self._root), positions)
        return [
            replace(each, moment=versions.get(int(each.id), each.moment)) if each.kind == "record" else each
            for each in entries
        ]


def _removals(asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
    moment = iso(since) if since else None
    shown = audit_ls(cmroot=asking.root.place, object=f"{db}.{table}", since=moment, limit=ROWS)
    if shown.more:
        raise UsageError(f"the audit has more than {ROWS:,} rows about {db}.{table}", hint="use a later `since`")
    for number, row in enumerate(shown.found):
        what, said = f"{row.job}: {row.outcome}", msgspec.to_builtins(row)
        text = f"{row.path or row.partition}: {row.reason}"
        yield TimelineEntry(
            _iso_of(row.time), "removal", what, f"{row.run}/{number:08}", None, f"{row.run} {row.who}", text, said
        )


def _verifications(asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
    """Yields the last comparison of the table by each policy, and by manual samples."""
    for policy, place, name in _memories(asking, db):
        found = read_memory(place, name)[0].tables.get(table)
        if found is not None and found.verified:
            said = {"outcome": found.outcome, "bytes": found.size, "share": found.share}
            yield TimelineEntry(
                iso(found.verified) or "", "verification", found.outcome, policy, None, policy, "compared", said
            )


def _memories(asking: Asking, db: str) -> Iterator[tuple[str, str, str]]:
    for policy in _policies(asking, db):
        memory = Memory(open_existing(policy.target_cmroot), policy.name)
        yield policy.name, str(memory.place / "verified"), policy.target_name(db)
        yield f"{policy.name}: by hand", memory_of(policy.target_cmroot), policy.target_name(db)


def _policies(asking: Asking, db: str) -> list[Policy]:
    """Returns the policies of the root that replicate a database, and have run."""
    config = asking.serving.config
    there = [config.policies[name] for name in asking.root.policies if asking.who.may("viewer", name)]
    return [each for each in there if matching_databases(each, [db]) and has_root(each.target_cmroot)]


def _runs(asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
    for policy in _policies(asking, db):
        for run in history(policy.name, limit=RUNS, config=asking.serving.config).runs:
            if run.records or run.files:
                text = f"{run.status}: {count_text(run.records, 'record')}, {count_text(run.files, 'file')}"
                said = {"from_event": run.from_event, "to_event": run.to_event, "dump": run.dump, "error": run.error}
                at = _iso_of(run.ended or run.started)
                yield TimelineEntry(at, "run", run.kind, run.id, run.to_event, f"policy {policy.name}", text, said)


def _pins(kind: str) -> Any:
    def pinned(asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
        found = cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)
        pins = found.dumps if kind == "dump" else found.holds
        positions = {each["name"]: int(each["needs_after" if kind == "dump" else "position"]) for each in pins}
        states = states_at(asking.root.place, f"{db}.{table}", positions.values()) if pins else {}
        for each in pins:
            text, state = str(each.get("place") or each.get("reason") or ""), states.get(positions[each["name"]])
            restore = state.arguments if state else []
            at, name, event = _iso_of(each["created"]), each["name"], each["event"]
            yield TimelineEntry(at, kind, name, name, event, "", text, {}, restore)

    return pinned


_SOURCES = {
    "removal": _removals,
    "verification": _verifications,
    "run": _runs,
    "dump": _pins("dump"),
    "hold": _pins("hold"),
}


def _iso_of(text: str) -> str:
    """Formats a time as in all entries, so that texts sort by time."""
    return iso(seconds(text)) or ""
