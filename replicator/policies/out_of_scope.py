"""Out-of-scope replicas: databases, tables and partitions that a policy no longer names are dropped, with consent.
Their data is moved to the target's `$cmroot` first. Objects that replication did not create are retained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cmroot.lease import acquire
from cmroot.root import ChangeRoot
from replicator.captures.dumps.layout import BOOTSTRAP, DumpMetadata, Point, Scope
from replicator.captures.events.scope import Patterns, matches_name
from replicator.core.model import Database, Table
from replicator.core.not_replicated import NotReplicated
from replicator.core.roles import may_load_into
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import ObjectNotFound
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.replay.apply.commit import Commit
from replicator.replay.apply.prepare import Preparation
from replicator.replay.apply.work import Work
from replicator.replay.placement import Placement
from replicator.replay.plan import Plan
from replicator.replay.replica import PUBLISH, SOURCE
from replicator.replay.squash import squash
from replicator.replay.target import TargetDatabase, read_target, table_position


@dataclass(frozen=True)
class OutOfScope:
    """The objects to drop of one of the target's databases: `tables`, and with `whole` the database itself. `staying`:
    tables that replication did not create, which keep the database. `partitions`: by table, those outside its filter.
    `snapshots`: loads publish by snapshots there, so the data is removed after the delay. `known_as`: the database's
    name at the source."""

    db: str
    tables: list[Table]
    whole: bool
    staying: list[str]
    partitions: dict[str, list[str]] = field(default_factory=dict)
    snapshots: bool = False
    known_as: str = ""

    @property
    def empty(self) -> bool:
        return not self.tables and not self.whole and not self.partitions

    @property
    def names(self) -> list[str]:
        """Returns the names for display; a database that is dropped completely appears by its name alone."""
        if self.whole or self.staying:
            return [self.db]
        tables = [f"{self.db}.{table.name}" for table in self.tables]
        return tables + [
            f"{self.db}.{table} ({count_text(len(some), 'partition')})" for table, some in self.partitions.items()
        ]


def plan_database(target: MetastoreReader, db: str, known_as: str, root_id: str) -> OutOfScope:
    """Plans the drop of a database that left the policy. known_as: its name at the source. `root_id`: of the source's
    `$cmroot` that its tables were made from. Raises Refused for one that is a primary or fenced."""
    there = read_target(target, [db])[db]
    may_load_into(f"database {db} of the target", there.role(db))
    ours = _ours(there, root_id)
    staying = sorted(set(there.tables) - {table.name for table in ours})
    whole = there.database is not None and not staying
    return OutOfScope(db, ours, whole, staying, snapshots=_by_snapshots(there.database), known_as=known_as)


def plan_tables(target: MetastoreReader, db: str, known_as: str, patterns: Patterns, root_id: str) -> OutOfScope:
    """Plans the drop of tables outside the patterns, and of partitions outside a filter, in a retained database.
    known_as: its name at the source, for the filters. Costs a call for all table names, and one a filtered table."""
    try:
        names = target.table_names(db)
    except ObjectNotFound:
        return OutOfScope(db, [], False, [])
    outside = [name for name in names if not patterns.match(name)]
    tables = _made_from(target.tables(db, outside), root_id)
    partitions: dict[str, list[str]] = {}
    for name in names:
        wanted = patterns.filter_of(known_as, name)
        if wanted is not None and name not in outside and _made_from(target.tables(db, [name]), root_id):
            gone = [each for each in target.partition_names(db, name) if not matches_name(wanted, each)]
            partitions |= {name: gone} if gone else {}
    return OutOfScope(db, tables, False, [], partitions, _by_snapshots(target.database(db)), known_as)


def _by_snapshots(database: Database | None) -> bool:
    return database is not None and database.parameters.get(PUBLISH) == "snapshot"


def _ours(there: TargetDatabase, root_id: str) -> list[Table]:
    return _made_from(there.tables.values(), root_id)


def _made_from(tables: Iterable[Table], root_id: str) -> list[Table]:
    return [table for table in tables if table_position(table) is not None and table.parameters.get(SOURCE) == root_id]


@dataclass
class Dropped:
    """The result of a drop: number of files moved to `$cmroot`. `refused`: objects not dropped, by source name."""

    recycled: int = 0
    refused: list[NotReplicated] = field(default_factory=list)


def drop(out_of_scope: Sequence[OutOfScope], target: Metastore, root: ChangeRoot, runtime: Runtime) -> Dropped:
    """Drops the planned objects. `root`: the target's. May run twice."""
    done = Dropped()
    with acquire(root.place, "drop out-of-scope replicas") as lease:
        for each in out_of_scope:
            work = Work(_plan(each), target, root.place, runtime, lease.check)
            Preparation(work).prepare()
            Commit(work).drop_databases()
            for name, partitions in each.partitions.items():
                work.drop_partitions(target.table(each.db, name), partitions)
            done.recycled += work.changed.recycled
            done.refused += work.outcomes.refused()
    return done


def _plan(out_of_scope: OutOfScope) -> Plan:
    """Returns a load's plan that only drops."""
    nowhere = Point(0, 0, 0)
    metadata = DumpMetadata(
        id=f"leaving-{out_of_scope.db}",
        kind=BOOTSTRAP,
        created="",
        scope=Scope(databases=(out_of_scope.db,)),
        source="",
        root="",
        root_id="",
        begin=None,
        end=nowhere,
        locations={},
        records=0,
        files=0,
        removed=0,
        bytes=0,
        observed=0,
        buckets=0,
    )
    return Plan(
        metadata=metadata,
        placement=Placement({out_of_scope.known_as or out_of_scope.db: out_of_scope.db}, {}, {}, None),
        after=0,
        squashed=squash((), (), bootstrap=False),
        drops=list(out_of_scope.tables),
        drop_databases=[out_of_scope.db] if out_of_scope.whole else [],
        snapshot=metadata.id if out_of_scope.snapshots else None,
    )
