"""Planning of a restore: the state at a recovery point as a dump, its destination, conflicts, and available bytes.

Nothing is changed on the target or in `$cmroot`; the dump is stored in a scratch directory for as long as the plan is
valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import xxhash

from cmroot.log.captured import segments
from cmroot.root import ChangeRoot
from cmroot.store.place import join, located, relative, tidied
from replicator.captures.dumps.dump import DumpSettings, temporary_dump
from replicator.captures.dumps.layout import DumpReader, Point
from replicator.captures.dumps.table_moments import moments_of_dump
from replicator.core.formats import format_of
from replicator.core.model import Database
from replicator.core.not_replicated import AS_THEY_ARE, SUPPORTED, FormatChoice, NotReplicated, Report
from replicator.core.runtime import Runtime
from replicator.core.text import PartitionFilter
from replicator.errors import ObjectNotFound, Refused, UsageError
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import Patterns, refuse_other_catalog
from replicator.replay.apply.planning import LoadSettings, describe, plan_load
from replicator.replay.plan import Plan
from replicator.replay.replica import RESTORING, SOURCE
from replicator.replay.restore.available import AvailabilityTask, Available, absent, look, names_in, never_read
from replicator.replay.restore.available import chosen as chosen_partitions
from replicator.replay.restore.recovery_points import CoveredStates, covered, moment, moment_text
from replicator.replay.target import database_location, default_warehouse

OUTSIDE = "external-data"  # in the new database's directory; table names have no hyphen


@dataclass(frozen=True)
class RestoreSettings:
    """The selection and the destination of a restore.

    db, tables: the selection (no tables: all of the database). partitions: only these, of the one table. to: the
    position, event id or time. into: the database to create (None: `<db>_restored_<event>`, with the position if that
    was given). warehouse, cmroot: the target's own, as
    for a load. force: write into an existing database, also the live one; its content in the restored scope is replaced
    and moved to the target's $cmroot. allow_missing: restore without the files that exist nowhere. scratch: a directory
    for the temporary dump, which executors must be able to read (None: the system's). formats: "as-they-are" also
    restores tables of formats that name their files by absolute paths."""

    db: str
    to: str
    tables: Sequence[str] = ()
    partitions: Sequence[str] = ()
    into: str | None = None
    warehouse: str | None = None
    cmroot: str | None = None
    force: bool = False
    allow_missing: bool = False
    scratch: str | None = None
    formats: FormatChoice = SUPPORTED


@dataclass
class RestorePlan(Report):
    """The effects that a restore would have. `event`, `position`, `time`: the recovery point; `states`: how many states
    of the restored objects the requested event or time covers, of which the last is restored, and `states_from`: the
    position of the first; `files`, `bytes`: of the
    state; files_from_...: their sources; `missing`: the first of `files_missing` files that exist nowhere. Of an
    existing database, `replaced`: tables that the state has, too; `dropped`: those that it does not have; `moments`:
    the state of each table in the terms of its format, without tables that are in Hive's layout."""

    status: str = field(default="planned", kw_only=True)
    db: str
    into: str
    location: str
    event: int
    position: int
    time: str
    tables: list[str]
    files: int
    bytes: int
    files_to_copy: int
    bytes_to_copy: int
    files_from_source: int
    bytes_from_source: int
    files_from_cmroot: int
    bytes_from_cmroot: int
    files_missing: int
    bytes_missing: int
    missing: list[dict[str, Any]]
    replaced: list[str]
    dropped: list[str]
    not_replicated: list[NotReplicated]
    locations: dict[str, str]
    warnings: list[str]
    partitions: list[str] = field(default_factory=list)
    states: int = 1
    states_from: int = 0
    moments: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DecidedRestore:
    """A planned restore: the state of `db` as a dump, its destination, and the available bytes. `existing`: the
    target's database (None: to be created); `key`: identifies the restore, so that a killed one recognises its own
    database; `load`: the planned effects of the load; `warnings`: for the operator, before the restore; `covered`: the
    states that were requested; `unread`: objects whose files no capture read; `moments`: as of a RestorePlan."""

    db: str
    point: Point
    into: str
    location: str
    existing: Database | None
    key: str
    reader: DumpReader
    tables: list[str]
    partitions: list[str]
    options: LoadSettings
    available: Available
    load: dict[str, Any]
    warnings: list[str]
    covered: CoveredStates
    unread: list[NotReplicated]
    moments: dict[str, str]

    @property
    def dropped(self) -> list[str]:
        """The tables of an existing database that the state does not have."""
        again = {*self.load["create_tables"], *self.load["alter_tables"]}
        return [name for name in self.load["drop_tables"] if name not in again]

    def described(self) -> RestorePlan:
        """Returns the plan as a report for the operator."""
        there = self.available
        return RestorePlan(
            db=self.db,
            into=self.into,
            location=self.location,
            event=self.point.event,
            position=self.point.position,
            time=moment_text(self.point),
            tables=self.tables,
            partitions=self.partitions,
            files=self.reader.metadata.files,
            bytes=self.reader.metadata.bytes,
            files_to_copy=there.found.files,
            bytes_to_copy=there.found.bytes,
            files_from_source=there.source.files,
            bytes_from_source=there.source.bytes,
            files_from_cmroot=there.cmroot.files + there.version.files,
            bytes_from_cmroot=there.cmroot.bytes + there.version.bytes,
            files_missing=there.missing.files,
            bytes_missing=there.missing.bytes,
            missing=there.named,
            replaced=sorted({*self.load["drop_tables"]} - {*self.dropped}),
            dropped=self.dropped,
            not_replicated=[*(NotReplicated(**each) for each in self.load["not_replicated"]), *self.unread],
            locations=self.load["locations"],
            warnings=self.warnings,
            states=self.covered.number,
            states_from=self.covered.first,
            moments=self.moments,
        )


def tables_of(db: str, tables: Sequence[str]) -> list[str]:
    """Returns table names without their database, which may precede them. Raises UsageError for another database."""
    foreign = [name for name in tables if "." in name and name.partition(".")[0] != db]
    if foreign:
        raise UsageError(
            f"--table {foreign[0]} is not a table of --db {db}", hint="restore tables of another database separately"
        )
    return list(dict.fromkeys(name.rpartition(".")[2] for name in tables))


@contextmanager
def planned(
    root: ChangeRoot, target: MetastoreReader, options: RestoreSettings, runtime: Runtime
) -> Iterator[DecidedRestore]:
    """Plans a restore; the plan is valid inside of the block. Changes nothing on the target.

    Raises as `moment` for a state that cannot be determined, ObjectNotFound for objects that did not exist then,
    Refused for a database that exists (unless forced)."""
    log = segments(root.place)
    point = moment(log, options.db, options.to)
    into = (options.into or _name(options, point)).lower()
    key = _key(root, options, point)
    existing = _existing(target, into, options, key)
    _refuse_half(target, existing, options, key)
    if existing is not None and into == options.db:
        refuse_other_catalog(root.place, target)
    state = DumpSettings(
        str(log[-1].metadata.get("source", "")),
        [options.db],
        Patterns.parse([re.escape(name) for name in options.tables], partitions=_only(options)),
        until=point,
        id=key,
        empty=True,
    )
    with temporary_dump(root, "restore", state, runtime, options.scratch) as reader:
        tables, partitions = _tables(reader, options, point), _partitions(reader, options, point)
        location = _location(target, into, existing, options)
        live = existing is not None and relative(location, reader.metadata.locations[options.db]) == ""
        chosen = LoadSettings(
            warehouse=options.warehouse,
            cmroot=options.cmroot,
            rename=[(options.db, into)],
            external=None if live else join(location, OUTSIDE),
            overwrite=existing is not None,
            source_root=root.place,
            exact=True,
            allow_missing=options.allow_missing,
            as_they_are=options.formats == AS_THEY_ARE,
        )
        plan = plan_load(reader, target, chosen)
        yield DecidedRestore(
            db=options.db,
            point=point,
            into=into,
            location=location,
            existing=existing,
            key=key,
            reader=reader,
            tables=tables,
            partitions=partitions,
            options=chosen,
            available=_look(reader, root, runtime),
            load=describe(plan, reader),
            warnings=_warnings(existing, key) + _given_up(plan),
            covered=covered(log, options.db, options.tables, point, options.to),
            unread=never_read(log, options.db, options.tables, point),
            moments=moments_of_dump(reader),
        )


def _name(options: RestoreSettings, point: Point) -> str:
    """Returns the default name of the new database: with the event, and of a requested position with that, too."""
    position = f"_{point.position}" if options.to.startswith("@") else ""
    return f"{options.db}_restored_{point.event}{position}"


def _key(root: ChangeRoot, options: RestoreSettings, point: Point) -> str:
    """Returns the identity of the restored state in 32 hex digits: the log never changes, so neither does the state."""
    about: list[Any] = [root.id, options.db, sorted(set(options.tables)), point.position]
    about += [sorted(set(options.partitions))] if options.partitions else []
    return xxhash.xxh3_128_hexdigest(json.dumps(about).encode())


def _existing(target: MetastoreReader, into: str, options: RestoreSettings, key: str) -> Database | None:
    """Returns the target's database of this name. Raises Refused, unless forced, or if this restore has created it."""
    try:
        there = target.database(into)
    except ObjectNotFound:
        return None
    if not options.force and there.parameters.get(RESTORING) != key:
        begun = ", begun by another restore that did not finish" if RESTORING in there.parameters else ""
        raise Refused(
            f"database {into} exists in {target.uri}{begun}",
            hint="choose another name with --into, or --force to replace its tables (their data is moved to the "
            "target's $cmroot)",
        )
    return there


def _location(target: MetastoreReader, into: str, existing: Database | None, options: RestoreSettings) -> str:
    """Returns the database's location. Raises Refused for a new one in a directory that is not empty."""
    if existing is not None and existing.location:
        return existing.location
    place = database_location(tidied(options.warehouse or default_warehouse(target)), into)
    if not options.force and located(place).list():
        raise Refused(
            f"{place}, where {into} would be created, is not empty",
            hint="choose another name with --into, another location with --warehouse, or --force (files at the "
            "location of a table are then moved to the target's $cmroot)",
        )
    return place


def _tables(reader: DumpReader, options: RestoreSettings, point: Point) -> list[str]:
    """Returns the names of the restored tables. Raises ObjectNotFound if a requested one did not exist."""
    names = sorted(table.name for table in reader.tables())
    gone = sorted(set(options.tables) - set(names))
    if gone:
        raise ObjectNotFound(
            f"{', '.join(f'{options.db}.{name}' for name in gone)} did not exist at event {point.event} "
            f"({moment_text(point)})",
            hint="omit --table to restore all tables of that time; `replicator show` of the $cmroot lists its history",
        )
    return names


def _only(options: RestoreSettings) -> dict[str, PartitionFilter]:
    """Returns the filter of requested partitions by table. Raises UsageError unless they are of exactly one table."""
    if not options.partitions:
        return {}
    if len(options.tables) != 1:
        raise UsageError("--partition requires exactly one table", hint="give it with --table")
    return {f"{options.db}.{options.tables[0]}": chosen_partitions(options.partitions)}


def _refuse_half(target: MetastoreReader, existing: Database | None, options: RestoreSettings, key: str) -> None:
    """Raises Refused for partitions of a table that exists: a load restores a table completely."""
    if existing is None or not _only(options) or existing.parameters.get(RESTORING) == key:
        return
    if options.tables[0] in target.table_names(existing.name):
        raise Refused(
            f"table {existing.name}.{options.tables[0]} exists, and --partition would remove its other partitions",
            hint="restore into another database (without --into), check them there, and transfer them: INSERT "
            "OVERWRITE TABLE ... PARTITION, or ALTER TABLE ... EXCHANGE PARTITION",
        )


def _partitions(reader: DumpReader, options: RestoreSettings, point: Point) -> list[str]:
    """Returns the names of restored partitions, if only some are. Raises ObjectNotFound if one did not exist."""
    if not options.partitions:
        return []
    names = names_in(reader)
    gone = absent(options.partitions, names)
    if gone:
        raise ObjectNotFound(
            f"{', '.join(f'{options.db}.{options.tables[0]}/{name}' for name in gone)} did not exist at event "
            f"{point.event} ({moment_text(point)})",
            hint="omit it, or choose another time; `replicator show --table` lists the table's history",
        )
    return names


def _warnings(existing: Database | None, key: str) -> list[str]:
    if existing is None or SOURCE not in existing.parameters or existing.parameters.get(RESTORING) == key:
        return []
    return [
        f"{existing.name} is a replica and ceases to be one: the next load into it needs --overwrite and a bootstrap"
    ]


def _given_up(plan: Plan) -> list[str]:
    """Returns warnings for dropped tables that no later restore could bring back unchanged."""
    live = ((table, format_of(table).why_left_out(table)) for table in plan.drops) if not plan.as_they_are else ()
    return [f"{table.db}.{table.name} is replaced, and no restore brings it back: {why}" for table, why in live if why]


def _look(reader: DumpReader, root: ChangeRoot, runtime: Runtime) -> Available:
    """Looks for every file of the state."""
    found, metadata = Available(), reader.metadata
    buckets = reader.buckets() if metadata.files else []
    engine = runtime.engines.for_work(metadata.files)
    shares = max(1, -(-engine.parallelism // max(1, len(buckets))))
    tasks = [AvailabilityTask([place], root.place, share, shares) for place, _ in buckets for share in range(shares)]
    with runtime.progress.task("look for files", total=len(tasks), files=metadata.files) as advance:
        for report in engine.run(look, tasks):
            found.add(report)
            advance(1, files=report.files)
    return found
