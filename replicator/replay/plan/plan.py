"""The plan: the actions of a load, decided before the first one. Pure: from a squashed range and the target's state.

For every table, a plan has the actions that prepare it (drop, rename, clear) and those that commit it, and the rules by
which tasks map file entries to target files. Its size grows with the number of tables, not of files.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from cmroot.store.place import join
from replicator.captures.dumps.layout import DumpMetadata
from replicator.core.model import Database, Function, Table
from replicator.core.not_replicated import NotReplicated, merged
from replicator.replay.places.placement import Placement
from replicator.replay.places.replica import Mark, has_sources_data
from replicator.replay.places.retired import Stays
from replicator.replay.plan.rules import FileRules, PartitionRule, TableRule
from replicator.replay.plan.squash import Lineage, Squashed
from replicator.replay.plan.target import ByDifference

Name = tuple[str, str]


@dataclass
class TablePlan:
    """One table of the target. Names are the target's. `lineage`: its changes at the source; `table`: the final
    object (None: dropped). `rename_from`: its name on the target until now. `clear`: its old data is moved to `$cmroot`
    before the new data is copied, because the dump has all of its content. `prune`: only the files that the dump does
    not have are moved. `exists`: the target has it already, under `rename_from` or its name. `shared`: its data is the
    source's, so none of it is copied or removed. `there`: the target's table.

    If a load publishes by snapshots (see `isolation`): `place`: this load's directory for it; `touched`: its
    partitions whose files change, "" for its own files; `placement`: locates it where `table` is; `replaces`: another
    table that is dropped when this one is created."""

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
    def source(self) -> str:
        """Its name at the source, db.table."""
        return ".".join(self.lineage.now or self.name)

    @property
    def recreated(self) -> bool:
        """True if nothing of the target's table remains: all its files are in the range."""
        return self.lineage.complete and not self.prune

    def place_of_partition(self, name: str, there: str | None) -> str | None:
        """Returns the location for a partition of the target, by its name at the end; None if the source's layout
        determines it. there: its present location, if it exists."""
        if self.place is None:
            return None
        fate = self.lineage.partitions.get(name)
        stays = there is not None and name not in self.touched and not (fate and fate.complete)
        return there if stays else join(self.place, name)


@dataclass(frozen=True)
class Sharing:
    """The external tables that keep their data at the source. `all`: True for every one, False for none, None for those
    that share it on the target now."""

    all: bool | None = None

    def of(self, table: Table, there: Table | None) -> bool:
        """Returns True if a table shares the source's data. `there`: the target's table."""
        wanted = has_sources_data(there) if self.all is None else self.all
        return wanted and table.is_external and not table.is_view


AS_THEY_SHARE = Sharing()


@dataclass(frozen=True)
class LeftOut:
    """A table of the source that is not loaded because of its format: its lineage, its name on the target, the target's
    table (None if missing), and the reason."""

    lineage: Lineage
    name: Name
    there: Table | None
    reason: str


@dataclass
class Plan:
    """The actions of a load, in this order: databases, drops, renames, clears, copies, removals, tables, functions,
    dropped databases, checkpoint. `skipped`: why there is nothing to do. `exact`, `overwrite`, `by_difference`: see
    LoadOptions.
    `snapshot`: the load's name in published places, if it publishes by snapshots; `back`: it returns tables published
    that way to the source's layout. `as_they_are`, `preserve`: see LoadOptions; `left_out`: tables whose files cannot
    be copied, and views whose SQL is not understood; the target's versions remain. `left`: for dropped tables, the
    partitions ("": the table) that were relocated away from their files before. `stays`: files that were to be removed
    but remain. `lacked`: views that earlier loads and this one leave out; objects that the target cannot store. `seen`:
    the `standing` of existing databases."""

    metadata: DumpMetadata
    placement: Placement
    after: int
    squashed: Squashed
    exact: bool = False
    overwrite: bool = False
    by_difference: ByDifference | None = None
    sharing: Sharing = AS_THEY_SHARE
    snapshot: str | None = None
    back: bool = False
    as_they_are: bool = False
    preserve: Collection[str] = ()
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
    lacked: list[NotReplicated] = field(default_factory=list)
    skipped: str = ""
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    @cached_property
    def mark(self) -> Mark:
        return Mark(self.metadata.end.event, self.metadata.end.position, self.metadata.root_id)

    def source_of(self, name: Name) -> str:
        """Returns the source's name of a table (without a name: the database), by its name on the target."""
        sources = {replica: source for source, replica in self.placement.databases.items()}
        return f"{sources.get(name[0], name[0])}.{name[1]}".removesuffix(".")

    @property
    def rereads(self) -> bool:
        """True if files are read even if their stamp is right."""
        return bool(self.by_difference and self.by_difference.reread)

    def not_replicated_in(self, database: str) -> list[NotReplicated]:
        """Returns the objects of a database, by its name on the target, that the dump cannot bring."""
        sources = {source for source, name in self.placement.databases.items() if name == database}
        return [each for each in self.not_replicated if each.object.partition(".")[0] in sources]

    def is_uncaptured(self, lineage: Lineage, partition: str = "") -> bool:
        """Returns True if the source's files of a table (or of one partition) could not be captured: the target's files
        remain. A table with such a partition is not uncaptured itself."""
        table = ".".join(lineage.now) if lineage.now else ""
        return bool({(table, ""), (table, partition)} & self._uncaptured)

    def has_uncaptured(self, lineage: Lineage) -> bool:
        """Returns True if a table, or any partition of it, is uncaptured."""
        return lineage.now is not None and ".".join(lineage.now) in {table for table, _ in self._uncaptured}

    @cached_property
    def _uncaptured(self) -> frozenset[tuple[str, str]]:
        return frozenset((each.object, each.partition) for each in self.metadata.not_replicated if each.unknown)

    @property
    def not_replicated(self) -> list[NotReplicated]:
        """Objects that the target will not have as the source has them: as recorded in the dump, and those left out."""
        metadata = self.metadata
        said = [each for each in metadata.not_replicated if each.unknown or each.object not in metadata.formats]
        named = {".".join(each.lineage.now): each.reason for each in self.left_out if each.lineage.now}
        formats = ({} if self.as_they_are else metadata.formats) | named
        return merged(self.lacked, said, (NotReplicated(name, reason) for name, reason in formats.items()))

    @property
    def replaces_commits(self) -> bool:
        """True if commits that others made to Delta tables of the target are moved to its `$cmroot`: the operator
        requested the source's state, whatever the target has."""
        difference = self.by_difference
        return self.overwrite or self.exact or bool(difference and (difference.reread or difference.drop_extra))

    @property
    def changes_shown(self) -> bool:
        """True if it changes data that is already visible to readers of the target. A file copied into a table's
        directory is visible at once, so a load that cannot finish must not begin."""
        return bool(self.drops) or any(step.exists for step in self.tables)

    def file_rules(self) -> FileRules:
        """Returns the rules for tasks: every table by each of its names."""
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
