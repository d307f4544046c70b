"""Plan: what a load will do, decided before it does anything. Pure: from a squashed range and the target's state.

A plan has, for every table, what prepares it (drop, rename, clear), and what commits it; and the rules by which tasks
turn file entries into target files. Its size grows with tables, not with files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cmroot.store.place import join
from replicator.core.model import Database, Function, Table
from replicator.core.not_replicated import NotReplicated, merged
from replicator.core.table_format import why_not_replicated
from replicator.dumps.layout import BOOTSTRAP, DumpMetadata
from replicator.errors import BootstrapNeeded, Refused
from replicator.events.scope import Patterns
from replicator.replay.places.placement import Placement, relative
from replicator.replay.places.replica import (
    LEFT_OUT,
    Mark,
    has_sources_data,
    replica_database,
    replica_function,
    replica_table,
)
from replicator.replay.places.stays import Stays
from replicator.replay.plan.difference import ByDifference
from replicator.replay.plan.renames import passing_name
from replicator.replay.plan.rules import FileRules, PartitionRule, TableRule
from replicator.replay.plan.squash import Lineage, Squashed
from replicator.replay.plan.target import Part, TargetDatabase, applied_position, table_position
from replicator.text.quantity import count_text

Name = tuple[str, str]


@dataclass
class TablePlan:
    """One table of the target. Names are the target's. `lineage`: what happened at the source; `table`: the final
    object (None: dropped). `rename_from`: its name on the target until now. `clear`: its old data goes to `$cmroot`
    before the new is copied, because all that it has is in the dump. `prune`: only that part of it that the dump does
    not have goes. `exists`: the target has it already, under `rename_from` or its name. `shared`: its data is the
    source's: nothing of it is copied or taken away. `there`: what the target has of it.

    Where a load publishes by snapshots (see `isolation`): `place`: this load's directory for it; `touched`: its
    partitions whose files change, "" for its own; `placement`: by which it lies where `table` says; `replaces`: another
    table that makes room when this one is made."""

    name: Name
    lineage: Lineage
    table: Table | None = None
    rename_from: Name | None = None
    clear: bool = False
    prune: bool = False
    exists: bool = False
    shared: bool = False
    there: Table | None = None
    place: str | None = None
    touched: set[str] = field(default_factory=set)
    placement: Placement | None = None
    replaces: Table | None = None

    @property
    def anew(self) -> bool:
        """Whether nothing of what the target has of it stays: all its files are in the range."""
        return self.lineage.complete and not self.prune

    def place_of_partition(self, name: str, there: str | None) -> str | None:
        """Where a partition of the target is to lie, by its name at the end, if not where the source's layout says;
        there: where it lies now, if it is there."""
        if self.place is None:
            return None
        fate = self.lineage.partitions.get(name)
        stays = there is not None and name not in self.touched and not (fate and fate.complete)
        return there if stays else join(self.place, name)


@dataclass(frozen=True)
class Sharing:
    """Which external tables keep their data at the source. `all`: every one, or none; None: those that do so on the
    target now."""

    all: bool | None = None

    def of(self, table: Table, there: Table | None) -> bool:
        """`there`: what the target has of it."""
        wanted = has_sources_data(there) if self.all is None else self.all
        return wanted and table.is_external and not table.is_view


@dataclass(frozen=True)
class LeftOut:
    """A table of the source that is not loaded, by its format: its lineage, its name on the target, what that has of
    it (None: nothing), and why."""

    lineage: Lineage
    name: Name
    there: Table | None
    reason: str


@dataclass
class Plan:
    """What a load does, in this order: databases, drops, renames, clears, copies, removals, tables, functions,
    dropped databases, checkpoint. `skipped`: why there is nothing to do. `exact`, `overwrite`, `by_difference`: see
    LoadOptions.
    `snapshot`: the load's name in published places, where it publishes by snapshots; `back`: it brings what others
    have published so back into the source's layout. `as_they_are`: see LoadOptions; `left_out`: tables whose files are
    copied by nothing, and what the target has of them stays. `left`: of dropped tables, partitions ("": the table) that
    left their files before. `stays`: what stays of files that were to go. `seen`: the `standing` of databases that were
    there."""

    metadata: DumpMetadata
    placement: Placement
    mark: Mark
    after: int
    squashed: Squashed
    exact: bool = False
    overwrite: bool = False
    by_difference: ByDifference | None = None
    sharing: Sharing = Sharing()
    snapshot: str | None = None
    back: bool = False
    as_they_are: bool = False
    left_out: list[LeftOut] = field(default_factory=list)
    create_databases: list[Database] = field(default_factory=list)
    alter_databases: list[Database] = field(default_factory=list)
    drop_databases: list[str] = field(default_factory=list)
    drops: list[Table] = field(default_factory=list)
    left: dict[Name, list[str]] = field(default_factory=dict)
    tables: list[TablePlan] = field(default_factory=list)
    put_functions: list[Function] = field(default_factory=list)
    drop_functions: list[Name] = field(default_factory=list)
    checkpoint: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stays: Stays = field(default_factory=Stays)
    skipped: str = ""
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def not_replicated_in(self, database: str) -> list[NotReplicated]:
        """What the dump cannot bring of a database, by its name on the target."""
        sources = {source for source, name in self.placement.databases.items() if name == database}
        return [each for each in self.not_replicated if each.object.partition(".")[0] in sources]

    def is_unseen(self, lineage: Lineage, partition: str = "") -> bool:
        """Whether nobody could see which files a table (or one partition) has at the source: what the target has of it
        stays. A table with some such partition is none itself."""
        table = ".".join(lineage.now) if lineage.now else ""
        return bool({(table, ""), (table, partition)} & self._unseen)

    def has_unseen(self, lineage: Lineage) -> bool:
        """Whether a table, or any partition of it, is unseen."""
        return lineage.now is not None and ".".join(lineage.now) in {table for table, _ in self._unseen}

    @cached_property
    def _unseen(self) -> frozenset[tuple[str, str]]:
        return frozenset((each.object, each.partition) for each in self.metadata.not_replicated if each.unknown)

    @property
    def not_replicated(self) -> list[NotReplicated]:
        """What the target will not have as the source has it: as the dump says, and what is left out."""
        metadata = self.metadata
        said = [each for each in metadata.not_replicated if each.unknown or each.object not in metadata.formats]
        named = {".".join(each.lineage.now): each.reason for each in self.left_out if each.lineage.now}
        formats = {} if self.as_they_are else metadata.formats | named
        return merged(said, (NotReplicated(name, reason) for name, reason in formats.items()))

    @property
    def replaces_commits(self) -> bool:
        """Whether commits that others made to Delta tables of the target go to its `$cmroot`: where somebody asked for
        the source's state, whatever the target has."""
        difference = self.by_difference
        return self.overwrite or self.exact or bool(difference and (difference.reread or difference.drop_extra))

    @property
    def changes_shown(self) -> bool:
        """Whether it changes what a reader of the target sees already. A file that is copied into a table's directory
        is seen at once, so a load that cannot end must not begin."""
        return bool(self.drops) or any(step.exists for step in self.tables)

    def file_rules(self) -> FileRules:
        """The rules for tasks: every table by each of its names."""
        rules: dict[Name, list[TableRule]] = {}
        steps = {id(step.lineage): step for step in self.tables}
        left_out = {id(each.lineage) for each in self.left_out}
        for lineage in self.squashed.lineages:
            final = lineage.table.location if lineage.table else None
            step = steps.get(id(lineage))
            partitions: dict[str, list[PartitionRule]] = {}
            for fate in lineage.fates:
                for begin, name in fate.names:
                    rule = PartitionRule(begin, fate.since, fate.now or name, tuple(fate.moves), gone=fate.now is None)
                    partitions.setdefault(name, []).append(rule)
            for index, called in enumerate(lineage.names):
                end = lineage.names[index + 1].begin - 1 if index + 1 < len(lineage.names) else lineage.ended
                rules.setdefault(called.name, []).append(
                    TableRule(
                        begin=called.begin,
                        end=end,
                        db=lineage.names[-1].db,
                        since=lineage.since,
                        location=final,
                        moves=tuple(lineage.moves),
                        gone=lineage.now is None or bool(step and step.shared) or id(lineage) in left_out,
                        partitions=partitions,
                        name=step.name if step else None,
                        place=step.place if step else None,
                        only=frozenset(step.touched) if step and step.place and step.exists else None,
                    )
                )
        return FileRules(placement=self.placement, tables=rules, after=self.after)


def make_plan(
    metadata: DumpMetadata, squashed: Squashed, placement: Placement, target: Mapping[str, TargetDatabase],
    *, after: int, overwrite: bool = False, exact: bool = False, by_difference: ByDifference | None = None,
    sharing: Sharing = Sharing(), as_they_are: bool = False,
) -> Plan:  # fmt: skip
    """The plan. Raises Refused for tables that replication did not make or that are newer than the dump, and for
    locations of the target that are the source's; BootstrapNeeded when the target lacks what the range builds on."""
    mark = Mark(event=metadata.end.event, position=metadata.end.position, source=metadata.root_id)
    plan = Plan(
        metadata=metadata, placement=placement, mark=mark, after=after, squashed=squashed, exact=exact,
        overwrite=overwrite,
        by_difference=by_difference, sharing=sharing, as_they_are=as_they_are,
    )  # fmt: skip
    _plan_databases(plan, target)
    for lineage in sorted(squashed.lineages, key=lambda each: each.before is None):
        _plan_lineage(plan, lineage, target, overwrite)
    _plan_dropped_databases(plan, target)
    if metadata.kind == BOOTSTRAP:
        _plan_leftovers(plan, target)
    if exact:
        _refuse_occupied(plan, target)
    only_tables = (exact and metadata.scope.include) or (by_difference and by_difference.only_tables)
    if only_tables:  # single tables: the database and its functions are others'
        plan.alter_databases.clear()
    else:
        _plan_functions(plan, target)
    plan.tables.sort(key=lambda each: (bool(each.table and each.table.is_view), each.name))
    if squashed.unknown:
        plan.warnings.append(
            f"not replayed: {count_text(len(squashed.unknown), 'event')} of unknown kinds: {squashed.unknown[:5]}"
        )
    return plan


def looked_at(squashed: Squashed, placement: Placement) -> dict[str, Part]:
    """What of the target's databases, by their names there, `make_plan` looks at for a range that is no bootstrap: each
    table under every name that it had in the range, all of a database that is dropped."""
    names: dict[str, set[str]] = {name: set() for name in placement.databases.values()}
    for lineage in squashed.lineages:
        for called in lineage.names:
            for name in (called.name, passing_name(called.name)):
                names.setdefault(placement.database(name[0]), set()).add(name[1])
    dropped = {placement.database(db) for db in squashed.dropped_at}
    functions = {placement.database(db) for db, _ in squashed.functions}
    return {
        db: Part(tables=None if db in dropped else frozenset(some), functions=db in functions or db in dropped)
        for db, some in names.items()
    }


def _plan_databases(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    for source_name, name in plan.placement.databases.items():
        there = target[name]
        final = plan.squashed.databases.get(source_name)
        dropped = source_name in plan.squashed.databases and final is None
        if dropped:
            if there.database is not None:
                plan.drop_databases.append(name)
            continue
        if final is not None:
            replica = replica_database(final, plan.placement)
            (plan.alter_databases if there.database else plan.create_databases).append(replica)
        if final is not None or there.database is not None:
            plan.checkpoint.append(name)


def _target_name(plan: Plan, name: Name) -> Name:
    return plan.placement.database(name[0]), name[1]


def _plan_lineage(plan: Plan, lineage: Lineage, target: Mapping[str, TargetDatabase], overwrite: bool) -> None:
    before = _found_as(plan, lineage, target)
    if lineage.now is None:
        if before is not None:
            plan.drops.append(before)
            plan.left[before.db, before.name] = lineage.left
        return
    if lineage.table is None:  # renamed out of what the dump covers, or dropped after its end
        return
    name = _target_name(plan, lineage.now)
    there = _existing(plan, lineage.now, target)
    if reason := _why_left_out(plan, lineage.table):
        plan.left_out.append(LeftOut(lineage, name, there or before, reason))
        return
    shared = plan.sharing.of(lineage.table, before or there)
    final = replica_table(lineage.table, plan.placement, plan.mark, shared=shared)
    if not shared:
        _refuse_source_location(plan, lineage.table, final)
    if lineage.before is None and name in _leaving(plan):
        there = None  # an earlier table of this name makes room by itself
    step = TablePlan(name=name, lineage=lineage, table=final, shared=shared, there=before or there)
    if there is not None and not overwrite:
        _refuse_table(plan, there)
    if lineage.before is None:
        if before is not None:  # made by a load that ended in the middle, and renamed at the source since
            plan.drops.append(before)
        _plan_created(plan, step, there, target)
    else:
        _plan_continued(plan, step, before, there)
    plan.tables.append(step)


def _why_left_out(plan: Plan, table: Table) -> str:
    """By its own properties, or as the dump, which has read its log, says."""
    if plan.as_they_are:
        return ""
    return why_not_replicated(table) or plan.metadata.formats.get(f"{table.db}.{table.name}", "")


def _leaving(plan: Plan) -> set[Name]:
    """Names of the target that become free: of tables that are dropped or renamed."""
    return {(table.db, table.name) for table in plan.drops} | {
        step.rename_from for step in plan.tables if step.rename_from
    }


def _plan_created(
    plan: Plan, step: TablePlan, there: Table | None, target: Mapping[str, TargetDatabase]
) -> None:  # fmt: skip
    """A table whose whole content is in the dump. One of its name makes room, if it is not what an earlier attempt to
    load this very dump has committed: of another dump's table nobody knows what of it the source has no more."""
    assert step.table is not None
    kept = there is not None and plan.metadata.kind == BOOTSTRAP and plan.has_unseen(step.lineage)
    if plan.by_difference is not None or kept:  # what nobody could see must not go with the rest of a table
        step.prune = True
        # The data that a replica has had goes with it, where it owns that.
        if there is not None and can_become(there, step.table) and not (step.shared and not has_sources_data(there)):
            step.exists = True
        elif there is not None:
            plan.drops.append(there)
        return
    if there is None:
        step.clear = not step.shared
        return
    resumed = target[there.db].loading == plan.metadata.id and table_position(there) == plan.mark.position
    if resumed and _same_shape(there, step.table):
        step.exists = True
        return
    plan.drops.append(there)  # what of its data is the same is found again in $cmroot, by checksum
    step.clear = not step.shared


def _plan_continued(plan: Plan, step: TablePlan, before: Table | None, there: Table | None) -> None:
    """A table that the target has already, perhaps under an older name."""
    lineage = step.lineage
    old = _target_name(plan, lineage.before or ("", ""))
    if before is not None and (before.db, before.name) != step.name:
        step.rename_from, step.exists = (before.db, before.name), True
        if plan.overwrite and there is not None and table_position(there) is None:  # else it leaves by a rename itself
            plan.drops.append(there)
    elif there is not None:
        step.exists = True
    elif not lineage.complete:
        raise BootstrapNeeded(
            f"the target lacks table {'.'.join(old)}, which the dump's changes build on",
            hint="it was dropped on the target, or never loaded: load a bootstrap dump",
        )
    known = before or there
    if known is not None and LEFT_OUT in known.parameters and not lineage.complete:
        raise BootstrapNeeded(
            f"table {'.'.join(step.name)} was left out by earlier loads: {known.parameters[LEFT_OUT]}",
            hint="load a bootstrap dump",
        )
    if known is not None and has_sources_data(known) != step.shared:
        raise BootstrapNeeded(
            f"the data of table {'.'.join(step.name)} {'is the source' if step.shared else 'is the target'}'s from now "
            "on, and the dump does not name all of it",
            hint="load a bootstrap dump",
        )
    step.clear = lineage.complete and not step.shared


def _plan_dropped_databases(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """A dropped database takes its tables along, those too that the range never names."""
    kept = {step.name for step in plan.tables} | {step.rename_from for step in plan.tables}
    dropped = {(table.db, table.name) for table in plan.drops}
    for db, at in plan.squashed.dropped_at.items():
        for table in target[plan.placement.database(db)].tables.values():
            position = table_position(table)
            if position is None:
                raise Refused(
                    f"database {db} was dropped at the source, and {table.db}.{table.name} was not made by replication",
                    hint="move that table elsewhere, then load again",
                )
            if (table.db, table.name) not in kept | dropped and position < at:
                plan.drops.append(table)


def _plan_leftovers(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """A bootstrap says all there is: replicated tables in its scope that it does not have are dropped; where the target
    is to be exactly the dump, others too."""
    scope = plan.metadata.scope
    patterns = Patterns.parse(scope.include, scope.exclude)
    wanted = {step.name for step in plan.tables} | {each.name for each in plan.left_out}
    dropped = {(table.db, table.name) for table in plan.drops}
    for name in plan.placement.databases.values():
        for table in target[name].tables.values():
            key = (table.db, table.name)
            everyones = plan.exact or bool(plan.by_difference and plan.by_difference.drop_extra)
            everyones = everyones and (plan.as_they_are or not why_not_replicated(table))  # no dump would have it
            ours = (table_position(table) is not None or everyones) and patterns.match(table.name)
            if ours and key not in wanted and key not in dropped:
                plan.drops.append(table)


def _plan_functions(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    for (db, name), function in plan.squashed.functions.items():
        there = target.get(plan.placement.database(db), TargetDatabase(None)).functions.get(name)
        if function is not None:
            plan.put_functions.append(replica_function(function, plan.placement))
        elif there is not None:
            plan.drop_functions.append((there.db, name))
    if plan.metadata.kind == BOOTSTRAP:
        wanted = {(each.db, each.name) for each in plan.put_functions}
        for name in plan.placement.databases.values():
            for function in target[name].functions.values():
                if (function.db, function.name) not in wanted:
                    plan.drop_functions.append((function.db, function.name))


def _existing(plan: Plan, name: Name | None, target: Mapping[str, TargetDatabase]) -> Table | None:
    if name is None:
        return None
    db, table = _target_name(plan, name)
    return target[db].tables.get(table) if db in target else None


def _found_as(plan: Plan, lineage: Lineage, target: Mapping[str, TargetDatabase]) -> Table | None:
    """The target's table that this one was, under a name it has no more: the one of the start, or one on its way (a
    passing name too) that a load which ended in the middle gave it, of this dump or of one that ended earlier. None
    when it has its last name already, or is not there, whoever has those names now."""
    for index, called in enumerate(lineage.names):
        later = (other.begin for other in lineage.names[index + 1 :] if other.name != called.name)
        leaves = next(later, lineage.ended)
        if leaves is None and called.begin:  # its last name
            break
        for name in (called.name,) if leaves is None else (passing_name(called.name), called.name):
            there = _existing(plan, name, target)
            if there is None or applied_position(there) < called.begin:
                continue
            if leaves is None or applied_position(there) < leaves:
                return there
    return None


def _refuse_table(plan: Plan, there: Table) -> None:
    position = table_position(there)
    if position is None:
        raise Refused(
            f"table {there.db}.{there.name} of the target was not made by replication",
            hint="rename or drop it, or --overwrite to let the load replace it (its data goes to the target's $cmroot)",
        )
    if position > plan.metadata.end.position:
        raise Refused(
            f"table {there.db}.{there.name} of the target is at position {position}, newer than the dump's end "
            f"{plan.metadata.end.position}",
            hint="load a newer dump, or --overwrite to take it back to this one",
        )


def _refuse_source_location(plan: Plan, source: Table, final: Table) -> None:
    if plan.exact:
        return
    if source.location and final.location and relative(final.location, source.location) == "":
        raise Refused(
            f"table {final.db}.{final.name} would lie at the source's own location {source.location}",
            hint="name another warehouse with --warehouse, or map the location with --map-location",
        )


def _refuse_occupied(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """What lies where a table is put goes to `$cmroot`: it must not be another table that stays."""
    leaving = {(table.db, table.name) for table in plan.drops} | {step.name for step in plan.tables}
    staying = [
        table
        for name in plan.placement.databases.values()
        for table in target[name].tables.values()
        if table.location and not table.is_view and (table.db, table.name) not in leaving
    ]
    for step in plan.tables:
        place = step.table.location if step.table and not step.table.is_view else None
        for other in staying if place else ():
            assert place and other.location
            if relative(place, other.location) is not None or relative(other.location, place) is not None:
                raise Refused(
                    f"{'.'.join(step.name)} lay at {place}, where {other.db}.{other.name} lies now ({other.location})",
                    hint="restore into another database with --into",
                )


def can_become(there: Table, wanted: Table) -> bool:
    """Whether altering suffices, at another place too: data that lies where the table was by mistake stays there."""
    return there.is_view == wanted.is_view and there.partition_keys == wanted.partition_keys


def _same_shape(there: Table, wanted: Table) -> bool:
    """Whether altering suffices to make one the other: same kind of thing, same partition keys, same place."""
    same_place = (there.location or "") == (wanted.location or "")
    return there.is_view == wanted.is_view and there.partition_keys == wanted.partition_keys and same_place
