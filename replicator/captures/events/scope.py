"""Scope: which databases a root captures, and which changes concern them."""

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
from replicator.captures.events import record as kinds
from replicator.captures.events.record import Change, DropTable, partition_names
from replicator.core.model import Database, Function, NotificationEvent, Partition, Statistics, Table, partition_spec
from replicator.core.roles import without_role
from replicator.core.text.quantity import parse_duration
from replicator.core.text.sql_text import PartitionFilter
from replicator.errors import Refused, UsageError
from replicator.metastore.client import EVENT_BATCH, MetastoreReader
from replicator.metastore.convert.fields import ids


def captured_databases(log: Sequence[Segment]) -> list[str] | None:
    """Databases that a captured log is about, sorted; those that were dropped since stay. None: the log is empty, or
    its newest segment was written before segments said so."""
    names = log[-1].metadata.get("databases") if log else None
    return sorted(map(str, names)) if isinstance(names, list) else None


def changes_in_scope(change: Change, databases: Collection[str]) -> Iterator[Change]:
    """What of a change concerns the databases: a rename out of them is a drop, one into them a table altered from a
    name that was not known."""
    if change.touched_db in databases or change.lost or (change.unread is not None and not change.touched_db):
        yield change
    elif change.rename and change.rename[0][0] in databases:
        yield DropTable(db=change.rename[0][0], name=change.rename[0][1])


@dataclass(frozen=True)
class Patterns:
    """Which tables of a database a dump holds: names that match any include (all when there is none) and no exclude.
    Patterns are regular expressions for the whole name, regardless of case, as Hive's replication policies.
    `partitions`: "db.table" in lower case -> which of its partitions; a partition outside is as if it did not exist."""

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
        """Raises UsageError for one that is not a regular expression."""
        return cls(tuple(map(_compile, include)), tuple(map(_compile, exclude)), dict(partitions or {}))

    @classmethod
    def of_names(cls, names: Iterable[str], partitions: Mapping[str, PartitionFilter] | None = None) -> Patterns:
        """Exactly these tables; none at all when there are no names."""
        text = "|".join(map(re.escape, sorted(set(names))))
        return cls.parse([text or "(?!)"], partitions=partitions)

    @property
    def everything(self) -> bool:
        """Whether every table is held; of some perhaps not every partition."""
        return not self.include and not self.exclude

    def match(self, table: str) -> bool:
        included = not self.include or any(pattern.fullmatch(table) for pattern in self.include)
        return included and not any(pattern.fullmatch(table) for pattern in self.exclude)

    def filter_of(self, db: str, table: str) -> PartitionFilter | None:
        """Which partitions of a table are held; None: all."""
        return self.partitions.get(f"{db}.{table}".lower()) if self.partitions else None

    def filter_for(self, table: Table) -> PartitionFilter | None:
        """As `filter_of`. Raises UsageError for a filter about what is no partition key of the table."""
        found = self.filter_of(table.db, table.name)
        unknown = found.unknown_keys([key.name for key in table.partition_keys]) if found else []
        if found and unknown:
            raise UsageError(
                f"the filter {found.text!r} of {table.db}.{table.name} asks for {', '.join(unknown)}, which is no "
                "partition key of it",
                hint="mend the filter, or leave it out; nothing of the table can be told to be wanted or not",
            )
        return found


def matches_name(wanted: PartitionFilter, name: str) -> bool:
    """Whether a partition of this escaped name is wanted; one without the filter's keys, of a table that was another
    before, is not."""
    keys, values = partition_spec(name)
    return not wanted.unknown_keys(keys) and wanted.matches(keys, values)


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise UsageError(
            f"not a regular expression: {text!r}: {error}", hint="patterns match whole table names, e.g. 'sales_.*'"
        ) from error


# ---- compare ---------------------------------------------------------------------------------------------------------
# Comparing what the captured log says with what the metastore says now: the difference, as changes. Pure.


COMPUTED_BY_IMPALA = "impala.lastComputeStatsTime"


def database_change(known: Database | None, now: Database) -> Iterator[Change]:
    if known is None:
        yield kinds.CreateDatabase(database=now)
    elif not same_database(known, now):
        yield kinds.AlterDatabase(database=now)


def same_database(known: Database, now: Database) -> bool:
    """Whether only a role has changed, or nothing: roles are each metastore's own, and no change of the source."""
    if known == now:
        return True
    return _plain(known) == _plain(now)


def _plain(database: Database) -> Database:
    """Without its role, and without the catalog, which servers tell, and events do not."""
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
    """A table that became another one (its creation time changed, as after a drop that was not seen) begins again."""
    if known is None or known.create_time != now.create_time or known.partition_keys != now.partition_keys:
        yield kinds.CreateTable(table=now)
    elif comparable(known) != comparable(now):
        yield kinds.AlterTable(db=known.db, name=known.name, table=now, location_before=known.location)


def dropped_tables(db: str, known: Sequence[str], now: Sequence[str]) -> Iterator[Change]:
    for name in sorted(set(known) - set(now)):
        yield kinds.DropTable(db=db, name=name)


def partition_changes(table: Table, known: Mapping[str, Partition], now: Sequence[Partition]) -> Iterator[Change]:
    """Added and altered partitions of one batch; `known` by name. A new creation time means it was added again."""
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
    """Statistics that are new or different, and those of what was `asked` for (None: the table) that are gone, which
    have no columns then."""
    before = {each.partition: each for each in known}
    there = {each.partition for each in now}
    gone = (Statistics(db=db, table=table, partition=each) for each in asked if each in before and each not in there)
    changed = (*(each for each in now if before.get(each.partition) != each), *gone)
    if changed:
        yield kinds.SetStatistics(db=db, table=table, statistics=changed)


def has_column_statistics(parameters: Mapping[str, str]) -> bool:
    """Whether the metastore marked column statistics as present (StatsSetupConst.COLUMN_STATS_ACCURATE), of any engine,
    or Impala did."""
    return '"COLUMN_STATS"' in parameters.get("COLUMN_STATS_ACCURATE", "") or COMPUTED_BY_IMPALA in parameters


def comparable(obj: Table | Partition) -> Table | Partition:
    """Without what reading alone changes, and what an event's copy of an object does not carry."""
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
# Events that change nothing a replica has, and the count of those that this release cannot read.


IRRELEVANT = frozenset(
    {
        "OPEN_TXN",
        "COMMIT_TXN",
        "ABORT_TXN",
        "ALLOC_WRITE_ID_EVENT",
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
"""Kinds that change neither metadata that is replicated nor files of it. Each query of a Hive 4 cluster opens a
transaction."""


def is_irrelevant(event: NotificationEvent) -> bool:
    """Whether it changes nothing that a replica has: by its kind, or because it is of another catalog."""
    return event.type in IRRELEVANT or event.catalog is not None


NAMED = 10  # events that are named one by one
KINDS = 20  # that are counted apart
OTHERS = "other kinds"


@dataclass
class UnreadEvents:
    """Events of kinds or messages that this release cannot read. `first`: of the first few, id and kind; `kinds`: how
    many there are of each."""

    first: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.kinds.total()

    def add(self, event: int, kind: str) -> None:
        if len(self) < NAMED:
            self.first.append(f"event {event}: {kind}")
        self.kinds[kind if kind in self.kinds or len(self.kinds) < KINDS else OTHERS] += 1

    def listed(self) -> list[str]:
        """The first by name; where there are more, all by kind."""
        if len(self) <= NAMED:
            return list(self.first)
        return [*self.first, f"in all: {', '.join(f'{count:,} {kind}' for kind, count in self.kinds.most_common())}"]


# ---- reach -----------------------------------------------------------------------------------------------------------
# How far a notification log reaches, and what its newest event is. Reads only.


TTL = "hive.metastore.event.db.listener.timetolive"
WAITING = 100_000  # events that are looked at for those that wait


def newest_event(metastore: MetastoreReader) -> NotificationEvent | None:
    """The newest row of the log, or None when it has none. Raises NotificationLogOff."""
    newest = metastore.current_event_id()
    rows = metastore.next_events(newest - 1, 1) if newest else []
    return rows[-1] if rows else None


@dataclass(frozen=True)
class Reach:
    """How far a notification log reaches. `oldest`: its first row; `needed`: the first row after `cursor`, the id that
    was captured last (None: nothing was captured). `life`: how long the server keeps events; None: it does not tell."""

    newest: int
    oldest: NotificationEvent | None
    cursor: int | None
    needed: NotificationEvent | None
    life: timedelta | None


def read_reach(source: MetastoreReader, cursor: int | None) -> Reach:
    """Raises NotificationLogOff."""
    newest = source.current_event_id()
    oldest = source.next_events(0, 1)
    needed = source.next_events(cursor, 1) if cursor is not None and cursor < newest else []
    return Reach(newest, _first(oldest), cursor, _first(needed), event_life(source.setting(TTL)))


@dataclass(frozen=True)
class Waiting:
    """Events after a position that may change something, in order. `more`: so many ids after them were not looked
    at."""

    events: list[NotificationEvent]
    more: int = 0


def waiting_events(source: MetastoreReader, after: int, newest: int, limit: int = WAITING) -> Waiting:
    """Looks at up to `limit` events, and on Hive 4 at as many that may change something: an idle cluster's
    transactions are none."""
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
    """For how long the first event after this one that may change something has been waiting; 0 when there is none,
    None where it is gone."""
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
    """The setting's value: `86400s`, `1d`, `1440m`, `86400000ms`, `2days`; a bare number is seconds."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?[a-z]*", text.strip().lower())
    if not match:
        return None
    return parse_duration(f"{match[1]}{match[2] or 's'}") or None


# Clocks


# ---- root catalog ----------------------------------------------------------------------------------------------------
# The catalog that a root is about: one name in two catalogs is two databases, and a root has names only.


FILE = "catalog"
_USED = ("log", "files", "loads")


class _Catalog(msgspec.Struct, frozen=True):
    catalog: str


def bind_catalog(root: str, metastore: MetastoreReader) -> None:
    """A root is of the first catalog that is captured into it, loaded beside it, or cleaned up into it. Raises Refused
    for another. Under a lease of the root's; safe to run twice."""
    refuse_other_catalog(root, metastore)
    bound = metastore.bound_catalog
    if bound is not None and bound != metastore.default_catalog and root_catalog(root) is None:
        (Place(root) / FILE).write_bytes(msgspec.json.encode(_Catalog(bound)) + b"\n")


def refuse_other_catalog(root: str, metastore: MetastoreReader) -> None:
    """As `bind_catalog`, for who binds nothing."""
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
    """The catalog that a root was bound to; None: to none, or the default one. Raises FormatError."""
    path = Place(root) / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Catalog).catalog
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint='write {"catalog": "NAME"} with the name of its catalog') from error
