"""What is to be done about items whose time has come, given what the metastore says at this moment.

`look` asks, in batches; `decide` is pure. Whether a path may go is the guard's to say, afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cmroot.store.place import normal
from replicator.core.model import Partition, Table, partition_name
from replicator.errors import ObjectNotFound
from replicator.lifecycle.housekeeping.items import DISABLED, SKIPPED, Item, iso
from replicator.lifecycle.housekeeping.settings import EXPIRED, LifecycleDefaults, LifecycleSettings, read_settings
from replicator.lifecycle.housekeeping.writing import NOT_ASKED, TABLES_STAY
from replicator.lifecycle.removal.removal import Removal, depth
from replicator.metastore.client import MetastoreReader

UNCAPTURED = "metastore and captured log disagree: capture first"


@dataclass(frozen=True)
class ObjectFacts:
    """What the metastore says about some items' objects. What is not in it does not exist. wishes: by table; filled:
    partitioned tables that have partitions."""

    tables: Mapping[tuple[str, str], Table] = field(default_factory=dict)
    settings: Mapping[tuple[str, str], LifecycleSettings] = field(default_factory=dict)
    partitions: Mapping[tuple[str, str, str], Partition] = field(default_factory=dict)
    filled: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Going:
    """An item that is to go: its object first (`drops`: "partition" or "table", or ""), then its path."""

    item: Item
    removal: Removal
    drops: str = ""


@dataclass(frozen=True)
class Staying:
    """An item that does not go now. status: its state from now on, or empty when it waits; refused: the removal that a
    rule forbids."""

    item: Item
    reason: str
    status: str = ""
    refused: Removal | None = None


def look(metastore: MetastoreReader, items: Sequence[Item], defaults: LifecycleDefaults) -> ObjectFacts:
    """A few calls for a page of items. Raises what the metastore raises: no answer is not "it does not exist"."""
    asked: dict[str, set[str]] = defaultdict(set)
    for one in items:
        if not one.detached:
            asked[one.db].add(one.table)
    tables: dict[tuple[str, str], Table] = {}
    for db, names in asked.items():
        try:
            tables |= {(db, table.name): table for table in metastore.tables(db, sorted(names))}
        except ObjectNotFound:
            continue
    wanted: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in items:
        if one.lifecycle == EXPIRED and one.partition and not one.detached and (one.db, one.table) in tables:
            wanted[one.db, one.table].append(one.partition)
    partitions: dict[tuple[str, str, str], Partition] = {}
    for key, parts in wanted.items():
        try:
            for batch in metastore.partitions(*key, parts):
                for each in batch:
                    partitions[*key, partition_name(tables[key].partition_keys, each.values)] = each
        except ObjectNotFound:
            tables.pop(key)
    settings = {key: read_settings(table, defaults) for key, table in tables.items()}
    return ObjectFacts(tables, settings, partitions, _filled(metastore, items, tables))


def _filled(
    metastore: MetastoreReader, items: Iterable[Item], tables: Mapping[tuple[str, str], Table]
) -> frozenset[tuple[str, str]]:
    found = set()
    for one in items:
        table = tables.get((one.db, one.table))
        if one.lifecycle == EXPIRED and not one.partition and not one.detached and table and table.is_partitioned:
            try:
                if metastore.partition_names(one.db, one.table):
                    found.add((one.db, one.table))
            except ObjectNotFound:
                continue
    return frozenset(found)


def decide(one: Item, facts: ObjectFacts, now: int, min_depth: int) -> Going | Staying:
    """Of an item that is due by the store."""
    if depth(one.place) < min_depth:
        why = f"{one.path} lies {depth(one.place)} deep, and no path above depth {min_depth} is removed"
        return Staying(one, why, SKIPPED, _removal(one, "path"))
    if one.detached:
        return Going(one, _removal(one, "path"))
    table = facts.tables.get((one.db, one.table))
    if table is None:
        return Staying(one, UNCAPTURED)
    settings = facts.settings[one.db, one.table]
    if one.lifecycle in settings.problems:
        return Staying(one, settings.problems[one.lifecycle])
    period = settings.period(one.lifecycle)
    if period is None:
        return Going(one, _removal(one, "path")) if one.begun and _gone(one, facts) else _cancelled(one)
    if period.end(one.created) > now:
        return Staying(one, UNCAPTURED)
    if one.lifecycle != EXPIRED:
        return Going(one, _removal(one, "path"))
    return _expired_partition(one, facts) if one.partition else _expired_table(one, table, facts, settings.drops_table)


def _expired_partition(one: Item, facts: ObjectFacts) -> Going | Staying:
    live = facts.partitions.get((one.db, one.table, one.partition))
    if live is None:
        return Going(one, _removal(one, "path")) if one.begun else Staying(one, UNCAPTURED)
    if not live.location or normal(live.location) != one.place or live.create_time > one.created:
        return Staying(one, UNCAPTURED)
    return Going(one, _removal(one, "partition", drops=True), "partition")


def _expired_table(one: Item, table: Table, facts: ObjectFacts, drops_table: bool) -> Going | Staying:
    if not table.location or normal(table.location) != one.place:
        return Staying(one, UNCAPTURED)
    if not drops_table:
        return Staying(one, TABLES_STAY, SKIPPED)
    if (one.db, one.table) in facts.filled:
        return Staying(one, "it has partitions")
    return Going(one, _removal(one, "table", drops=True), "table")


def _gone(one: Item, facts: ObjectFacts) -> bool:
    return bool(one.partition) and (one.db, one.table, one.partition) not in facts.partitions


def _cancelled(one: Item) -> Staying:
    return Staying(one, NOT_ASKED, DISABLED)


def _removal(one: Item, what: str, *, drops: bool = False) -> Removal:
    if one.lifecycle == EXPIRED:
        reason = f"expired: made {iso(one.created)}, lives {one.delay}, ended {iso(one.cleanup)}"
        if one.detached:
            reason += "; its object does not exist"
    else:
        reason = f"unreferenced since {iso(one.created)} (event {one.event}), kept {one.delay} until {iso(one.cleanup)}"
    return Removal(path=one.path, what=what, object=one.object, partition=one.partition, reason=reason, drops=drops)
