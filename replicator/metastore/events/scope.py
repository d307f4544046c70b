"""Scope: the databases that a root captures, and the changes that concern them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from cmroot.errors import FormatError
from cmroot.log.captured import Segment
from cmroot.store.place import Place
from replicator.core.model import Database, Function, NotificationEvent, Partition, Statistics, Table, partition_spec
from replicator.core.roles import without_role
from replicator.core.text import PartitionFilter, parse_duration
from replicator.errors import Refused, UsageError
from replicator.metastore.client import EVENT_BATCH, MetastoreReader
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import Change, DropTable, partition_names
from replicator.metastore.fields import ids


def captured_databases(log: Sequence[Segment]) -> list[str] | None:
    """Returns the databases of a captured log, sorted, including those dropped since. None if the log is empty, or if
    its newest segment was written before segments recorded them."""
    names = log[-1].metadata.get("databases") if log else None
    return sorted(map(str, names)) if isinstance(names, list) else None


def changes_in_scope(change: Change, databases: Collection[str]) -> Iterator[Change]:
    """Yields the part of a change that concerns the databases: a rename out of them is a drop; a rename into them is an
    alter of a table unknown before."""
    if change.touched_db in databases or change.lost or (change.unread is not None and not change.touched_db):
        yield change
    elif change.rename and change.rename[0][0] in databases:
        yield DropTable(db=change.rename[0][0], name=change.rename[0][1])


@dataclass(frozen=True)
class Patterns:
    """The tables of a database in a dump: names that match any include (all if there is none) and no exclude. Patterns
    are case-insensitive regular expressions for the full name, as in Hive's replication policies. `partitions`:
    "db.table" in lower case -> its partitions; others are treated as nonexistent."""

    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()
    partitions: Mapping[str, PartitionFilter] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        partitions: Mapping[str, PartitionFilter] | None = None,
    ) -> Patterns:
        """Parses patterns. Raises UsageError for one that is not a regular expression."""
        return cls(tuple(map(_compile, include)), tuple(map(_compile, exclude)), dict(partitions or {}))

    @classmethod
    def of_names(cls, names: Iterable[str], partitions: Mapping[str, PartitionFilter] | None = None) -> Patterns:
        """Selects exactly these tables; none if there are no names."""
        text = "|".join(map(re.escape, sorted(set(names))))
        return cls.parse([text or "(?!)"], partitions=partitions)

    @property
    def everything(self) -> bool:
        """True if every table is selected, possibly without some of its partitions."""
        return not self.include and not self.exclude

    def match(self, table: str) -> bool:
        included = not self.include or any(pattern.fullmatch(table) for pattern in self.include)
        return included and not any(pattern.fullmatch(table) for pattern in self.exclude)

    def filter_of(self, db: str, table: str) -> PartitionFilter | None:
        """Returns the filter of a table's partitions; None: all are selected."""
        return self.partitions.get(f"{db}.{table}".lower()) if self.partitions else None

    def filter_for(self, table: Table) -> PartitionFilter | None:
        """Returns the filter of a table. Raises UsageError if the filter uses a name that is not a partition key of the
        table."""
        found = self.filter_of(table.db, table.name)
        unknown = found.unknown_keys([key.name for key in table.partition_keys]) if found else []
        if found and unknown:
            raise UsageError(
                f"the filter {found.text!r} of {table.db}.{table.name} uses {', '.join(unknown)}: not partition keys "
                "of the table",
                hint="fix the filter, or remove it; with it, the partitions to replicate cannot be determined",
            )
        return found


def matches_name(wanted: PartitionFilter, name: str) -> bool:
    """Returns True if the filter selects a partition of this escaped name. A partition without the filter's keys, left
    from an earlier table of that name, is not selected."""
    keys, values = partition_spec(name)
    return not wanted.unknown_keys(keys) and wanted.matches(keys, values)


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise UsageError(
            f"not a regular expression: {text!r}: {error}", hint="patterns match complete table names, e.g. 'sales_.*'"
        ) from error


# ---- compare ---------------------------------------------------------------------------------------------------------
# Comparison of the captured log with the current metastore: the differences, as changes. Pure.


COMPUTED_BY_IMPALA = "impala.lastComputeStatsTime"


def database_change(known: Database | None, now: Database) -> Iterator[Change]:
    if known is None:
        yield kinds.CreateDatabase(database=now)
    elif not same_database(known, now):
        yield kinds.AlterDatabase(database=now)


def same_database(known: Database, now: Database) -> bool:
    """Returns True if at most a role differs: roles belong to each metastore, and are not changes of the source."""
    if known == now:
        return True
    return _plain(known) == _plain(now)


def _plain(database: Database) -> Database:
    """Removes the role, and the catalog, which servers return but events do not contain."""
    extra = {key: value for key, value in database.extra.items() if key not in _CATALOG}
    return msgspec.structs.replace(database, parameters=without_role(database.parameters), extra=extra)


_CATALOG = ids("Database", "catalogName")


def function_changes(known: Sequence[Function], now: Sequence[Function]) -> Iterator[Change]:
    before = {function.name: function for function in known}
    for function in now:
        if before.pop(function.name, None) != function:
            yield kinds.CreateFunction(function=function)
    for function in before.values():
        yield kinds.DropFunction(db=function.db, name=function.name)


def table_change(known: Table | None, now: Table) -> Iterator[Change]:
    """A table that was recreated (its creation time changed, as after a drop that was not seen) starts again."""
    if known is None or known.create_time != now.create_time or known.partition_keys != now.partition_keys:
        yield kinds.CreateTable(table=now)
    elif comparable(known) != comparable(now):
        yield kinds.AlterTable(db=known.db, name=known.name, table=now, location_before=known.location)


def dropped_tables(db: str, known: Sequence[str], now: Sequence[str]) -> Iterator[Change]:
    for name in sorted(set(known) - set(now)):
        yield kinds.DropTable(db=db, name=name)


def partition_changes(table: Table, known: Mapping[str, Partition], now: Sequence[Partition]) -> Iterator[Change]:
    """Yields added and altered partitions of a batch; `known` by name. A new creation time means a new partition."""
    keys = tuple(key.name for key in table.partition_keys)
    added, altered = [], []
    for name, partition in zip(partition_names(keys, now), now, strict=True):
        before = known.get(name)
        if before is None or before.create_time != partition.create_time:
            added.append(partition)
        elif comparable(before) != comparable(partition):
            altered.append(partition)
    if added:
        yield kinds.AddPartitions(db=table.db, table=table.name, keys=keys, partitions=tuple(added))
    if altered:
        yield kinds.AddPartitions(db=table.db, table=table.name, keys=keys, partitions=tuple(altered), replace=False)


def dropped_partitions(table: Table, gone: Sequence[str]) -> Iterator[Change]:
    if gone:
        yield kinds.DropPartitions(db=table.db, table=table.name, names=tuple(gone))


def statistics_change(
    db: str, table: str, known: Sequence[Statistics], now: Sequence[Statistics], asked: Sequence[str | None]
) -> Iterator[Change]:
    """Yields statistics that are new or different, and, without columns, those of objects in `asked` (None: the table)
    that no longer exist."""
    before = {each.partition: each for each in known}
    there = {each.partition for each in now}
    gone = (Statistics(db=db, table=table, partition=each) for each in asked if each in before and each not in there)
    changed = (*(each for each in now if before.get(each.partition) != each), *gone)
    if changed:
        yield kinds.SetStatistics(db=db, table=table, statistics=changed)


def has_column_statistics(parameters: Mapping[str, str]) -> bool:
    """Returns True if the metastore marked column statistics as present (StatsSetupConst.COLUMN_STATS_ACCURATE), for
    any engine, or if Impala did."""
    return '"COLUMN_STATS"' in parameters.get("COLUMN_STATS_ACCURATE", "") or COMPUTED_BY_IMPALA in parameters


def comparable(obj: Table | Partition) -> Table | Partition:
    """Removes fields that change on reading, and fields that an event's copy of an object does not contain."""
    if isinstance(obj, Table):
        return msgspec.structs.replace(
            obj,
            last_access_time=0,
            privileges=None,
            extra={},
            temporary=False,
            rewrite_enabled=bool(obj.rewrite_enabled),
        )
    return msgspec.structs.replace(obj, last_access_time=0, extra={})


# ---- unread ----------------------------------------------------------------------------------------------------------
# Events that change nothing in a replica, and counts of those that this release cannot parse.


IRRELEVANT = frozenset(
    {
        "OPEN_TXN",
        "COMMIT_TXN",
        "ABORT_TXN",
        "ACID_WRITE_EVENT",
        "BATCH_ACID_WRITE_EVENT",
        "COMMIT_COMPACTION_EVENT",
        "CREATE_CATALOG",
        "ALTER_CATALOG",
        "DROP_CATALOG",
        "CREATE_DATACONNECTOR",
        "ALTER_DATACONNECTOR",
        "DROP_DATACONNECTOR",
        "CREATE_ISCHEMA",
        "ALTER_ISCHEMA",
        "DROP_ISCHEMA",
        "ADD_SCHEMA_VERSION",
        "ALTER_SCHEMA_VERSION",
        "DROP_SCHEMA_VERSION",
        "CONFIG_CHANGE_EVENT",
        "RELOAD",
    }
)
"""Event types that change neither replicated metadata nor its files. Each query of a Hive 4 cluster opens a
transaction."""


def is_irrelevant(event: NotificationEvent) -> bool:
    """Returns True if an event changes nothing in a replica: by its type, or because of another catalog."""
    return event.type in IRRELEVANT or event.catalog is not None


NAMED = 10  # events that are named one by one
KINDS = 20  # kinds that are counted separately
OTHERS = "other kinds"


@dataclass
class UnreadEvents:
    """Events with types or messages that this release cannot parse. `first`: id and type of the first ones; `kinds`:
    the count of each type."""

    first: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.kinds.total()

    def add(self, event: int, kind: str) -> None:
        if len(self) < NAMED:
            self.first.append(f"event {event}: {kind}")
        self.kinds[kind if kind in self.kinds or len(self.kinds) < KINDS else OTHERS] += 1

    def listed(self) -> list[str]:
        """Returns the first events by name and, if there are more, the counts of all types."""
        if len(self) <= NAMED:
            return list(self.first)
        return [*self.first, f"in total: {', '.join(f'{count:,} {kind}' for kind, count in self.kinds.most_common())}"]


# ---- reach -----------------------------------------------------------------------------------------------------------
# The range of a notification log, and its newest event. Reads only.


TTL = "hive.metastore.event.db.listener.timetolive"
WAITING = 100_000  # maximum number of events examined for waiting ones


def newest_event(metastore: MetastoreReader) -> NotificationEvent | None:
    """Returns the newest row of the log, or None if it is empty. Raises NotificationLogOff."""
    newest = metastore.current_event_id()
    rows = metastore.next_events(newest - 1, 1) if newest else []
    return rows[-1] if rows else None


@dataclass(frozen=True)
class Reach:
    """The range of a notification log. `oldest`: its first row; `needed`: the first row after `cursor`, the id last
    captured (None: nothing was captured). `life`: how long the server retains events; None: unknown."""

    newest: int
    oldest: NotificationEvent | None
    cursor: int | None
    needed: NotificationEvent | None
    life: timedelta | None


def read_reach(source: MetastoreReader, cursor: int | None) -> Reach:
    """Reads the range of a notification log. Raises NotificationLogOff."""
    newest = source.current_event_id()
    oldest = source.next_events(0, 1)
    needed = source.next_events(cursor, 1) if cursor is not None and cursor < newest else []
    return Reach(newest, _first(oldest), cursor, _first(needed), event_life(source.setting(TTL)))


@dataclass(frozen=True)
class Waiting:
    """Events after a position that may change something, in order. `more`: the number of ids after them that were not
    examined."""

    events: list[NotificationEvent]
    more: int = 0


def waiting_events(source: MetastoreReader, after: int, newest: int, limit: int = WAITING) -> Waiting:
    """Examines up to `limit` events; on Hive 4, up to as many that may change something, because the transactions of an
    idle cluster do not count."""
    found: list[NotificationEvent] = []
    looked = 0
    while after < newest and looked < limit:
        page = source.next_events(after, min(EVENT_BATCH, limit - looked), IRRELEVANT)
        if not page:
            return Waiting(found)
        found += [row for row in page if row.id <= newest and not is_irrelevant(row)]
        after, looked = page[-1].id, looked + len(page)
    return Waiting(found, max(0, newest - after))


def behind(source: MetastoreReader, event: int, clock: Callable[[], float]) -> float | None:
    """Returns for how many seconds the first relevant event after `event` has been waiting; 0 if there is none, None if
    it is no longer in the log."""
    newest = source.current_event_id()
    if newest <= event:
        return 0.0
    if not source.next_events(event, 1):
        return None
    waiting = waiting_events(source, event, newest).events
    return round(max(0.0, clock() - waiting[0].time), 3) if waiting else 0.0


def _first(rows: Sequence[NotificationEvent]) -> NotificationEvent | None:
    return rows[0] if rows else None


def event_life(text: str) -> timedelta | None:
    """Parses the setting's value: `86400s`, `1d`, `1440m`, `86400000ms`, `2days`; without a unit, seconds."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?[a-z]*", text.strip().lower())
    if not match:
        return None
    return parse_duration(f"{match[1]}{match[2] or 's'}") or None


# ---- root catalog ----------------------------------------------------------------------------------------------------
# The catalog of a root: one database name in two catalogs is two databases, and a root stores only names.


FILE = "catalog"
_USED = ("log", "files", "loads")


class _Catalog(msgspec.Struct, frozen=True):
    catalog: str


def bind_catalog(root: str, metastore: MetastoreReader) -> None:
    """Binds a root to the first catalog that is captured into it, loaded next to it, or cleaned by a removal job.
    Raises Refused for another catalog. Requires a lease of the root; may run twice."""
    refuse_other_catalog(root, metastore)
    bound = metastore.bound_catalog
    if bound is not None and bound != metastore.default_catalog and root_catalog(root) is None:
        (Place(root) / FILE).write_bytes(msgspec.json.encode(_Catalog(bound)) + b"\n")


def refuse_other_catalog(root: str, metastore: MetastoreReader) -> None:
    """Checks as `bind_catalog` does, without binding."""
    known, bound = root_catalog(root), metastore.bound_catalog
    if known == bound or (known is None and not any(_has_names(Place(root) / name) for name in _USED)):
        return
    default = metastore.default_catalog
    known, wanted = known or default, bound or default
    if known != wanted:
        raise Refused(
            f"{root} is the root of catalog {known}, not of {wanted}", hint="use another $cmroot for each catalog"
        )


def _has_names(place: Place) -> bool:
    try:
        return bool(place.list())
    except FileNotFoundError:
        return False


def root_catalog(root: str) -> str | None:
    """Returns the catalog that a root is bound to; None: to none, or to the default one. Raises FormatError."""
    path = Place(root) / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Catalog).catalog
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint='write {"catalog": "NAME"} with the name of its catalog') from error
