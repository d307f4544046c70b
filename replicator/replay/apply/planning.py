"""Planning a load: a dump, a target and the operator's options become a plan. Reads only; `deciding` decides.

Section `isolation` derives a plan for `publish = "snapshot"`: each change is stored in a directory of its own, to which
the metastore switches in one call. A table or partition whose files do not change keeps its location.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pyarrow as pa

from cmroot.store.place import as_written, join, normal, tidied
from replicator.captures.dumps import layout
from replicator.captures.dumps.layout import DumpReader, Keys
from replicator.core.config import Brake
from replicator.core.formats import is_transactional
from replicator.core.model import Database, Name
from replicator.core.not_replicated import NotReplicated, Report
from replicator.core.policy import Principals
from replicator.core.runtime import Runtime
from replicator.errors import BootstrapNeeded, UsageError
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.grants import other_authorizer
from replicator.replay.apply.copy_task import COMPARE, CopyReport
from replicator.replay.apply.existing_objects import differing_objects, refuse_occupied
from replicator.replay.apply.origins import Roots
from replicator.replay.apply.transfer import run_files
from replicator.replay.apply.weighing import Gone, Weight, excess, shown, weigh
from replicator.replay.apply.work import Replay
from replicator.replay.deciding import can_become, lack_constraints, lack_grants, lack_statistics, looked_at, make_plan
from replicator.replay.placement import Placement
from replicator.replay.plan import (
    FileRules,
    Plan,
    Sharing,
    TablePlan,
    home_of,
    is_moved_by_renaming,
    of_published_tables,
    place_of,
    staging_of,
    with_table_at,
)
from replicator.replay.replica import APART, EXTERNAL_DATA, PUBLISH, SOURCE, replica_table
from replicator.replay.squash import squash, surviving_partitions
from replicator.replay.target import (
    ByDifference,
    TargetDatabase,
    check_target,
    database_location,
    default_warehouse,
    read_databases,
    read_part,
    read_target,
    standing,
    stay,
)

# ---- isolation -------------------------------------------------------------------------------------------------------


_ABOUT = ["position", "db", "table", "partition", "location"]


def touched_objects(rows: Iterable[pa.Table], rules: FileRules) -> dict[Name, set[str]]:
    """Returns the objects whose files a range changes: table of the target -> names of its partitions at the end ("":
    the table itself). Memory: one entry for every table and partition. `rows`: file entries."""
    found: dict[Name, set[str]] = {}
    seen: set[tuple[object, ...]] = set()
    for batch in rows:
        for row in batch.select(_ABOUT).group_by(_ABOUT).aggregate([]).to_pylist():
            key = tuple(row[name] for name in _ABOUT[:4])
            if key not in seen:
                seen.add(key)
                about = rules.object_at(*key)
                if about is not None:
                    found.setdefault(about[0], set()).add(about[1])
        seen.clear()
    return found


def isolate(plan: Plan, touched: dict[Name, set[str]]) -> None:
    """Turns a plan that keeps the source's layout into one that publishes by snapshots. An Iceberg or transactional
    table keeps its location: its pointer or its write ids switch."""
    for step in plan.tables:
        if step.table is None or plan.switches_itself(step.table):
            continue
        if not step.table.is_view and not step.shared and step.table.location:
            _isolate(plan, step, touched.get(step.name, set()))


def _isolate(plan: Plan, step: TablePlan, touched: set[str]) -> None:
    source = step.lineage.table
    assert source is not None and step.table is not None and step.table.location and plan.snapshot
    home = home_of(plan.placement, source.db, step.table.location)
    step.place, step.touched = place_of(home, plan.snapshot, *step.name), touched
    if not step.exists:
        _replace(plan, step)
    there = step.there if step.exists else None
    changed = bool(touched) or step.recreated
    stays = there is not None and there.location and (source.has_files_by_partition or not changed)
    location = str(there.location) if there is not None and stays else step.place
    if there is not None and stays and step.rename_from is not None and is_moved_by_renaming(there):
        location = staging_of(plan.snapshot, there)
    step.placement = with_table_at(plan.placement, source, location)
    step.table = replica_table(source, step.placement, plan.mark)


def _replace(plan: Plan, step: TablePlan) -> None:
    """Drops an existing table of the same name at commit only; if altering suffices, in that one call."""
    assert step.table is not None
    dropped = next((table for table in plan.drops if (table.db, table.name) == step.name), None)
    if dropped is None:
        return
    plan.drops.remove(dropped)
    step.there = dropped
    own = dropped.location is not None and normal(dropped.location) == normal(step.place or "")
    if own or (can_become(dropped, step.table) and not step.table.is_partitioned):
        step.exists = True
    else:
        step.replaces = dropped


# ---- planning --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadSettings:
    """The options of a load.

    warehouse, cmroot: the target's own (None: its default database's directory, and `.cmroot` in it).
    rename: (source database, target database) pairs. map_locations: (source prefix, target prefix) pairs.
    external: directory for data outside its database's directory (None: `external` in the warehouse; if `exact`, its
    location is unchanged).
    overwrite: replaces objects that replication did not create, or that are newer.
    source_root: the source's $cmroot if it is reachable under another name than recorded in the dump.
    exact: for a restore: the target's database becomes equal to the dump's; all its other content is removed, whoever
    created it, and it may be the source itself.
    allow_missing: files found nowhere are left out and reported, instead of raising FilesMissing.
    shared_external: external tables keep their data at the source, and only their metadata is loaded (None: those that
    share it on the target now).
    publish: "snapshot": changes are stored in new directories, and the metastore switches to them
    (docs/decisions/0007); "mirror": the source's layout; None: as in earlier loads into the target's databases.
    as_they_are: tables in formats that copying files does not copy are loaded, too (docs/formats.md).
    preserve: HDFS attributes that copied files get from their sources, in addition to the bytes (`ATTRIBUTES`).
    by_difference: a bootstrap adopts existing content of the target, and copies only differences (None: it copies all).
    keys: the dump must be signed with one of them (None: it need not be signed).
    brake: the removal limit for the replica (None: no limit).
    take_over: a load that is recorded as running on the target, and cannot be queried, is known to have ended.
    grants: grants and roles are replicated, if the dump has them. principals: the target's names of principals that are
    called otherwise at the source."""

    warehouse: str | None = None
    cmroot: str | None = None
    rename: Sequence[tuple[str, str]] = ()
    map_locations: Sequence[tuple[str, str]] = ()
    external: str | None = None
    overwrite: bool = False
    source_root: str | None = None
    exact: bool = False
    allow_missing: bool = False
    by_difference: ByDifference | None = None
    shared_external: bool | None = None
    publish: Literal["mirror", "snapshot"] | None = None
    keys: Keys | None = None
    as_they_are: bool = False
    preserve: Collection[str] = ()
    brake: Brake | None = None
    take_over: bool = False
    grants: bool = True
    principals: Principals = field(default_factory=dict)


def plan_load(reader: DumpReader, target: MetastoreReader, options: LoadSettings) -> Plan:
    """Decides the actions of a load; changes nothing. Verifies the dump's parts first."""
    reader.verify()
    placement = _placement(reader.metadata, target, options)
    bootstrap = reader.metadata.kind == layout.BOOTSTRAP
    names = list(placement.databases.values())
    whole = bootstrap or options.exact or options.by_difference is not None
    there = read_target(target, names) if whole else read_databases(target, names)
    snapshots = _by_snapshots(options, there, bootstrap=bootstrap)
    seen = {name: standing(each.database.parameters) for name, each in there.items() if each.database}
    sharing = Sharing(False if options.exact else options.shared_external)
    if options.by_difference is not None:
        placement = stay(placement, reader.tables(), there, sharing.of, back=not snapshots)
    after = check_target(
        reader.metadata,
        placement,
        there,
        overwrite=options.overwrite,
        exact=options.exact,
        by_difference=options.by_difference is not None,
    )
    position = reader.metadata.end.position if after is None else after
    begin = 0 if bootstrap and after is not None else position
    squashed = squash(reader.records(begin), reader.tables(), bootstrap=bootstrap)
    if not whole:
        parts = looked_at(squashed, placement)
        there = {name: read_part(target, each, parts[name]) for name, each in there.items()}
        same = {each.now for each in squashed.lineages if each.now == each.before and len(each.names) == 1}
        tables = [table for table in reader.tables() if (table.db, table.name) in same]
        placement = stay(placement, tables, there, sharing.of, back=False)  # tables that were adopted in place
    placement = of_published_tables(placement, squashed)
    plan = Plan(
        reader.metadata,
        placement,
        0 if bootstrap else position,
        squashed if after is not None else squash((), (), bootstrap=False),
        exact=options.exact,
        overwrite=options.overwrite,
        by_difference=options.by_difference if bootstrap else None,
        sharing=sharing,
        snapshot=reader.metadata.id if snapshots else None,
        back=bootstrap and options.by_difference is not None and not snapshots,
        as_they_are=options.as_they_are,
        preserve=tuple(options.preserve),
        grants=options.grants,
        principals=options.principals,
        seen=seen,
        there=there,
    )
    acid = any(each.table and is_transactional(each.table) for each in squashed.lineages)
    plan.transactions = not (acid or reader.metadata.transactional) or target.keeps_transactions()
    make_plan(plan, there)
    if any(step.lineage.constraints for step in plan.tables):
        lack_constraints(plan, target.constraint_kinds())
    if any(each.others for step in plan.tables for each in step.lineage.statistics.values()) or plan.lacked:
        lack_statistics(plan, target.statistics_engines())
    lack_grants(plan, lambda: other_authorizer(target))
    if snapshots and plan.by_difference is None:
        isolate(plan, touched_objects(_entries(reader), plan.file_rules()))
    if after is None:
        plan.skipped = f"the target is already at position {reader.metadata.end.position}"
    elif any(step.new_place for step in plan.tables):
        refuse_occupied(plan, target)
    return plan


def planned(reader: DumpReader, target: Metastore, options: LoadSettings, runtime: Runtime) -> Replay:
    """Returns a plan for inspection, without loading; see `plan_load`."""
    plan, roots = plan_load(reader, target, options), roots_of(reader, target, options)
    return Replay(plan, reader, target, roots, runtime)


def compare(replay: Replay) -> None:
    """Adds the objects to publish again to the plan of a load by difference, by comparing content. May run twice."""
    if replay.plan.snapshot and replay.plan.by_difference is not None:
        isolate(replay.plan, differing_objects(replay))


def _by_snapshots(options: LoadSettings, there: Mapping[str, TargetDatabase], *, bootstrap: bool) -> bool:
    """Returns True if a load publishes by snapshots. Raises BootstrapNeeded if it is to use the source's layout, but
    the target does not."""
    databases = [each.database for each in there.values() if each.database is not None]
    snapshots = sorted(each.name for each in databases if each.parameters.get(PUBLISH) == "snapshot")
    if options.exact or options.publish is None:
        return bool(snapshots) and not options.exact
    if snapshots and options.publish == "mirror" and not bootstrap:
        raise BootstrapNeeded(
            f"{', '.join(snapshots)} of the target was published by snapshots: its data is stored in other directories",
            hint="a bootstrap by difference restores the source's layout",
        )
    return options.publish == "snapshot"


def _entries(reader: DumpReader) -> Iterator[pa.Table]:
    for batch in reader.entries():
        yield pa.Table.from_batches([batch])


def warehouse_of(target: MetastoreReader, options: LoadSettings) -> str:
    """Returns the target's warehouse, as requested or as in its metastore."""
    return tidied(options.warehouse or default_warehouse(target))


def root_of(target: MetastoreReader, options: LoadSettings) -> str:
    """Returns the target's `$cmroot`, as requested or below its warehouse."""
    return str(as_written(options.cmroot or join(warehouse_of(target, options), ".cmroot")))


def roots_of(reader: DumpReader, target: MetastoreReader, options: LoadSettings) -> Roots:
    """Returns both `$cmroot`s of a load, and the data of a dump that has some: without an explicit root of the source,
    nothing of the source is read then."""
    source, own = options.source_root or reader.metadata.root, root_of(target, options)
    if reader.metadata.data is None:
        return Roots(source, own)
    from replicator.captures.dumps.data import data_roots

    return Roots(source, own, tuple(data_roots(reader).values()), alone=options.source_root is None)


def _placement(metadata: layout.DumpMetadata, target: MetastoreReader, options: LoadSettings) -> Placement:
    renames = dict(options.rename)
    unknown = set(renames) - set(metadata.scope.databases)
    if unknown:
        raise UsageError(
            f"--rename-db names {', '.join(sorted(unknown))}, which the dump does not contain",
            hint=f"it contains {', '.join(metadata.scope.databases)}",
        )
    names = {name: renames.get(name, name).lower() for name in metadata.scope.databases}
    if len(set(names.values())) < len(names):
        raise UsageError(
            f"--rename-db gives two databases one name: {names}", hint="give each a different name on the target"
        )
    warehouse = warehouse_of(target, options)
    locations, apart = {}, set()
    existing = set(target.database_names())
    for source, name in names.items():
        there = target.database(name) if name in existing else None
        locations[source] = (there and there.location) or database_location(warehouse, name)
        if not options.exact and _lies_apart(target, there):
            apart.add(source)
    external = options.external
    if external is None and not options.exact:
        external = join(warehouse, "external")
    return Placement(
        databases=names,
        source_locations=metadata.locations,
        target_locations=locations,
        external=external,
        mappings=tuple(options.map_locations),
        root=root_of(target, options),
        apart=frozenset(apart),
    )


def _lies_apart(target: MetastoreReader, there: Database | None) -> bool:
    """Returns True if a database's external data has a directory of its own. The layout of existing data is retained: a
    replica begun by an older release has it in a directory that all databases share."""
    if there is None or there.parameters.get(EXTERNAL_DATA) == APART:
        return True
    return SOURCE not in there.parameters and not target.table_names(there.name)


# ---- pricing ---------------------------------------------------------------------------------------------------------
# Pricing: what a load would change, copy and remove, in text and numbers, before any action. Reads only.


CHANGES = (
    *("create_databases", "drop_databases", "drop_tables", "rename_tables"),
    *("create_tables", "alter_tables", "functions", "drop_functions"),
)
"""Fields of a plan that list changes."""


@dataclass(frozen=True)
class Price:
    """The files and bytes that a load would copy and remove, by comparison of content, not as listed in the dump.
    `missing`: files whose bytes are not available. files_from_...: the sources of the files' bytes, by name and size;
    those from the target are in its `$cmroot`. `weight`: the removals, by name. `copies`: files and bytes by directory
    of the target."""

    files: int
    bytes: int
    files_removed: int
    bytes_removed: int
    partitions_removed: int
    missing: int
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    weight: Weight = field(default_factory=Weight)
    copies: dict[str, tuple[int, int]] = field(default_factory=dict)


def price(replay: Replay) -> Price:
    """Compares every file of a dump with the file at its path on the target. Changes nothing."""
    compare(replay)
    report = run_files(replay, COMPARE) if replay.reader.metadata.files else CopyReport()
    weight = weigh(replay)
    return Price(
        report.files_copied,
        report.bytes_copied,
        weight.files,
        weight.bytes,
        weight.partitions,
        report.missing_count,
        report.files_from_source,
        report.files_from_cmroot,
        report.files_from_target,
        weight,
        report.copies,
    )


@dataclass(kw_only=True)
class LoadPlan(Report):
    """The effects that a load would have; see docs/cli.md. `skipped`: why it would do nothing. `files`, `bytes`: those
    listed in the dump; only those that do not exist yet are copied. `gone`: the removals, by name (`goes`: the same as
    text); `refused`: why the load would be refused, empty if it would not."""

    status: str = "planned"
    dump: str
    skipped: str
    create_databases: list[str]
    drop_databases: list[str]
    drop_tables: list[str]
    rename_tables: list[str]
    create_tables: list[str]
    alter_tables: list[str]
    functions: list[str]
    drop_functions: list[str]
    partitions_touched: int
    files: int
    bytes: int
    files_to_remove: int
    locations: dict[str, str]
    not_replicated: list[NotReplicated]
    warnings: list[str]
    bytes_to_remove: int
    partitions_to_drop: int
    gone: list[Gone]
    goes: list[str]
    refused: str


def described(replay: Replay, brake: Brake | None) -> LoadPlan:
    """Returns `describe` with the removals by name, and the reason if the load would be refused."""
    plan, found = replay.plan, describe(replay.plan, replay.reader)
    if not plan.skipped:
        compare(replay)
    weight = Weight() if plan.skipped else weigh(replay)
    refusal = excess(plan, weight, brake) if brake else None
    found |= {
        "dump": replay.reader.place,
        "not_replicated": plan.not_replicated,
        "warnings": plan.warnings,
        "files_to_remove": weight.files,
        "bytes_to_remove": weight.bytes,
        "partitions_to_drop": weight.partitions,
        "gone": weight.gone,
        "goes": list(shown(weight)),
        "refused": refusal.message if refusal else "",
    }
    return LoadPlan(**found)


def describe(plan: Plan, reader: DumpReader) -> dict[str, Any]:
    """Describes a plan for `--dry-run`: what would be changed, and the maximum of files and bytes."""
    touched = surviving_partitions(plan.squashed, reader.records(plan.after))
    return {
        "skipped": plan.skipped,
        "create_databases": [each.name for each in plan.create_databases],
        "drop_databases": plan.drop_databases,
        "drop_tables": [f"{table.db}.{table.name}" for table in plan.drops],
        "rename_tables": [f"{'.'.join(s.rename_from)} -> {'.'.join(s.name)}" for s in plan.tables if s.rename_from],
        "create_tables": [".".join(step.name) for step in plan.tables if not step.exists],
        "alter_tables": [".".join(step.name) for step in plan.tables if step.exists],
        "functions": [f"{each.db}.{each.name}" for each in plan.put_functions],
        "drop_functions": [".".join(name) for name in plan.drop_functions],
        "partitions_touched": sum(len(named) for _, named in touched),
        "files": 0 if plan.skipped else reader.metadata.files,
        "bytes": 0 if plan.skipped else reader.metadata.bytes,
        "files_to_remove": 0 if plan.skipped else reader.metadata.removed,
        "locations": {
            ".".join(step.name): step.table.location for step in plan.tables if step.table and step.table.location
        },
        "not_replicated": [asdict(each) for each in plan.not_replicated],
        "warnings": plan.warnings,
    }
