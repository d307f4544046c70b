"""The timeline of a table: its records in the captured log, removals, comparisons, runs, and the dumps and holds of its
root."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cmroot.pins import seconds
from cmroot.root import open_existing
from replicator.commands.audit import audit_ls
from replicator.commands.cm import cm_slots
from replicator.commands.show import show
from replicator.commands.status import history
from replicator.compare.sampling import memory_of, read_memory
from replicator.core.policy import Policy, matching_databases
from replicator.errors import UsageError
from replicator.policies.memory import Memory
from replicator.service.run_history import iso
from replicator.service.web.queries.endpoint import Asking
from replicator.service.web.queries.of_policies import has_root, moment_of
from replicator.service.web.queries.time_limits import Late

ROWS = 100_000  # audit rows of one table
RUNS = 1000  # newest runs of each policy
KINDS = ("record", "removal", "verification", "run", "dump", "hold")


@dataclass(frozen=True)
class TimelineEntry:
    """An entry of a timeline. at: ISO 8601. kind: record (of the captured log; `what`: the change), removal (a row of
    the audit), verification, run (of a policy, that loaded something; not of this table alone), dump or hold (of the
    root). event: of the source's log. by: the run, policy or user. text: for display. detail: as the command reports
    it."""

    at: str
    kind: str
    what: str
    id: str
    event: int | None = None
    by: str = ""
    text: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

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
    if not (db and dot and table) or "." in table:
        raise UsageError(f"{asking.values['table']!r} is no table", hint="write DB.TABLE")
    since, until, name = moment_of(asking, "since"), moment_of(asking, "until"), f"{db}.{table}"
    deadline = time.monotonic() + asking.seconds
    kinds, newest = asking.values["kind"], asking.values["order"] == "newest"

    def follows(key: str) -> bool:
        return not asking.after or (key < asking.after if newest else key > asking.after)

    def wanted() -> Iterator[TimelineEntry]:
        for kind, source in _SOURCES.items():
            if kinds in (None, kind):
                for each in source(asking, db, table, since):
                    if time.monotonic() > deadline:
                        raise Late(begun=True)
                    if _within(each.at, since, until) and follows(each.key):
                        yield each

    first = heapq.nlargest if newest else heapq.nsmallest
    found = first(asking.limit + 1, wanted(), key=lambda each: each.key)
    return Timeline(name, asking.root.place, found)


def key_of_entry(entry: dict[str, Any]) -> str:
    return f"{entry['at']} {entry['kind']} {entry['id']}"


def _within(at: str, since: float, until: float) -> bool:
    return (not since or at >= (iso(since) or "")) and (not until or at <= (iso(until) or ""))


def _records(asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
    shown = show(asking.root.place, table=f"{db}.{table}", since=iso(since) if since else None)
    for record in shown.records():
        change = msgspec.to_builtins(record.change)
        yield TimelineEntry(
            at=iso(record.time) or "",
            kind="record",
            what=str(change.get("kind", "")),
            id=f"{record.position:020}",
            event=record.event,
            text=" ".join(filter(None, [record.change.object, record.change.detail])),
            detail=change,
        )


def _removals(asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
    moment = iso(since) if since else None
    shown = audit_ls(cmroot=asking.root.place, object=f"{db}.{table}", since=moment, limit=ROWS)
    if shown.more:
        raise UsageError(f"the audit has more than {ROWS:,} rows about {db}.{table}", hint="give a later `since`")
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
                text = f"{run.status}: {run.records:,} records, {run.files:,} files"
                said = {"from_event": run.from_event, "to_event": run.to_event, "dump": run.dump, "error": run.error}
                at = _iso_of(run.ended or run.started)
                yield TimelineEntry(at, "run", run.kind, run.id, run.to_event, f"policy {policy.name}", text, said)


def _pins(kind: str) -> Any:
    def pinned(asking: Asking, db: str, table: str, since: float) -> Iterator[TimelineEntry]:
        found = cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)
        for each in found.dumps if kind == "dump" else found.holds:
            text = str(each.get("place") or each.get("reason") or "")
            yield TimelineEntry(_iso_of(each["created"]), kind, each["name"], each["name"], each["event"], "", text)

    return pinned


_SOURCES = {
    "record": _records,
    "removal": _removals,
    "verification": _verifications,
    "run": _runs,
    "dump": _pins("dump"),
    "hold": _pins("hold"),
}


def _iso_of(text: str) -> str:
    """Formats a time as in all entries, so that texts sort by time."""
    return iso(seconds(text)) or ""
