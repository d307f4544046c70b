"""The plan: the actions of a load, decided before the first one. Pure: from a squashed range and the target's state.

For every table, a plan has the actions that prepare it (drop, rename, clear) and those that commit it, and the file
rules, by which copying tasks map file entries of the dump to paths on the target. Its size grows with the number of
tables, not of files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from cmroot.store.place import join, normal, parent, relative, tidied
from replicator.captures.dumps.layout import DumpMetadata
from replicator.core.formats import FORMATS, PLAIN, format_of
from replicator.core.formats.interface import TableFormat
from replicator.core.formats.outside import How, is_outside, outside_directory, why_outside
from replicator.core.formats.transactional_table import NO_TRANSACTIONS
from replicator.core.model import EXTERNAL, MANAGED, TRANSLATED, Database, Function, Name, Table
from replicator.core.named_files import NAMED
from replicator.core.not_replicated import NotReplicated, merged
from replicator.core.policy import Principals
from replicator.replay.placement import PUBLISHED, Placement, is_published, usual_place
from replicator.replay.replica import LEFT_OUT, Mark, has_sources_data
from replicator.replay.retired import Stays
from replicator.replay.squash import Lineage, Move, Squashed, follow
from replicator.replay.target import ByDifference, TargetDatabase

# ---- file rules ------------------------------------------------------------------------------------------------------

_PLAIN = {PLAIN.name}
EntryKey = tuple[int, str, str, str, str]
"""Position, database, table, partition and location of a file entry."""


@dataclass(frozen=True)
class PartitionRule:
    """The rule of a partition that had a name from position `begin` on. Entries before `since` are void; `now`: its
    last name; `moves`: moves of its own directory; `gone`: it was dropped."""

    begin: int
    since: int
    now: str
    moves: tuple[Move, ...] = ()
    gone: bool = False


@dataclass(frozen=True)
class TableRule:
    """The rule of a table under one of its names, from position `begin` to `end` (None: the end of the range): its
    final database and source location, the moves of its directory, and the position from which entries count. `gone`:
    none of its files are wanted. `partitions`: rules by each of their names. `name`: its last name on the target.
    `home`: the location of a partitioned table on the target, for its files that are in none of its partitions.
    `place`: the directory in which the load publishes it, with partitions below it by name (None: in the source's
    layout). `only`: the objects that are published, "" for the table's own files (None: all). `pointer`: the metadata
    file of the source to which the metastore leads its readers, or empty. `format`: the name of its format.
    `names_others`: its log names files by absolute paths."""

    begin: int
    end: int | None
    db: str
    since: int
    location: str | None
    moves: tuple[Move, ...]
    gone: bool
    partitions: dict[str, list[PartitionRule]] = field(default_factory=dict)
    name: tuple[str, str] | None = None
    place: str | None = None
    only: frozenset[str] | None = None
    home: str | None = None
    pointer: str = ""
    format: str = PLAIN.name
    names_others: bool = False

    def partition(self, name: str, position: int) -> PartitionRule | None:
        """Returns the partition that had a name at a position; None if it requires no rule."""
        candidates = [rule for rule in self.partitions.get(name, ()) if rule.begin <= position]
        return max(candidates, key=lambda rule: rule.begin, default=None)


@dataclass(frozen=True)
class FileRules:
    """The rules that map file entries to paths on the target. formats: the names of those of the load's tables.
    known: directories of the target's tables, which files of the load may name; None: they may name none."""

    placement: Placement
    tables: dict[tuple[str, str], list[TableRule]]
    after: int  # entries up to this position were loaded before
    formats: frozenset[str] = frozenset()
    known: frozenset[str] | None = None

    def places(self, position: int, db: str, table: str, partition: str, location: str) -> tuple[str, str] | None:
        """Returns the present locations of an entry's object, (source, target); None if the entry is void."""
        if table == NAMED:
            home = self.placement.target_locations.get(db)
            there = join(home, NAMED) if home and position > self.after else location
            return (location, there) if normal(there) != normal(location) else None
        found = self.rules_of(position, db, table, partition)
        if found is None:
            return None
        rule, about = found
        if rule.only is not None and (about.now if about else partition) not in rule.only:
            return None
        moves = tuple(sorted(rule.moves + about.moves)) if about else rule.moves
        now = follow(location, position, moves)
        if not partition and is_outside(now, rule.location):  # void if the format is not considered
            outside = FORMATS[rule.format].has_outside
            return (now, join(self.home(rule), outside_directory(now))) if outside else None
        if rule.home is not None and not partition:  # void at an earlier location of the table
            return (now, rule.home) if rule.location and normal(now) == normal(rule.location) else None
        if rule.place is not None:
            return now, join(rule.place, about.now if about else partition)
        return now, self.placement.inside(rule.db, rule.location, now)

    def home(self, rule: TableRule) -> str:
        """Returns the target location of a table that has a location."""
        assert rule.location is not None
        return rule.home or self.placement.inside(rule.db, rule.location, rule.location)

    def object_of(self, key: EntryKey, directory: str) -> tuple[str, EntryKey]:
        """Returns the directory of an entry's object on the target, and a key of its entries. directory: that of the
        entry. They differ for files outside of the table's location."""
        found = self.rules_of(*key[:4])
        if key[2] == NAMED or found is None or key[3] or not is_outside(key[4], found[0].location):
            return directory, key
        return self.home(found[0]), (*key[:4], found[0].location or "")

    def format_at(self, key: EntryKey) -> TableFormat:
        """Returns the format of an entry's table, as the load treats it."""
        found = self.rules_of(*key[:4]) if self.formats - _PLAIN else None
        return FORMATS[found[0].format] if found else PLAIN

    def object_at(self, position: int, db: str, table: str, partition: str) -> tuple[tuple[str, str], str] | None:
        """Returns table and partition of an entry by their last names on the target; None if none remains."""
        found = self.rules_of(position, db, table, partition)
        if found is None or found[0].name is None:
            return None
        return found[0].name, found[1].now if found[1] else partition

    def rules_of(
        self, position: int, db: str, table: str, partition: str
    ) -> tuple[TableRule, PartitionRule | None] | None:
        """Returns the rules of an entry's table and partition; None if the entry is void."""
        rule = None
        for candidate in self.tables.get((db, table), ()):
            if candidate.begin <= position and (candidate.end is None or position <= candidate.end):
                rule = candidate
        if rule is None or rule.gone or position < rule.since or position <= self.after:
            return None
        about = rule.partition(partition, position) if partition else None
        if about is not None and (about.gone or position < about.since):
            return None
        return rule, about


# ---- published -------------------------------------------------------------------------------------------------------
# Published places: where `publish = "snapshot"` stores the changes of a load, so that one call switches to them. Pure.
#
#     <database's location>/.published/<dump id>/<database>.<table>[/<partition's name>]
#
# The last component of a location is never hidden, because MapReduce would skip it. A component above it is hidden, so
# a listing of the database's directory, or of an enclosing table's, does not show unpublished files. Each load has
# directories of its own, so two loads never write into the same one. For a table that a mapping locates elsewhere,
# `.published` is next to the table.


def place_of(home: str, load: str, db: str, table: str) -> str:
    """Returns a table's directory in a load; its partitions are located below it, by their names."""
    return join(home, PUBLISHED, load, f"{db}.{table}")


def staging_of(load: str, there: Table) -> str:
    """Returns where a table in the source's layout is moved before its rename; otherwise a server would move it."""
    return place_of(parent(there.location or ""), f"{load}-renamed", there.db, there.name)


def is_moved_by_renaming(there: Table) -> bool:
    """Returns True if a server may move a table's directory when it renames it: the location follows the name."""
    return there.owns_data and there.location is not None and not is_published(there.location)


def of_kind(table: Table, *, external: bool) -> Table:
    """Returns a table as a managed or an external one, by the criteria of a server."""
    parameters = {key: value for key, value in table.parameters.items() if key not in ("EXTERNAL", TRANSLATED)}
    parameters |= {"EXTERNAL": "TRUE"} if external else {}
    return msgspec.structs.replace(table, kind=EXTERNAL if external else MANAGED, parameters=parameters)


def home_of(placement: Placement, source_db: str, usual: str) -> str:
    """Returns the directory above `.published`. `usual`: the table's location in the source's layout."""
    if is_published(usual):
        return tidied(usual).partition(f"/{PUBLISHED}/")[0]
    database = placement.target_locations[source_db]
    return tidied(database if relative(usual, database) is not None else parent(tidied(usual)))


def with_table_at(placement: Placement, table: Table, place: str) -> Placement:
    """Returns a placement that locates a source's table at a path of the target."""
    return replace(placement, mappings=((table.location or "", place), *placement.mappings))


def of_published_tables(placement: Placement, squashed: Squashed) -> Placement:
    """Returns a placement for a source that was a replica once and has tables in published places. Each is located as
    its name determines, as two tables may have had the same name in turn."""
    own = []
    for lineage in squashed.lineages:
        table = lineage.table
        if table is not None and not table.is_view and table.location and is_published(table.location):
            usual, _ = usual_place(table.location)
            own.append((table.location, placement.table(table.db, join(parent(usual), table.name))))
    return replace(placement, mappings=(*own, *placement.mappings)) if own else placement


# ---- the plan --------------------------------------------------------------------------------------------------------


@dataclass
class TablePlan:
    """One table of the target. Names are the target's. `lineage`: its changes at the source; `table`: the final
    object (None: dropped). `rename_from`: its name on the target until now. `clear`: its old data is moved to `$cmroot`
    before the new data is copied, because the dump has all of its content. `prune`: only the files that the dump does
    not have are moved. `exists`: the target has it already, under `rename_from` or its name. `shared`: its data is the
    source's, so none of it is copied or removed. `there`: the target's table.
    If a load publishes by snapshots (see `isolate`): `place`: this load's directory for it; `touched`: its
    partitions whose files change, "" for its own files; `placement`: locates it where `table` is; `replaces`: another
    table that is dropped when this one is created. `begins_again`: only its metadata is dropped before."""

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
    begins_again: bool = False

    @property
    def source(self) -> str:
        """Its name at the source, db.table."""
        return ".".join(self.lineage.now or self.name)

    @property
    def recreated(self) -> bool:
        """True if nothing of the target's table remains: all its files are in the range."""
        return self.lineage.complete and not self.prune

    @property
    def changes_columns(self) -> bool:
        there, wanted = (table.storage.columns if table and table.storage else () for table in (self.there, self.table))
        return self.there is not None and there != wanted

    @property
    def new_place(self) -> str | None:
        """The new location of the table's own data; None if it has none, or if it is unchanged."""
        if self.table is None or self.table.is_view or self.shared or not self.table.location:
            return None
        there = self.there.location if self.there is not None else None
        return None if there is not None and relative(there, self.table.location) == "" else self.table.location

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
    that way to the source's layout. `as_they_are`, `preserve`, `grants`, `principals`: see LoadOptions; `left_out`:
    tables whose files cannot be copied, and views whose SQL is not understood; the target's versions remain. `left`:
    for dropped tables, the partitions ("": the table) that were relocated away from their files before. `stays`: files
    that were to be removed but remain. `lacked`: views that earlier loads and this one leave out; objects that the
    target cannot store. `named`: earlier reports of files that name the source, of objects in the range. `there`: the
    target's databases, as read. `seen`: the `standing` of existing ones. `transactions`: the target has write ids."""

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
    grants: bool = True
    principals: Principals = field(default_factory=dict)
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
    named: list[NotReplicated] = field(default_factory=list)
    transactions: bool = True
    skipped: str = ""
    there: Mapping[str, TargetDatabase] = field(default_factory=dict)
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    @cached_property
    def mark(self) -> Mark:
        return Mark(self.metadata.end.event, self.metadata.end.position, self.metadata.root_id)

    def source_of(self, name: Name) -> str:
        """Returns the source's name of a table (without a name: the database), by its name on the target."""
        sources = {replica: source for source, replica in self.placement.databases.items()}
        return f"{sources.get(name[0], name[0])}.{name[1]}".removesuffix(".")

    def switches_itself(self, table: Table) -> bool:
        """Returns True if readers of a table see a load at once wherever it is, by its pointer or its write ids."""
        return self.format_of(table).switches_itself

    def format_of(self, table: Table | None) -> TableFormat:
        """Returns the format as which a load treats a table of the source."""
        found = format_of(table) if table else PLAIN
        unchanged = self.as_they_are and (found.translates or found.lists_places)
        return PLAIN if unchanged or table is None or found.why_left_out(table) else found

    def problem_of(self, table: str) -> str:
        """Returns why a table of the source ("db.name") is left out because of its log."""
        known, outside = self.metadata.formats.get(table, ""), self.metadata.outside.get(table)
        how = How(self.placement.mappings, self.snapshot is not None, bool(self.sharing.all), self._is_there)
        known = known if outside is None else why_outside(known, outside, how)
        return "" if self.as_they_are else known

    def _is_there(self, table: str) -> bool:
        db, _, name = table.partition(".")
        found = self.there[self.placement.database(db)].tables.get(name)
        return found is not None and LEFT_OUT not in found.parameters

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
        metadata, names = self.metadata, self.metadata.formats | self.metadata.outside
        formats = {name: why for name in names if (why := self.problem_of(name))}
        loaded = metadata.formats.keys() - formats.keys()
        known = [each for each in metadata.not_replicated if each.unknown or each.object not in loaded]
        if not (self.transactions or self.as_they_are):
            formats = formats | dict.fromkeys(metadata.transactional, NO_TRANSACTIONS)
        named = {".".join(each.lineage.now): each.reason for each in self.left_out if each.lineage.now}
        return merged(self.lacked, (NotReplicated(*each) for each in (formats | named).items()), known)

    @property
    def replaces_commits(self) -> bool:
        """True if commits that others made to Delta tables of the target are moved to its `$cmroot`: the operator
        requested the source's state, whatever the target has."""
        difference = self.by_difference
        return self.overwrite or self.exact or bool(difference and (difference.reread or difference.drop_extra))

    @property
    def changes_shown(self) -> bool:
        """True if readers see what it copies at once, so that a load that cannot finish must not begin."""
        return bool(self.drops) or any(step.exists for step in self.tables)

    def file_rules(self) -> FileRules:
        """Returns the rules for tasks: every table by each of its names."""
        rules: dict[Name, list[TableRule]] = {}
        steps = {id(step.lineage): step for step in self.tables}
        left_out = {id(each.lineage) for each in self.left_out}
        for lineage in self.squashed.lineages:
            step = steps.get(id(lineage))
            partitions: dict[str, list[PartitionRule]] = {}
            for fate in lineage.fates:
                for begin, name in fate.names:
                    rule = PartitionRule(begin, fate.since, fate.now or name, tuple(fate.moves), fate.now is None)
                    partitions.setdefault(name, []).append(rule)
            for index, called in enumerate(lineage.names):
                end = lineage.names[index + 1].begin - 1 if index + 1 < len(lineage.names) else lineage.ended
                rules.setdefault(called.name, []).append(
                    TableRule(
                        begin=called.begin,
                        end=end,
                        db=lineage.names[-1].db,
                        since=lineage.since,
                        location=lineage.table.location if lineage.table else None,
                        moves=tuple(lineage.moves),
                        gone=lineage.now is None or bool(step and step.shared) or id(lineage) in left_out,
                        partitions=partitions,
                        name=step.name if step else None,
                        place=step.place if step else None,
                        only=frozenset(step.touched) if step and step.place and step.exists else None,
                        home=step.table.location if step and step.table and step.table.has_files_by_partition else None,
                        pointer=self.format_of(lineage.table).pointer(lineage.table) if lineage.table else "",
                        format=self.format_of(lineage.table).name,
                        names_others=not self.as_they_are and ".".join(lineage.now or ()) in self.metadata.outside,
                    )
                )
        each = [rule for some in rules.values() for rule in some]
        return FileRules(self.placement, rules, self.after, frozenset(rule.format for rule in each))
