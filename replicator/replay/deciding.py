"""The decisions of a load: which databases, tables and functions are created, altered, renamed or dropped. Pure; the
result is a `plan.Plan`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

import msgspec

from cmroot.store.place import relative
from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.core.formats import WITHOUT_TABLE, format_of, is_transactional
from replicator.core.formats.transactional_table import NO_TRANSACTIONS
from replicator.core.model import Name, Table
from replicator.core.not_replicated import (
    NAMES_SOURCE,
    NOT_TAKEN,
    PROPERTY,
    SOURCE_GRANTS,
    NotReplicated,
    from_property,
)
from replicator.core.text import count_text
from replicator.errors import BootstrapNeeded, Refused
from replicator.metastore.events.scope import Patterns
from replicator.replay.placement import Placement, is_same_directory
from replicator.replay.plan import LeftOut, Plan, TablePlan
from replicator.replay.replica import LEFT_OUT, has_sources_data, replica_database, replica_function, replica_table
from replicator.replay.server_rules import (
    NO_CONSTRAINT,
    NO_GRANTS,
    NO_STATISTICS,
    NO_VIEW,
    NOT_STORED,
    STANDING,
    not_replicated,
    replica_constraints,
    storable,
    why_no_view,
)
from replicator.replay.squash import Lineage, Squashed
from replicator.replay.target import TargetDatabase, TargetPart, applied_position, passing_name, table_position

# ---- refusing --------------------------------------------------------------------------------------------------------
# Refusals of a plan: tables that a load must not replace, and locations that it must not write to. Pure.


def refuse_table(plan: Plan, there: Table) -> None:
    position = table_position(there)
    if position is None:
        raise Refused(
            f"table {there.db}.{there.name} of the target was not created by replication",
            hint="rename or drop it, or use --overwrite to replace it (its data is moved to the target's $cmroot)",
        )
    if position > plan.metadata.end.position:
        raise Refused(
            f"table {there.db}.{there.name} of the target is at position {position}, newer than the dump's end "
            f"{plan.metadata.end.position}",
            hint="load a newer dump, or use --overwrite to return to this one",
        )


def refuse_source_location(plan: Plan, source: Table, final: Table) -> None:
    if plan.exact:
        return
    if source.location and final.location and is_same_directory(final.location, source.location):
        raise Refused(
            f"table {final.db}.{final.name} would be stored at the source's own location {source.location}",
            hint="give another warehouse with --warehouse, or map the location with --map-location",
        )


def refuse_occupied(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """Raises Refused if a table would be put where another table that remains is located: whatever is stored there
    is moved to `$cmroot`."""
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
                    f"{'.'.join(step.name)} was stored at {place}, where {other.db}.{other.name} is now "
                    f"({other.location})",
                    hint="restore into another database with --into",
                )


# ---- deciding --------------------------------------------------------------------------------------------------------


def make_plan(plan: Plan, target: Mapping[str, TargetDatabase]) -> Plan:
    """Decides the steps of a plan that has its dump and its options, and returns it. Raises Refused for tables that
    were not created by replication or that are newer than the dump, and for target locations that are the source's;
    BootstrapNeeded if the target is missing something that the range builds on."""
    metadata, squashed = plan.metadata, plan.squashed
    _plan_databases(plan, target)
    leaving = set[Name]()  # names of the target that become free: those of tables that are dropped or renamed
    for lineage in sorted(squashed.lineages, key=lambda each: each.before is None):
        drops, steps = len(plan.drops), len(plan.tables)
        _plan_lineage(plan, lineage, target, leaving)
        leaving.update((table.db, table.name) for table in plan.drops[drops:])
        leaving.update(step.rename_from for step in plan.tables[steps:] if step.rename_from)
    _plan_dropped_databases(plan, target)
    _plan_lacked(plan, target)
    if metadata.kind == BOOTSTRAP:
        _plan_leftovers(plan, target)
    if plan.exact:
        refuse_occupied(plan, target)
    difference = plan.by_difference
    if (plan.exact and metadata.scope.include) or (
        difference and difference.only_tables
    ):  # single tables: the properties and functions of the database are not part of this load
        plan.alter_databases.clear()
    else:
        _plan_functions(plan, target)
    plan.tables.sort(key=lambda each: (bool(each.table and each.table.has_query), each.name))
    if squashed.unknown:
        plan.warnings.append(
            f"not replayed: {count_text(len(squashed.unknown), 'event')} of unknown kinds: {squashed.unknown.listed()}"
        )
    return plan


def looked_at(squashed: Squashed, placement: Placement) -> dict[str, TargetPart]:
    """Returns the parts of the target's databases, by their names on the target, that `make_plan` reads for a range
    that is not a bootstrap: each table under every name that it had in the range, and all of a dropped database."""
    names: dict[str, set[str]] = {name: set() for name in placement.databases.values()}
    for lineage in squashed.lineages:
        for called in lineage.names:
            for name in (called.name, passing_name(called.name)):
                names.setdefault(placement.database(name[0]), set()).add(name[1])
    dropped = {placement.database(db) for db in squashed.dropped_at}
    functions = {placement.database(db) for db, _ in squashed.functions}
    return {
        db: TargetPart(tables=None if db in dropped else frozenset(some), functions=db in functions or db in dropped)
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


def _plan_lineage(plan: Plan, lineage: Lineage, target: Mapping[str, TargetDatabase], leaving: set[Name]) -> None:
    before = _found_as(plan, lineage, target)
    if lineage.now is None:
        if before is not None:
            plan.drops.append(before)
            plan.left[before.db, before.name] = lineage.left
        return
    if lineage.table is None:  # renamed out of the dump's scope, or dropped after its end
        return
    name = _target_name(plan, lineage.now)
    there = _existing(plan, lineage.now, target)
    if reason := _why_left_out(plan, lineage.table) or _why_refused(plan, lineage, target):
        _plan_left_out(plan, LeftOut(lineage, name, there or before, reason))
        return
    shared = plan.sharing.of(lineage.table, before or there)
    final = replica_table(lineage.table, plan.placement, plan.mark, shared=shared)
    if not shared:
        refuse_source_location(plan, lineage.table, final)
    if lineage.before is None and name in leaving:
        there = None  # an earlier table of this name is dropped or renamed by this plan
    step = TablePlan(name=name, lineage=lineage, table=final, shared=shared, there=before or there)
    if there is not None and not plan.overwrite:
        refuse_table(plan, there)
    if lineage.before is None:
        if before is not None:  # created by an interrupted load, and renamed at the source since
            plan.drops.append(before)
        _plan_created(plan, step, there, target)
    else:
        _plan_continued(plan, step, before, there)
    plan.tables.append(step)


def _plan_left_out(plan: Plan, left_out: LeftOut) -> None:
    """Plans a table that is not loaded. The target's copy of it remains as long as the source has a table of its name:
    later ranges would not find it under an older name."""
    there = left_out.there
    if there is not None and (there.db, there.name) != left_out.name and table_position(there) is not None:
        plan.drops.append(msgspec.structs.replace(there, parameters={**there.parameters, LEFT_OUT: left_out.reason}))
        plan.left[there.db, there.name] = left_out.lineage.left
        left_out = replace(left_out, there=None)
    plan.left_out.append(left_out)


def _why_left_out(plan: Plan, table: Table) -> str:
    """Returns why a table is not loaded, from its own text or properties, or from the dump, which has read its log."""
    if why := why_no_view(table, plan.placement.databases):
        return why
    if plan.as_they_are:
        return ""
    if is_transactional(table) and not plan.transactions:
        return NO_TRANSACTIONS
    return format_of(table).why_left_out(table) or plan.problem_of(f"{table.db}.{table.name}")


def _why_refused(plan: Plan, lineage: Lineage, target: Mapping[str, TargetDatabase]) -> str:
    """Returns why an earlier load did not bring a table: changes alone are not enough to try again, the complete table
    is required."""
    if lineage.complete or (lineage.table and lineage.table.is_view and not lineage.table.is_partitioned):
        return ""
    names = {".".join(called.name) for called in lineage.names}
    for source, replica in plan.placement.databases.items():
        database = target[replica].database
        for each in from_property(database.parameters.get(PROPERTY) if database else None, source):
            if each.object in names and each.reason.startswith(NOT_TAKEN):
                return each.reason
    return ""


def _plan_created(plan: Plan, step: TablePlan, there: Table | None, target: Mapping[str, TargetDatabase]) -> None:
    """Plans a table whose complete content is in the dump. An existing table of its name is dropped, unless an earlier
    attempt to load this same dump committed it: of a table from another dump it is unknown which parts the source has
    removed since."""
    assert step.table is not None
    kept = there is not None and plan.metadata.kind == BOOTSTRAP and plan.has_uncaptured(step.lineage)
    if plan.by_difference is not None or kept:  # uncaptured files must not be removed with the rest of a table
        step.prune = True
        # A table that is to share the source's data but owns data now is dropped, and its data with it.
        if there is not None and can_become(there, step.table) and not (step.shared and not has_sources_data(there)):
            step.exists = True
        elif there is not None:
            plan.drops.append(there)
        return
    if there is None:
        step.clear = not step.shared
        return
    resumed = target[there.db].loading == plan.metadata.id and table_position(there) == plan.mark.position
    if resumed and same_shape(there, step.table):
        step.exists = True
        return
    plan.drops.append(there)  # its files of unchanged content are found in $cmroot, by checksum
    step.clear = not step.shared


def _plan_continued(plan: Plan, step: TablePlan, before: Table | None, there: Table | None) -> None:
    """Plans a table that the target already has, perhaps under an older name."""
    lineage = step.lineage
    whole = lineage.complete or bool(step.table and step.table.is_view and not step.table.is_partitioned)
    old = _target_name(plan, lineage.before or ("", ""))
    if before is not None and (before.db, before.name) != step.name:
        step.rename_from, step.exists = (before.db, before.name), True
        if plan.overwrite and there is not None and table_position(there) is None:  # otherwise it is renamed itself
            plan.drops.append(there)
    elif there is not None:
        step.exists = True
    elif not whole:
        raise BootstrapNeeded(
            f"the target lacks table {'.'.join(old)}, which the dump's changes require",
            hint="it was dropped on the target, or never loaded: load a bootstrap dump",
        )
    known = before or there
    if known is not None and LEFT_OUT in known.parameters and not whole:
        raise BootstrapNeeded(
            f"table {'.'.join(step.name)} was left out by earlier loads: {known.parameters[LEFT_OUT]}",
            hint="load a bootstrap dump",
        )
    if known is not None and has_sources_data(known) != step.shared:
        raise BootstrapNeeded(
            f"the data of table {'.'.join(step.name)} is the {'source' if step.shared else 'target'}'s from now on, "
            "but the dump does not list all of it",
            hint="load a bootstrap dump",
        )
    step.clear = lineage.complete and not step.shared


def _plan_dropped_databases(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """Plans the drop of all tables of a dropped database, including those that the range never names."""
    kept = {step.name for step in plan.tables} | {step.rename_from for step in plan.tables}
    dropped = {(table.db, table.name) for table in plan.drops}
    for db, at in plan.squashed.dropped_at.items():
        for table in target[plan.placement.database(db)].tables.values():
            position = table_position(table)
            if position is None:
                raise Refused(
                    f"database {db} was dropped at the source, but replication did not create {table.db}.{table.name}",
                    hint="move that table to another database, then load again",
                )
            if (table.db, table.name) not in kept and (table.db, table.name) not in dropped and position < at:
                plan.drops.append(table)


def _plan_lacked(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """Keeps the target's entries about missing objects that the range does not mention. A bootstrap is complete."""
    if plan.metadata.kind == BOOTSTRAP and plan.squashed.records:
        return
    touched = {called.name for lineage in plan.squashed.lineages for called in lineage.names}
    touched |= plan.squashed.functions.keys()
    stored = {called.name for lineage in plan.squashed.lineages if lineage.table for called in lineage.names}
    stored |= {(name, "") for name in plan.squashed.databases}
    ended = {lineage.before for lineage in plan.squashed.lineages if lineage.before != lineage.now}
    for source, name in plan.placement.databases.items():
        database = target[name].database
        for each in from_property(database.parameters.get(PROPERTY) if database else None, source):
            db, _, name = each.object.partition(".")
            if each.reason.startswith((NO_VIEW, NOT_TAKEN)) and (db, name) in touched:
                continue
            if each.names_source and (db, name) in touched:
                plan.named.append(each)
                continue
            if not name and each.reason.startswith(NOT_TAKEN) and plan.squashed.databases.get(source):
                continue  # its drop was refused, and the source has created it again
            if each.reason.startswith(NOT_STORED) and (db, name) in stored:
                continue
            stays = (*STANDING, NO_VIEW, NOT_TAKEN, NAMES_SOURCE, WITHOUT_TABLE)
            if each.reason.startswith(stays) and (db, name) not in ended and db not in plan.squashed.dropped_at:
                plan.lacked.append(each)


def lack_constraints(plan: Plan, kinds: frozenset[str]) -> None:
    """Records the constraints of the dump that the target cannot store. kinds: those that it can."""
    given = [(step.lineage.now, step.lineage.constraints) for step in plan.tables]
    found = {".".join(now): constraints for now, constraints in given if now and constraints is not None}
    _forget(plan, found, NO_CONSTRAINT)
    for name, constraints in found.items():
        _, lacking = replica_constraints(constraints, kinds, plan.placement.databases.get)
        if lacking:
            plan.lacked.append(not_replicated(name, lacking))


def _forget(plan: Plan, names: Container[str], reason: str) -> None:
    plan.lacked[:] = [each for each in plan.lacked if each.object not in names or not each.reason.startswith(reason)]


def lack_statistics(plan: Plan, engines: Sequence[str]) -> None:
    """Records the tables with statistics of engines that the target does not have. engines: those that it has. An entry
    about a table's own statistics remains until a dump replaces it; one about partitions is added when a dump brings
    them."""
    given = [(step.lineage.now, step.lineage.statistics) for step in plan.tables]
    found = {".".join(now): statistics for now, statistics in given if now and statistics}
    _forget(plan, {name for name, statistics in found.items() if None in statistics}, NO_STATISTICS)
    standing = {each.object for each in plan.lacked if each.reason.startswith(STANDING)}
    for name in (each for each in found if each not in standing):
        lacking = dict[str, None]()
        for partition, statistics in found[name].items():
            begin = "of partitions, " if partition else ""
            lacking |= dict.fromkeys(begin + reason for reason in storable(statistics, engines)[1])
        plan.lacked += [NotReplicated(name, reason) for reason in sorted(lacking)]


def lack_grants(plan: Plan, other: Callable[[], str]) -> None:
    """Records the databases whose grants would have no effect on the target, and leaves these grants out. other:
    returns the authorizer in place of the metastore's own."""
    if not plan.grants:
        plan.lacked[:] = [each for each in plan.lacked if not each.reason.startswith(NO_GRANTS)]
        said = tuple(each for each in plan.metadata.not_replicated if not each.reason.startswith(SOURCE_GRANTS))
        plan.metadata = msgspec.structs.replace(plan.metadata, not_replicated=said)
        return
    names = {db for db, change in plan.squashed.grants.items() if any(change.grants.values())}
    for step in plan.tables:
        if step.lineage.now and any(change.grants[name] for name, change in step.lineage.grants.items()):
            names.add(step.lineage.now[0])
    if names and (instead := other()):
        reason = f"{NO_GRANTS}{instead} authorizes access to the target; permit it there, or set grants to ignore"
        plan.lacked += [NotReplicated(name, reason) for name in sorted(names)]
        plan.grants = False


def _plan_leftovers(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """Plans the drops of a bootstrap, which is complete: replicated tables in its scope that it does not have are
    dropped; if the target is to equal the dump exactly, others too."""
    scope = plan.metadata.scope
    patterns = Patterns.parse(scope.include, scope.exclude)
    wanted = {step.name for step in plan.tables} | {each.name for each in plan.left_out}
    dropped = {(table.db, table.name) for table in plan.drops}
    for name in plan.placement.databases.values():
        for table in target[name].tables.values():
            key = (table.db, table.name)
            everyones = plan.exact or bool(plan.by_difference and plan.by_difference.drop_extra)
            everyones = everyones and (
                plan.as_they_are or not format_of(table).why_left_out(table)
            )  # no dump would include it
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
    """Returns the target's table for this lineage, under a name that it no longer has: its name at the start, or an
    intermediate one (also a passing name) from an interrupted load, of this dump or of one that ended earlier. Returns
    None if it already has its last name or does not exist, whichever table has those names now."""
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


def can_become(there: Table, wanted: Table) -> bool:
    """Returns True if altering suffices, at another location too: data at a table's mistaken location remains there."""
    return _same_kind(there, wanted) and there.partition_keys == wanted.partition_keys


def same_shape(there: Table, wanted: Table) -> bool:
    """Returns True if altering turns one into the other: same kind of object, same partition keys, same location."""
    same_place = (there.location or "") == (wanted.location or "")
    return _same_kind(there, wanted) and there.partition_keys == wanted.partition_keys and same_place


def _same_kind(there: Table, wanted: Table) -> bool:
    return (there.is_view, there.has_query) == (wanted.is_view, wanted.has_query)
