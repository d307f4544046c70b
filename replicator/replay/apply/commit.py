"""Commit: the metadata side of a load after the copies: tables, partitions, statistics, functions, the checkpoint.

Every step may run twice: it checks the present state, and does what is missing.
"""

from __future__ import annotations

import contextlib
import time as clocks
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby

import msgspec

from cmroot.store.place import Place, join, located, normal, remove_if_empty
from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.captures.dumps.rows import after_load, reached
from replicator.core.formats import format_of, is_transactional, pointer_of
from replicator.core.grouping import batched
from replicator.core.model import MANAGED, Database, Partition, Table
from replicator.core.not_replicated import PROPERTY, NotReplicated, from_property, merged, with_property
from replicator.errors import MetastoreError, ObjectExists, ObjectNotFound, Refused
from replicator.metastore.client import PARTITION_BATCH
from replicator.metastore.events.scope import Patterns
from replicator.metastore.transactions import is_strict
from replicator.replay.apply.origins import KeyedExecutor, exists, is_one_file, make_directory
from replicator.replay.apply.staging import CLAIM
from replicator.replay.apply.table_details import set_statistics
from replicator.replay.apply.transfer import foreign_commits
from replicator.replay.apply.work import Changed, Work
from replicator.replay.placement import NamedPath, at_place, lies_by_name, named_paths, noted_like, with_seen
from replicator.replay.plan import TablePlan
from replicator.replay.replica import (
    LEFT_OUT,
    LOADING,
    OWN,
    POSITION,
    PUBLISH,
    SOURCE,
    as_external,
    comparable_partition,
    comparable_table,
    replica_function,
    replica_partition,
)
from replicator.replay.retired import close_retired
from replicator.replay.server_rules import as_served, in_waves, lacking
from replicator.replay.squash import Lineage
from replicator.replay.target import BESIDE, table_position

TABLES = 500  # tables per read
MODIFIED = "The table has been modified"  # HiveAlterHandler, for another pointer than expected


class Commit:
    """The metadata steps of a load that make copied data visible to readers."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.outcomes = work.outcomes
        self._named: dict[str, tuple[str, NamedPath]] = {}  # by path on the target: each is checked once

    def databases(self) -> None:
        """Alters databases: the first visible change after the copies, which may have taken hours. Raises Refused if
        roles changed since, LeaseHeld if another load has the target."""
        self._work.still_claimed()
        for name in self._work.plan.checkpoint:
            self._work.with_role(name, self._work.target.database(name).parameters)
        for database in self._work.plan.alter_databases:
            there = self._work.target.database(database.name)
            own = {key: value for key, value in there.parameters.items() if key.startswith(OWN)}
            wanted = msgspec.structs.replace(
                database, location=there.location, parameters=database.parameters | own, extra=there.extra
            )
            wanted = as_served(wanted, there)  # Hive 4 refuses one without an owner
            if wanted != there:
                self._work.target.alter_database(database.name, wanted)
                self._work.changed.count()
            if wanted.description != there.description:
                self._describe(wanted)
        for name, final in self._work.plan.squashed.databases.items():
            if final is not None and (final.connector or final.managed_location):
                self._name_lacking(name, final, self._work.target.database(self._work.plan.placement.database(name)))

    def _describe(self, wanted: Database) -> None:
        """Sets a database's description. A 2.3 server stores it only when it creates the database: an empty database is
        recreated, for any other a warning is reported."""
        target, name = self._work.target, wanted.name
        there = target.database(name)
        if there.description == wanted.description:
            return
        is_ours_to_drop = name != "default" and not there.extra and there.location
        if is_ours_to_drop and not target.table_names(name) and not target.functions(name):
            try:
                target.drop_database(name)
            except MetastoreError as error:
                if error.transient:
                    raise
                # Refused: a table was created in it since.
            else:
                target.create_database(msgspec.structs.replace(there, description=wanted.description))
                return
        self._work.plan.warnings.append(
            f"{name}: its description remains {there.description or ''!r}, at the source it is"
            f" {wanted.description or ''!r}: this metastore changes none; create the database again while it is empty"
        )

    def tables(self, advance: Callable[[int], None]) -> None:
        """Creates and alters tables in parallel; views after the objects that they may read. Tables that may differ
        from the source's are read together."""
        for steps in in_waves((step.table, step) for step in self._work.plan.tables if step.table):
            unlike: list[TablePlan] = []
            with self._work.side_by_side(len(steps)) as executor:
                for step in steps:
                    self._submit(executor, step, self._table, step, unlike)
                    advance(1)
            left = [step for step in self._work.plan.tables if not self.outcomes.is_refused(step.source)]
            self._work.plan.tables = left
            with self._work.side_by_side(len(unlike)) as executor:
                for step, there in self._found(unlike):
                    self._submit(executor, step, self._alter, step, there)

    def _submit(self, executor: KeyedExecutor, step: TablePlan, work: Callable[..., None], *arguments: object) -> None:
        """Submits work on a table; a refusal of one table by the target does not affect the others."""
        executor.submit(step.name, self.outcomes.attempt, step.source, work, *arguments)

    def left_out(self) -> None:
        """Marks tables that are left unchanged: when they can be loaded again, changes alone are not enough."""
        for each in self._work.plan.left_out:
            if each.there is None or self._work.plan.exact or LEFT_OUT in each.there.parameters:
                continue
            if table_position(each.there) is None:  # not created by replication
                continue
            with contextlib.suppress(ObjectNotFound):
                there = self._work.target.table(each.there.db, each.there.name)
                parameters = there.parameters | {LEFT_OUT: each.reason}
                self._work.target.alter_table(
                    there.db, there.name, msgspec.structs.replace(there, parameters=parameters)
                )

    def _found(self, steps: Iterable[TablePlan]) -> Iterator[tuple[TablePlan, Table]]:
        """Yields steps, each with the target's table. Raises ObjectNotFound for one that does not exist."""
        for some in batched(sorted(steps, key=lambda step: step.name), TABLES):
            for db, ours in groupby(some, key=lambda step: step.name[0]):
                by_name = {step.name[1]: step for step in ours}
                there = {table.name: table for table in self._work.target.tables(db, list(by_name))}
                for name, step in by_name.items():
                    yield step, there.get(name) or self._work.target.table(db, name)

    def _table(self, step: TablePlan, unlike: list[TablePlan]) -> None:
        """Creates a table that does not exist. unlike: gets the step if the table may differ from the wanted one."""
        assert step.table is not None and step.lineage.table is not None
        if not step.shared and not step.table.is_view:
            step.table = with_seen(step.lineage.table, step.table, self._home(step.lineage.table.db))
            self._name(step, named_paths(step.lineage.table, step.table))
        if step.table.location and not step.shared:  # a server requires the directory even of a view that has one
            make_directory(step.table.location)
        if step.begins_again and step.exists:
            self._work.target.drop_table(*step.name)
            step.exists = False
        if step.replaces is not None and not step.exists:
            self._replace(step, step.replaces)
        if not step.exists:
            try:
                self._create(self._work.noted_by_name(step.table))
                self._work.changed.count()
                if lacking(step.table, Table(*step.name))[1]:  # by some servers
                    self._name_lacking(step.source, step.table, self._work.target.table(*step.name))
                if step.table.is_view or "totalSize" in step.table.parameters:
                    return  # otherwise the server has added file statistics, which the source does not have
            except ObjectExists:
                step.exists = True
        unlike.append(step)

    def _home(self, db: str) -> str | None:
        return self._work.plan.placement.source_locations.get(db)

    def _alter(self, step: TablePlan, there: Table) -> None:
        assert step.table is not None
        adopted = self._work.plan.by_difference is not None  # an equal table may have been created by others
        unmarked = adopted and there.parameters.get(SOURCE) != step.table.parameters.get(SOURCE)
        served = as_served(lacking(step.table, there)[0], there)
        if unmarked or comparable_table(there) != comparable_table(served):
            if not step.table.is_view:
                self._work.leave(step, [("", there.location, step.table.location)])
            wanted = noted_like(msgspec.structs.replace(served, create_time=there.create_time), there)
            if pointer_of(wanted) and not self._work.plan.replaces_commits:
                self._switch(step, wanted, pointer_of(there))
            else:
                self._work.target.alter_table(*step.name, wanted)
            self._work.changed.count()
            if (before := there.location or "").endswith(BESIDE):  # an earlier load was killed in `_create`
                remove_if_empty(before)
        self._name_lacking(step.source, step.table, there)

    def _switch(self, step: TablePlan, wanted: Table, pointer: str) -> None:
        """Alters a table whose pointer is still this one. Raises Refused if another writer has committed."""
        try:
            self._work.target.alter_table(*step.name, wanted, pointer)
        except MetastoreError as error:
            if error.transient or MODIFIED not in error.message:
                raise
            now = pointer_of(self._work.target.table(*step.name))
            if now != pointer_of(wanted):  # otherwise the answer to an earlier call was lost
                raise foreign_commits({now: format_of(wanted).said}) from error

    def _name_lacking(self, name: str, wanted: Database | Table, there: Database | Table) -> None:
        """Records what the target is missing of an object. name: at the source. If there are several reasons, one that
        a later load checks by itself comes last, and counts."""
        self._work.plan.lacked[:0] = [NotReplicated(name, reason) for reason in lacking(wanted, there)[1]]

    def _create(self, table: Table) -> None:
        """Creates a table. Servers refuse to create one whose location is a file, but allow to alter it to that. May
        run twice: a table left at the temporary location is altered like any other."""
        place = table.storage.location if table.storage and not table.is_view else None
        if self._work.plan.transactions and is_transactional(table):
            self._forget_write_ids(table)
        elif table.kind == MANAGED and not is_transactional(table) and self._strict:
            table = as_external(table)
        if not (place and is_one_file(place)):
            self._work.target.create_table(table)
            return
        self._work.target.create_table(_beside(table))
        self._work.target.alter_table(table.db, table.name, table)
        remove_if_empty(f"{place}{BESIDE}")

    @cached_property
    def _strict(self) -> bool:
        return is_strict(self._work.target)

    def _forget_write_ids(self, table: Table) -> None:
        """Lets a new table begin with its own write ids. Servers since Hive 4 keep those of an earlier table of its
        name, unless that was dropped with its data (AcidEventListener.onDropTable): here that is a table without data,
        at the temporary location, which a load after a kill drops like any other."""
        target, name = self._work.target, (table.db, table.name)
        if not target.write_ids([name], target.snapshot())[name].high:
            return
        stand_in = _beside(table)
        assert stand_in.location
        remove_if_empty(stand_in.location)
        if exists(stand_in.location):
            raise Refused(
                f"{stand_in.location} has files: there, table {table.db}.{table.name} is created for a moment",
                hint="move them elsewhere, then load again",
            )
        target.create_table(stand_in)
        made = target.table(*name).location or ""
        if normal(made) != normal(stand_in.location) or located(made).find():  # the server would delete files for good
            raise Refused(
                f"table {table.db}.{table.name}, created empty at {stand_in.location}, is at {made} with files"
            )
        target.drop_table(*name, with_data=True)

    def partitions(
        self, named: Iterator[tuple[Lineage, list[tuple[str, Partition]]]], advance: Callable[[int], None]
    ) -> None:
        """Adds and alters partitions from a stream: in order within a table, tables in parallel."""
        steps = {id(step.lineage): step for step in self._work.plan.tables}
        with self._work.side_by_side(len(steps)) as executor:
            for lineage, some in named:
                step = steps.get(id(lineage))
                if step is None or step.table is None:
                    continue
                for batch in batched(some, PARTITION_BATCH):
                    self._submit(executor, step, self._partitions, step, batch)
                    advance(len(batch))

    def _partitions(self, step: TablePlan, named: Sequence[tuple[str, Partition]]) -> None:
        assert step.lineage.table is not None
        db, table = step.name
        wanted = {
            name: with_seen(
                each,
                replica_partition(
                    each, step.lineage.table, step.placement or self._work.plan.placement, shared=step.shared
                ),
                self._home(step.lineage.table.db),
            )
            for name, each in named
        }
        for name, each in named if not step.shared else ():
            self._name(step, named_paths(each, wanted[name]))
        there: dict[str, Partition] = {}
        if step.exists:
            found = self._work.target.partitions(db, table, list(wanted))
            there = {self._work.name_of(step, each): each for page in found for each in page}
        for name, each in wanted.items():
            place = step.place_of_partition(name, there[name].location if name in there else None)
            if place is not None:
                wanted[name] = at_place(each, place)
        self._remove_emptied(step, wanted)
        if self._work.plan.by_difference is not None:  # those of an increment were removed before the copy
            self._work.leave(step, ((name, each.location, wanted[name].location) for name, each in there.items()))
        self._work.note_places(step, wanted.items())
        added = [each for name, each in wanted.items() if name not in there]
        altered = [
            each
            for name, each in wanted.items()
            if name in there and comparable_partition(there[name]) != comparable_partition(each)
        ]
        if added:
            for partition in added:
                if partition.location and not step.shared:
                    home = step.table.location if step.table and step.table.location else ""
                    if lacking_rights := make_directory(partition.location, home):
                        text = f"{partition.location} lacks {lacking_rights} of its table's directory"
                        self._work.plan.stays.lack(step.name, text)
            self._work.target.add_partitions(db, table, added)
            # The server adds file statistics to partitions that have none; the source has none.
            altered += [each for each in added if "totalSize" not in each.parameters]
        for batch in batched(altered, PARTITION_BATCH):
            self._work.target.alter_partitions(db, table, batch)
        self._work.changed.count(len(added) + sum(1 for each in altered if each not in added))

    def _remove_emptied(self, step: TablePlan, partitions: Mapping[str, Partition]) -> None:
        """Removes directories that remained for partitions which were created elsewhere again (`Goings.fills`)."""
        for name, partition in partitions.items():
            fate = step.lineage.partitions.get(name)
            if fate is not None and fate.complete and step.exists and step.table and partition.location:
                home = step.table.location
                if home and not step.shared and not lies_by_name(step.table, name, partition.location):
                    remove_if_empty(join(home, name))

    def flip(self) -> None:
        """Switches the location of partitions whose files have changed, but that no record has altered."""
        for step in self._work.plan.tables:
            if step.place is None or not step.exists or step.table is None or not step.table.has_files_by_partition:
                continue
            for batch in batched(sorted(step.touched), PARTITION_BATCH):
                there = self._work.partitions_named(step, batch)
                flipped = [
                    at_place(partition, place)
                    for name, partition in there.items()
                    if (place := step.place_of_partition(name, partition.location))
                    and normal(place) != normal(partition.location or "")
                ]
                if flipped:
                    self._work.target.alter_partitions(*step.name, flipped)
                    self._work.changed.count(len(flipped))

    def _replace(self, step: TablePlan, old: Table) -> None:
        """Drops another table of this name only now, when all files of the new one exist."""
        try:
            there = self._work.target.table(*step.name)
        except ObjectNotFound:
            return
        if there.parameters.get(POSITION) == old.parameters.get(POSITION):
            self._work.drop_tables([old])

    def statistics(self) -> None:
        """Sets column statistics, tables in parallel. As this makes the server rewrite a table's COLUMN_STATS_ACCURATE,
        the source's value is restored after it."""
        steps = [step for step in self._work.plan.tables if step.table and step.lineage.statistics]
        with self._work.side_by_side(len(steps)) as executor:
            for step in steps:
                self._submit(executor, step, set_statistics, self._work, step)
        with self._work.side_by_side(len(steps)) as executor:
            for step, there in self._found(step for step in steps if None in step.lineage.statistics):
                if step.table and comparable_table(there) != comparable_table(step.table):
                    wanted = noted_like(step.table, there)
                    self._submit(executor, step, self._work.target.alter_table, *step.name, wanted)

    def _name(self, step: TablePlan, paths: Iterable[NamedPath]) -> None:
        for each in paths:
            self._named.setdefault(each.target, (".".join(step.lineage.now or step.name), each))

    def dangling(self) -> list[NotReplicated]:
        """Returns objects of this load whose properties name files that no load copies."""
        named = dict(self._named)
        for function in self._work.plan.squashed.functions.values():
            replica = replica_function(function, self._work.plan.placement) if function else None
            if function and replica:
                for path in named_paths(function, replica):
                    named.setdefault(path.target, (f"{function.db}.{function.name}", path))
        return merged(NotReplicated(name, path.reason) for name, path in named.values() if path.dangles())

    @property
    def changed(self) -> Changed:
        return self._work.changed

    def drop_databases(self) -> None:
        """Drops databases. One that the target refuses to drop remains, with a note."""
        for name in self._work.plan.drop_databases:
            source = self._work.plan.source_of((name, ""))
            self.outcomes.attempt(source, self._drop_database, name)
            if self.outcomes.is_refused(source):
                self._note_staying(name, self.outcomes.reason(source))

    def _drop_database(self, name: str) -> None:
        with contextlib.suppress(ObjectNotFound):
            for function in self._work.target.functions(name):
                self._work.target.drop_function(name, function.name)
            self._work.target.drop_database(name)
            self._work.changed.count()

    def _note_staying(self, name: str, reason: str) -> None:
        """Notes a refused drop on a database. Its position advances like the others'; later runs drop it again."""
        there, plan = self._work.target.database(name), self._work.plan
        mark = plan.mark.parameters() if POSITION in there.parameters and plan.mark.position else {}
        parameters = with_property(there.parameters | mark, [NotReplicated(plan.source_of((name, "")), reason)])
        self._work.target.alter_database(name, msgspec.structs.replace(there, parameters=parameters))

    def recycle_left(self) -> None:
        self._work.recycle_left()

    def checkpoint(self) -> None:
        """Writes the checkpoint: the last metadata change, after which the target is at the dump's end."""
        self._work.note_by_name()
        self._work.plan.lacked += self.outcomes.refused()
        for name in self._work.plan.checkpoint:
            there = self._work.target.database(name)
            if self._work.claims:
                self._work.claims.still(name, there.parameters)
            there_now = self._work.with_role(name, there.parameters)
            parameters = {key: value for key, value in there_now.items() if key not in (LOADING, CLAIM)}
            if not self._work.plan.snapshot and self._work.plan.by_difference:
                parameters.pop(PUBLISH, None)  # all of it is in the source's layout again
            parameters |= self._work.plan.mark.parameters()
            moves = there.parameters.get(POSITION) != parameters[POSITION]
            missing = self._work.plan.not_replicated_in(name)
            if not moves:  # for example a repair of some tables: entries about the others remain valid
                missing = merged(self._said_of_others(name, there.parameters), missing)
            parameters = with_property(parameters, missing)
            parameters = self._with_scope(name, parameters, moves=moves)
            if parameters != there.parameters:
                self._work.target.alter_database(name, msgspec.structs.replace(there, parameters=parameters))
        (Place(self._work.root) / "loads" / self._work.plan.metadata.id).remove_own_tree()
        if self._work.plan.snapshot:
            close_retired(self._work.root, self._work.plan.metadata.id, now=clocks.time())

    def _said_of_others(self, name: str, parameters: dict[str, str]) -> list[NotReplicated]:
        """Returns the not-replicated entries of a database about tables that are not in the dump."""
        scope = self._work.plan.metadata.scope
        held = Patterns.parse(scope.include, scope.exclude)
        said = from_property(parameters.get(PROPERTY), name)
        return [each for each in said if not held.match(each.object.partition(".")[2])]

    def _with_scope(self, name: str, parameters: dict[str, str], *, moves: bool) -> dict[str, str]:
        metadata, databases = self._work.plan.metadata, self._work.plan.placement.databases
        source = next(source for source, replica in databases.items() if replica == name)
        wanted = reached(metadata.scope, source)
        return after_load(parameters, wanted, moves=moves, whole=metadata.kind == BOOTSTRAP)


def _beside(table: Table) -> Table:
    """Returns a table at its temporary location."""
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"{table.storage.location}{BESIDE}")
    return msgspec.structs.replace(table, storage=storage)
