"""Queries about the tables of policies: their format and size as the last capture recorded them, and their state on the
target as last measured. Reads the manifest next to the captured log, a page at a time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from cmroot.log.captured import Segment, segments
from cmroot.root import open_existing
from replicator.captures.dumps.table_moments import known_moment
from replicator.captures.inventory import Inventory, ListedTable, last_recorded, naming_damage
from replicator.captures.manifest import manifest_path
from replicator.core import formats
from replicator.core.not_replicated import NAMES_SOURCE, SOURCE_GRANTS, NotReplicated
from replicator.core.policy import Policy, matching_databases
from replicator.core.text import count_text
from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.metastore.events.scope import Patterns
from replicator.policies.lag import TABLES, DatabaseLag, Lag
from replicator.replay.server_rules import NO_CONSTRAINT, NO_GRANTS
from replicator.service.api_tokens import Identity
from replicator.service.pages.attention import Differences, differences_of
from replicator.service.runs import iso
from replicator.service.web.endpoint import Asking
from replicator.service.web.policy_queries import TableComparisons, text_of
from replicator.service.web.serving import Serving, require

_PARTS = (NO_CONSTRAINT, NO_GRANTS, NAMES_SOURCE)
"""Beginnings of reasons why a part of a table is not replicated; its rows are."""

TableState = Literal["in sync", "behind", "differs", "partly replicated", "not replicated", "unknown"]
STATES: tuple[TableState, ...] = get_args(TableState)
FORMATS = tuple(formats.FORMATS)
_Key = tuple[str, str, str]  # of a row: its database, table and policy
_READERS = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro", "sequencefile": "SequenceFile", "text": "text"}


@dataclass(frozen=True)
class TableView:
    """A table of a policy. table: "db.name"; db: its first part. format: as `state` one of the filter; stored: the
    format of its files. state: on the target; reason: why it is not replicated, or its state not known. moment:
    its version, snapshot or write ids, in the terms of its format; empty for Hive's layout. moment, files, bytes,
    changed (ISO 8601): as the last capture recorded them, None if unknown. replicated_until: the target has all changes
    until then; None: not known, or a part of it is not replicated or differs. verified: its last comparison."""

    table: str
    db: str
    policy: str
    format: str
    stored: str
    state: TableState
    reason: str
    moment: str
    files: int
    bytes: int
    changed: str | None
    replicated_until: str | None
    verified: str | None


@dataclass(frozen=True)
class TableList:
    """Tables by name. unknown: policies whose tables are not all known here, and why."""

    tables: list[TableView]
    unknown: dict[str, str]


@dataclass(frozen=True)
class Totals:
    """The totals of a policy. tables, bytes: as the last capture recorded them; None: not known. verified: the last
    comparison by its runs, ISO 8601; never: tables without a comparison. not_replicated: by reason."""

    policy: str
    tables: int | None
    bytes: int | None
    error: str
    verified: str | None
    never: int | None
    not_replicated: list[LeftOut]


@dataclass(frozen=True)
class LeftOut:
    """Objects that are not replicated for one reason. bytes: of those whose size is known; unsized: the number of the
    others. share: of the policy's bytes, None if that is not known. names: the first of them."""

    reason: str
    objects: int
    bytes: int
    unsized: int
    share: float | None
    names: list[str]


@dataclass(frozen=True)
class TotalsList:
    """Totals by policy."""

    totals: list[Totals]


@dataclass
class _PolicyTables:
    """A policy, and its tables' states as last measured. lag: None if it is not known now. differences: None: there are
    none."""

    policy: Policy
    lag: Lag | None
    differences: Differences | None

    @classmethod
    def of(cls, serving: Serving, policy: Policy, differences: Differences | None = None) -> _PolicyTables:
        found = serving.watch.found.get(policy.name)
        return cls(policy, found.lag if found and not found.stale else None, differences)

    def __post_init__(self) -> None:
        lag = self.lag
        self.known_as = {each.db: each for each in lag.databases} if lag else {}
        self.waiting = {each.table: each for each in lag.tables} if lag else {}
        self.patterns = Patterns.parse(self.policy.include, self.policy.exclude)
        self.verified = TableComparisons(self.policy, bool(lag and lag.reverse))
        self.named = frozenset(self.differences.names if self.differences else ())
        self.left_out: dict[str, NotReplicated] = {}
        for each in lag.not_replicated if lag else ():
            if each.object not in self.left_out or not each.partition:
                self.left_out[each.object] = each

    @property
    def why_unknown(self) -> str:
        """Returns why it is not known now what is not replicated; "": it is known."""
        if self.lag is None:
            return "its lag is not known, and so not what is not replicated"
        return f"what is not replicated is not known: {self.away}" if self.away else ""

    @property
    def away(self) -> str:
        sides = " and ".join(self.lag.unreachable) if self.lag else ""
        return f"no answer from {sides}" if sides else ""

    @property
    def root(self) -> str:
        """Returns the root of the side that is replicated."""
        return self.policy.target_cmroot if self.lag and self.lag.reverse else self.policy.cmroot

    def selects(self, db: str, table: str) -> bool:
        """Returns True if the policy's patterns match a table, regardless of what exists."""
        return bool(matching_databases(self.policy, [db])) and self.patterns.match(table)

    def has(self, db: str, table: str) -> bool:
        return db in self.known_as and self.patterns.match(table) if self.known_as else self.selects(db, table)

    def replica(self, db: str) -> str:
        return self.known_as[db].replica if db in self.known_as else self.policy.target_name(db)

    def state(self, db: str, table: str) -> tuple[TableState, str]:
        """Returns the state of a table, and why it is not replicated or not known. Known differences and reasons count
        also while a side does not answer. It is in sync only if nothing that is not known can concern it."""
        name, database = f"{db}.{table}", self.known_as.get(db)
        about = self.left_out.get(name)
        reason = about.reason if about else ""
        if about and not about.unknown and not about.partition and not reason.startswith(_PARTS):
            return "not replicated", reason
        if self.differs(db, table):
            return "differs", reason
        if about and not about.unknown:
            return "partly replicated", reason
        if self.lag is None:
            return "unknown", "the lag of its policy is not known"
        if self.away or database is None or database.position is None:
            return "unknown", self.away or "its database was never loaded completely"
        if name in self.waiting:
            return "behind", reason
        why = reason or self._why_not_in_sync(self.lag, database) or self._why_not_compared(db, table)
        return ("unknown", why) if why else ("in sync", "")

    def differs(self, db: str, table: str) -> bool:
        return f"{db}.{table}" in self.named or self.verified.differs(self.replica(db), table)

    def _why_not_in_sync(self, lag: Lag, database: DatabaseLag) -> str:
        """Returns why changes may wait for a table that is not listed with any."""
        about = self.left_out.get(database.db)
        if about and not about.reason.startswith((NO_GRANTS, SOURCE_GRANTS)):  # grants of the database alone
            return f"of {database.db}: {about.reason}"
        if lag.at_least:
            return "the lag is only a lower bound"
        if lag.unexamined:
            return f"{lag.unexamined:,} events that are not captured were not assigned to tables"
        if len(lag.tables) >= TABLES:
            return f"more than the {TABLES:,} listed tables may be behind"
        return "a load of its database has not ended" if database.status == "loading" else ""

    def _why_not_compared(self, db: str, table: str) -> str:
        """Returns why a table may be one of those that differ, but are not known by name."""
        if self.verified.error:
            return f"its comparisons are not known: {self.verified.error}"
        if self.differences is None or not self._unnamed:
            return ""
        since = datetime.fromisoformat(self.differences.at).timestamp() if self.differences.at else 0.0
        is_same_since = (self.verified.at(self.replica(db), table) or 0.0) > since
        return "" if is_same_since else f"{count_text(self._unnamed, 'differing table')} not known by name"

    @cached_property
    def _unnamed(self) -> int:
        """The number of known differences without a known name."""
        if self.differences is None or self.differences.count <= len(self.named):
            return 0
        stored = {f"{db}.{name}" for db in self.known_as for name in self.verified.differing(self.replica(db))}
        return max(0, self.differences.count - len(stored | self.named))

    def until(self, db: str, table: str, state: TableState) -> float | None:
        """Returns the time until which the target has every change of a table, in seconds since 1970; None: not
        known."""
        database, waiting = self.known_as.get(db), self.waiting.get(f"{db}.{table}")
        if state not in ("in sync", "behind") or database is None or database.covered_until is None:
            return None
        oldest = waiting.oldest if waiting else 0.0
        return min(database.covered_until, oldest) if oldest else float(database.covered_until)

    @property
    def manifest(self) -> Path:
        return manifest_path(open_existing(self.root))

    @contextmanager
    def inventory(self) -> Iterator[Inventory]:
        """Opens the manifest of its tables. Raises ObjectNotFound if no capture of this host has written one."""
        with last_recorded(self.manifest) as found:
            if found is None:
                raise ObjectNotFound("no capture has run on this host", hint="its next run records its tables")
            yield found


def tables(asking: Asking) -> TableList:
    """Returns a page of tables by name, of all policies that the user may view. table: only this one. Damage of one
    policy's manifest does not affect the others."""
    given, serving = asking.values, asking.serving
    after, names = _read_key(asking.after), names_of(given["table"] or "")
    chosen = [each for each in _chosen(asking) if not given["table"] or any(each.has(*name) for name in names)]
    differences = differences_of(serving, [each.policy.name for each in chosen])
    text, unknown, found = (given["search"] or "").strip().lower(), dict[str, str](), list[TableView]()
    with ExitStack() as stack:
        pages = []
        for each in chosen:
            some = _Listing(replace(each, differences=differences.get(each.policy.name)), unknown)
            rows = some.rows(after, names, text, given["state"], given["format"])
            pages.append(stack.enter_context(closing(rows)))
        for _, some, table in heapq.merge(*pages, key=lambda row: row[0]):
            if view := some.view(table):
                found.append(view)
            if len(found) > asking.limit:
                break
    return TableList(found, unknown)


def names_of(text: str) -> list[tuple[str, str]]:
    """Returns what "db.name" may name, in order: either part may contain a dot."""
    texts = {text, text.lower()}
    found = {(each[:at], each[at + 1 :]) for each in texts for at, sign in enumerate(each) if sign == "."}
    return sorted((db, name) for db, name in found if db and name)


def key_of_table(row: dict[str, Any]) -> str:
    db = row["db"]
    return msgspec.json.encode((db, row["table"][len(db) + 1 :], row["policy"])).decode()


def _read_key(text: str) -> _Key:
    """Returns the key that `key_of_table` wrote. Raises UsageError for any other text."""
    try:
        return msgspec.json.decode(text, type=_Key) if text else ("", "", "")
    except msgspec.DecodeError as error:
        raise UsageError("invalid cursor", hint="use `next` of the previous page, or omit it") from error


def _chosen(asking: Asking) -> list[_PolicyTables]:
    wanted = asking.values["policy"]
    if wanted:
        require(asking.who, "viewer", wanted)
    return [each for each in _viewed(asking.serving, asking.who) if wanted in (None, each.policy.name)]


def _viewed(serving: Serving, who: Identity) -> list[_PolicyTables]:
    names = [each for each in sorted(serving.config.policies) if who.may("viewer", each)]
    return [_PolicyTables.of(serving, serving.config.policies[each]) for each in names]


def tables_of(serving: Serving, policy: str) -> _PolicyTables:
    """Returns a policy's tables as last measured."""
    return _PolicyTables.of(serving, serving.config.policies[policy])


def policies_of(serving: Serving, who: Identity, table: str) -> list[str]:
    """Returns the policies that select a table, "db.name", of those that the user may view."""
    names = names_of(table)
    return [each.policy.name for each in _viewed(serving, who) if any(each.selects(*name) for name in names)]


class _Listing:
    """A policy's matching tables by name. Why not all are known is added to `unknown`, which all listings share."""

    def __init__(self, of: _PolicyTables, unknown: dict[str, str]) -> None:
        self._of, self._times, self._unknown = of, _Times(of.root), unknown
        self._known: Inventory | None = None

    def rows(
        self, after: _Key, names: Sequence[tuple[str, str]], text: str, state: str | None, format: str | None
    ) -> Generator[tuple[_Key, _Listing, ListedTable]]:
        """Yields the tables after a key, of some names only (empty: all). `view` reads the rest of one; only until the
        last is drawn."""
        of = self._of
        try:
            with of.inventory() as self._known:
                for each in self._known.tables_named(names) if names else self._known.tables_from(*after[:2]):
                    key = each.db, each.name, of.policy.name
                    if key <= after or not of.has(each.db, each.name) or format not in (None, each.format):
                        continue
                    if text in f"{each.db}.{each.name}".lower() and state in (None, of.state(each.db, each.name)[0]):
                        yield key, self, each
        except (Error, OSError) as error:
            self._unknown[of.policy.name] = text_of(error)

    def view(self, each: ListedTable) -> TableView | None:
        """Returns None for one that cannot be read."""
        assert self._known is not None
        of, state = self._of, self._of.state(each.db, each.name)
        try:
            with naming_damage(of.manifest):
                contents = self._known.contents(each.id)
                moment = known_moment(self._known, each.db, each.name)
        except (Error, OSError) as error:
            self._unknown[of.policy.name] = text_of(error)
            return None
        reader = ((contents.table.storage.input_format or "") if contents.table.storage else "").lower()
        return TableView(
            table=f"{each.db}.{each.name}",
            db=each.db,
            policy=of.policy.name,
            format=each.format,
            stored="view"
            if contents.table.is_view
            else next((says for part, says in _READERS.items() if part in reader), ""),
            state=state[0],
            reason=state[1],
            moment=moment,
            files=contents.files,
            bytes=contents.bytes,
            changed=iso(self._times.at(contents.changed)),
            replicated_until=iso(of.until(each.db, each.name, state[0])),
            verified=iso(of.verified.at(of.replica(each.db), each.name)),
        )


class _Times:
    """The times of the captures that recorded positions of a log."""

    def __init__(self, root: str) -> None:
        self._root = root

    def at(self, position: int) -> float | None:
        """Returns the time of the capture that recorded a position; None: that part of the log no longer exists, or
        cannot be read."""
        found = bisect_left(self._log, position, key=lambda each: each.last)
        captures = self._log[found].captures if found < len(self._log) else []
        return next((float(each.about["time"]) for each in captures if each.first <= position <= each.last), None)

    @cached_property
    def _log(self) -> list[Segment]:
        try:
            return segments(open_existing(self._root).place)
        except (Error, OSError):  # the policy's lag reports it
            return []


def totals(asking: Asking) -> TotalsList:
    """Returns totals by policy. Reads every file entry of the manifests that changed since the last request."""
    return TotalsList([_totals(asking.serving, each) for each in _chosen(asking)])


@dataclass(frozen=True)
class _Sum:
    """The tables of a policy and their bytes. left_out: the bytes of those that are not replicated, by name."""

    tables: int
    bytes: int
    left_out: Mapping[str, int]


def _sum_of(serving: Serving, of: _PolicyTables) -> _Sum:
    """Sums up a policy's tables, once for a position of its manifest and an extent of its tables. Raises as
    `inventory`."""
    there, sums = of.policy, serving.sums
    with of.inventory() as known:
        position = known.recall("position")
        extent = there.databases, there.include, there.exclude, frozenset(of.known_as), frozenset(of.left_out)
        key = open_existing(of.root).id, position, extent
        kept, found = sums.get(there.name, (None, None))
        if isinstance(found, _Sum) and position is not None and kept == key:
            return found
        sizes = {f"{each.db}.{each.name}": size for each, size in known.sizes() if of.has(each.db, each.name)}
    found = _Sum(len(sizes), sum(sizes.values()), {name: sizes[name] for name in of.left_out if name in sizes})
    sums[there.name] = key, found
    for gone in set(sums) - set(serving.config.policies):
        sums.pop(gone, None)
    return found


def _totals(serving: Serving, of: _PolicyTables) -> Totals:
    error, compared, found = "", serving.watch.compared.get(of.policy.name), None
    try:
        found = _sum_of(serving, of)
    except (Error, OSError) as failed:
        error = text_of(failed)
    groups: dict[str, list[NotReplicated]] = {}
    for each in of.lag.not_replicated if of.lag else ():
        groups.setdefault(each.reason, []).append(each)
    sizes, total = (found.left_out, found.bytes) if found else ({}, None)
    return Totals(
        policy=of.policy.name,
        tables=found.tables if found else None,
        bytes=total,
        error=error or of.why_unknown,
        verified=compared.ended or None if compared else None,
        never=compared.never if compared else None,
        not_replicated=[_left_out(reason, some, sizes, total) for reason, some in sorted(groups.items())],
    )


def _left_out(reason: str, some: list[NotReplicated], sizes: Mapping[str, int], total: int | None) -> LeftOut:
    known = [each.bytes or (sizes.get(each.object) if not each.partition else None) for each in some]
    size, unsized = sum(each or 0 for each in known), sum(not each for each in known)
    share = size / total if total and unsized < len(some) else None
    return LeftOut(reason, len(some), size, unsized, share, [each.name for each in some[:100]])
