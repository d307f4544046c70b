"""Column statistics, constraints and grants of a load's tables. Constraints are dropped before the tables change, and
added when all tables exist.

A 2.3 server does not change columns of a table that a key refers to, so such constraints are dropped first and restored
later. Foreign keys are added last, as they require the parent's key. Every step may run twice: it checks the present
state.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.core.grouping import batched
from replicator.core.model import (
    FOREIGN_KEY,
    PRIMARY_KEY,
    UNIQUE,
    Constraint,
    Grant,
    Member,
    Name,
    RoleMembers,
    Statistics,
    Table,
    partition_spec,
)
from replicator.core.not_replicated import NotReplicated
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH
from replicator.metastore.events.facts import SetGrants
from replicator.metastore.grants import GRANTS_PER_CALL, On, difference, on_target, role_on_target
from replicator.replay.apply.work import Work
from replicator.replay.plan import TablePlan
from replicator.replay.replica import replica_statistics
from replicator.replay.server_rules import (
    LACKING,
    NO_CONSTRAINT,
    NO_GRANTS,
    Lack,
    not_replicated,
    noted_lack,
    replica_constraints,
    storable,
    with_lack,
)

There = dict[Name, tuple[Constraint, ...]]
Wanted = tuple[tuple[Grant, ...], bool]


class ConstraintCommit:
    """The constraints of a load's tables; `drop` before these change, `add` afterwards."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._released: There = {}
        self._lacking: dict[Name, list[Lack]] = {}

    # ---- before ---------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Saves foreign keys of other tables that refer to a table which is dropped and recreated. Before the drops."""
        plan = self._work.plan
        made = {step.name for step in plan.tables}
        again = {(table.db, table.name) for table in plan.drops} & made
        for db in plan.placement.databases.values() if again else ():
            for table, constraints in self._work.target.foreign_keys(db).items():
                lost = tuple(each for each in constraints if each.parent in again)
                if lost and (db, table) not in again:
                    self._released[db, table] = lost

    def drop(self) -> None:
        """Drops constraints that the source no longer has, and those that prevent changes of columns."""
        existing = {step.name: step for step in self._work.plan.tables if self._may_have(step) and step.exists}
        changing = {name for name, step in existing.items() if step.changes_columns}
        looked_at = [name for name, step in existing.items() if name in changing or self._wanted(step) is not None]
        there = self._there(looked_at)
        going: list[tuple[Name, Constraint]] = []
        for name, constraints in there.items():
            wanted = self._wanted(existing[name])
            if wanted is None:
                self._released[name] = (*constraints, *self._released.get(name, ()))
            stays = set(constraints if wanted is None else wanted[0])
            for each in constraints:
                if each not in stays or name in changing or each.parent in changing:
                    going.append((name, each))
        for (db, table), each in sorted(going, key=lambda one: one[1].kind != FOREIGN_KEY):
            with contextlib.suppress(ObjectNotFound):
                self._work.target.drop_constraint(db, table, each.name)
                self._work.changed.count()

    # ---- after ----------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Adds missing constraints. Those that the target cannot have are noted on the table, and added to the plan."""
        steps = {step.name: step for step in self._work.plan.tables if self._may_have(step)}
        wanted: There = {}
        for name, step in steps.items():
            outcome = self._wanted(step)
            if outcome is not None:
                wanted[name], self._lacking[name] = tuple(outcome[0]), list(outcome[1])
        self._add_missing(self._released | wanted)
        for name, lacking in self._lacking.items():
            there = steps[name].there if name in steps else None
            if lacking or (there is not None and LACKING in there.parameters):
                self._note(name, lacking)
        self._name({name: _source_name(step) for name, step in steps.items()})
        self._try_again()

    def _add_missing(self, wanted: There) -> None:
        there = self._there([name for name, some in wanted.items() if some])
        missing = [(name, each) for name, some in wanted.items() for each in some if each not in there.get(name, ())]
        self._add_all([(name, each) for name, each in missing if not each.parent])
        foreign = [(name, each) for name, each in missing if each.parent]
        keyed = {
            name
            for name, some in self._there({each.parent for _, each in foreign if each.parent}).items()
            if any(each.kind in (PRIMARY_KEY, UNIQUE) for each in some)
        }  # without one, a 2.3 server accepts a foreign key but does not return it
        for name, each in foreign:
            if each.parent and each.parent not in keyed:
                reason = f"the target has no table {'.'.join(each.parent)} with a key"
                self._lacking.setdefault(name, []).append(Lack(each, reason))
        self._add_all([(name, each) for name, each in foreign if each.parent in keyed])

    def _add_all(self, missing: Iterable[tuple[Name, Constraint]]) -> None:
        for name, each in missing:
            if reason := self._refused(*name, each):
                self._lacking.setdefault(name, []).append(Lack(each, reason))

    def _refused(self, db: str, table: str, constraint: Constraint) -> str:
        """Adds a constraint. Returns why the server refuses it, "" if it does not."""
        try:
            self._work.target.add_constraint(db, table, constraint)
        except MetastoreError as error:
            if error.transient:
                raise
            return f"the target's metastore refused it: {error}"
        self._work.changed.count()
        return ""

    def _note(self, name: Name, lacking: Sequence[Lack]) -> None:
        with contextlib.suppress(ObjectNotFound):
            there = self._work.target.table(*name)
            noted = with_lack(there, lacking)
            if noted != there:
                self._work.target.alter_table(*name, noted)

    def _name(self, sources: dict[Name, str]) -> None:
        """Replaces the plan's entries about tables that were checked; entries about others remain."""
        looked_at = {sources[name] for name in self._lacking if name in sources}
        rest = [each for each in self._work.plan.lacked if not _is_of(each, looked_at)]
        now = [not_replicated(sources[name], some) for name, some in self._lacking.items() if some and name in sources]
        self._work.plan.lacked[:] = [*rest, *now]

    def _try_again(self) -> None:
        """Retries what earlier loads could not add to tables that this one does not change."""
        mine = {_source_name(step) for step in self._work.plan.tables}
        earlier = [
            each for each in self._work.plan.lacked if each.reason.startswith(NO_CONSTRAINT) and each.object not in mine
        ]
        if not earlier:
            return
        names = {self._on_target(each.object): each.object for each in earlier}
        notes = {name: noted_lack(table.parameters) for name, table in self._tables(names).items()}
        kinds = self._work.target.constraint_kinds()
        self._lacking = {}
        for name, lacks in notes.items():
            possible = [each.constraint for each in lacks if each.constraint.kind in kinds and self._is_mapped(each)]
            kept = [each for each in lacks if each.constraint not in possible]
            self._lacking[name] = kept
            self._add_missing({name: tuple(possible)})
            if self._lacking[name] != lacks:
                self._note(name, self._lacking[name])
        self._name(names)

    # ---- internals ------------------------------------------------------------------------------------------------

    def _wanted(self, step: TablePlan) -> tuple[list[Constraint], list[Lack]] | None:
        """Returns the wanted constraints; None if the dump does not contain them."""
        plan, constraints = self._work.plan, step.lineage.constraints
        if constraints is None:
            return ([], []) if plan.metadata.constraints and plan.metadata.kind == BOOTSTRAP else None
        return replica_constraints(constraints, self._work.target.constraint_kinds(), plan.placement.databases.get)

    def _may_have(self, step: TablePlan) -> bool:
        return step.table is not None and not step.table.is_view

    def _there(self, names: Iterable[Name]) -> There:
        by_db = defaultdict(list)
        for db, name in names:
            by_db[db].append(name)
        return {
            (db, name): constraints
            for db, some in by_db.items()
            for batch in batched(some, PARTITION_BATCH)
            for name, constraints in self._work.target.constraints(db, batch).items()
        }

    def _tables(self, names: Iterable[Name]) -> dict[Name, Table]:
        by_db = defaultdict(list)
        for db, name in names:
            by_db[db].append(name)
        found = (table for db, some in by_db.items() for table in self._work.target.tables(db, some))
        return {(table.db, table.name): table for table in found}

    def _on_target(self, source: str) -> Name:
        db, _, table = source.partition(".")
        return self._work.plan.placement.database(db), table

    def _is_mapped(self, lack: Lack) -> bool:
        """Returns True if it refers to a table by its name on the target, that is, of a replicated database."""
        parent = lack.constraint.parent
        return parent is None or parent[0] in self._work.plan.placement.databases.values()


def _source_name(step: TablePlan) -> str:
    return ".".join(step.lineage.now or step.name)


def _is_of(each: NotReplicated, tables: set[str]) -> bool:
    return each.reason.startswith(NO_CONSTRAINT) and each.object in tables


# ---- statistics ------------------------------------------------------------------------------------------------------


def set_statistics(work: Work, step: TablePlan) -> None:
    """Sets statistics of the dump, for engines that the target has, and drops those that the source no longer has. May
    run twice."""
    whole, partitions, engines = [], [], work.target.statistics_engines()
    for name, statistics in step.lineage.statistics.items():
        replica, _ = storable(replica_statistics(statistics, work.plan.placement), engines)
        replica = msgspec.structs.replace(replica, db=step.name[0], table=step.name[1])
        fate = step.lineage.partitions.get(name) if name is not None else None
        if name is None:
            whole.append(replica)
        elif fate is None or fate.now is not None:
            partitions.append(replica)
    for each in whole:
        if step.exists:
            _drop_statistics(work, step, [each], work.target.table_statistics(*step.name, _columns(step)))
        if each:
            work.target.set_table_statistics(each)
    for batch in batched(partitions, PARTITION_BATCH):
        if step.exists:
            names = [each.partition for each in batch if each.partition]
            _drop_statistics(work, step, batch, *work.target.partition_statistics(*step.name, _columns(step), names))
        work.target.set_partition_statistics([each for each in batch if each])


def _drop_statistics(work: Work, step: TablePlan, wanted: Sequence[Statistics], *there: Statistics | None) -> None:
    """Drops statistics of columns for which the source no longer has any: setting the others does not remove them."""
    kept = {(each.partition, *column) for each in wanted for column in _measured(each)}
    for each in there:
        for column, engine in _measured(each) if each else ():
            if each and (each.partition, column, engine) not in kept:
                work.target.drop_statistics(*step.name, each.partition or "", column, engine)
                work.changed.count()


def _measured(statistics: Statistics) -> Iterator[tuple[str, str]]:
    """Yields (column, engine) of each column statistic."""
    for engine, columns in statistics.by_engine().items():
        yield from ((each.column, engine) for each in columns)


def _columns(step: TablePlan) -> list[str]:
    return [column.name for column in step.table.storage.columns] if step.table and step.table.storage else []


# ---- grants ----------------------------------------------------------------------------------------------------------


class GrantCommit:
    """The grants of a load's objects, and the roles that they need, applied when all objects exist. Roles are created
    if they are missing and never dropped; of their members only those that loads added are removed."""

    def __init__(self, work: Work) -> None:
        self._work, self._plan, self._target = work, work.plan, work.target
        self._principals = self._plan.principals
        self._sources: dict[On, str] = {}  # the source's name of each object's table or database
        self._refused: dict[str, str] = {}

    def apply(self) -> None:
        """Makes the target's grants those of the dump. May run twice."""
        wanted = self._wanted() if self._plan.grants else {}
        if not (wanted or (self._plan.grants and self._plan.squashed.roles)) or not self._target.keeps_grants():
            return
        self._roles()
        self._change(wanted)
        done = {*self._sources.values(), *self._plan.squashed.roles}
        rest = [each for each in self._plan.lacked if not (each.object in done and each.reason.startswith(NO_GRANTS))]
        refused = [NotReplicated(name, f"{NO_GRANTS}{why}") for name, why in sorted(self._refused.items())]
        self._plan.lacked[:] = [*rest, *refused]

    def _wanted(self) -> dict[On, Wanted]:
        """Returns the wanted grants of objects, and True for those that keep the target's own besides."""
        whole = self._plan.metadata.kind == BOOTSTRAP and self._plan.metadata.grants
        found: dict[On, Wanted] = {}

        def add(on: On, source: str, name: str, change: SetGrants | None) -> None:
            grants = change.grants.get(name, ()) if change else ()
            found[on] = (on_target(grants, self._principals), change is not None and change.first)
            self._sources[on] = source

        for source, replica in self._plan.placement.databases.items() if self._has_databases() else ():
            if (whole or source in self._plan.squashed.grants) and replica in self._plan.checkpoint:
                add((replica, "", ()), source, "", self._plan.squashed.grants.get(source))
        for step in self._plan.tables:
            changes = step.lineage.grants if step.table else {}
            for name in {*changes, ""} if whole and step.table else changes:
                add((*step.name, partition_spec(name)[1] if name else ()), step.source, name, changes.get(name))
        return found

    def _has_databases(self) -> bool:
        """Returns False for a load of single tables: the grants of the database are not part of it."""
        difference = self._plan.by_difference
        single = self._plan.exact and self._plan.metadata.scope.include
        return not (single or (difference and difference.only_tables))

    def _change(self, wanted: Mapping[On, Wanted]) -> None:
        there = self._target.grants(set(self._plan.placement.databases.values())).grants
        tables = {on[:2] for on in wanted if on[1]}
        if self._plan.metadata.kind == BOOTSTRAP:  # partitions without grants are not named there
            dropped = {on: ((), False) for on in there if on[2] and on[:2] in tables and on not in wanted}
            self._sources |= {on: self._sources[*on[:2], ()] for on in dropped}
            wanted = {**wanted, **dropped}
        revoke, grant = list[tuple[On, Grant]](), list[tuple[On, Grant]]()
        for on, (grants, only_add) in wanted.items():
            change = difference(grants, there.get(on, ()), only_add=only_add)
            revoke += [(on, each) for each in change.revoke]
            grant += [(on, each) for each in change.grant]
        self._send(self._target.revoke_privileges, revoke)
        self._send(self._target.grant_privileges, grant)

    def _send(self, call: Callable[[Sequence[tuple[On, Grant]]], None], some: Sequence[tuple[On, Grant]]) -> None:
        """Sends grants in batches; those of a refused batch one by one, so that a refusal affects only one."""
        for batch in batched(some, GRANTS_PER_CALL):
            try:
                call(batch)
                self._work.changed.count(len(batch))
            except MetastoreError as error:
                if error.transient:
                    raise
                if len(batch) > 1:
                    for each in batch:
                        self._send(call, [each])
                else:
                    self._refused[self._sources[batch[0][0]]] = f"the target's metastore refused it: {error}"

    def _roles(self) -> None:
        for db, roles in self._plan.squashed.roles.items():
            wanted = [found for each in roles if (found := role_on_target(each, self._principals))]
            there = self._target.roles([each.name for each in wanted])
            for each in wanted:
                if each.name not in there:
                    self._attempt(db, self._target.create_role, each.name)
            for each in wanted:
                self._members(db, each, set(there[each.name].members) if each.name in there else set())

    def _members(self, db: str, role: RoleMembers, there: set[Member]) -> None:
        """Adds the missing members of a role, and removes those that a load added and the source does not have."""
        gone = there - set(role.members)
        for member in sorted(gone & self._target.added_members(role.name), key=str) if gone else ():
            self._attempt(db, self._target.revoke_role, role.name, member)
            there.discard(member)
        known = {(each.kind, each.principal) for each in there}
        for member in role.members:
            if (member.kind, member.principal) not in known:
                self._attempt(db, self._target.grant_role, role.name, member)

    def _attempt(self, db: str, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
            self._work.changed.count()
        except MetastoreError as error:
            if error.transient:
                raise
            self._refused[db] = f"the target's metastore refused it: {error}"
