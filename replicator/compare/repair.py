"""Repair: restores a replica that differs to its state as loaded, by copying only the differences.

The reference is the captured log at the target's own checkpoint: a bootstrap dump of the differing tables as of that
position is loaded by difference. So the checkpoint does not change, tables that were not touched are unaffected, and
later changes of the source are left to the next load. Bytes come from the source, or from its `$cmroot`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time as clocks
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import xxhash

from cmroot.errors import Error
from cmroot.log.captured import segments
from cmroot.root import ChangeRoot
from replicator.captures.dumps.dump import DumpSettings, temporary_dump
from replicator.captures.dumps.layout import DumpReader, Point
from replicator.captures.manifest import read_records
from replicator.compare.both_sides import Comparison
from replicator.compare.differences import Difference
from replicator.compare.verify import Verified, verify
from replicator.core.config import Brake
from replicator.core.not_replicated import (
    AS_THEY_ARE,
    INCOMPLETE,
    PROPERTY,
    LoadCounts,
    NotReplicated,
    Report,
    Rows,
    from_property,
    merged,
)
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import BootstrapNeeded, ObjectNotFound, Refused, UsageError
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.events.scope import Patterns
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings, describe, price
from replicator.replay.apply.planning import planned as planned_load
from replicator.replay.replica import LAST_ID, LOADING, POSITION, SOURCE
from replicator.replay.target import ByDifference

# ---- repaired --------------------------------------------------------------------------------------------------------
# Reports of repairs, done or planned, of one or several databases.


@dataclass
class Repaired(LoadCounts):
    """The report of a repair. `status`: same (nothing differed), repaired, different (`remaining` lists the first of
    `remaining_count` differences), or incomplete (only `not_replicated` remains: objects missing from the replica that
    no repair can add). `found`: differences before it; None if the caller named the tables. `event`, `position`: the
    target's checkpoint, before and after. `tables`: those that were examined."""

    before: ClassVar[str] = "remaining_count"
    db: str
    target: str
    event: int
    position: int
    status: str = "same"
    found: int | None = None
    tables: list[str] = field(default_factory=list)
    remaining_count: int = 0
    remaining: list[Difference] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class RepairPlan(Report):
    """The plan of a repair. `found`: differences; None if the caller named the tables that differ. `event`, `position`:
    the target's checkpoint. `tables`: those to examine. `files_missing`: files whose bytes are not available."""

    status: str = field(default="planned", kw_only=True)
    db: str
    event: int
    position: int
    found: int | None
    tables: list[str]
    drop_tables: list[str] = field(default_factory=list)
    create_tables: list[str] = field(default_factory=list)
    alter_tables: list[str] = field(default_factory=list)
    files_to_copy: int = 0
    bytes_to_copy: int = 0
    files_to_remove: int = 0
    bytes_to_remove: int = 0
    partitions_to_drop: int = 0
    files_missing: int = 0
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FailedRepair:
    """A database whose repair, or its plan, failed, with the error. transient: a later run may succeed."""

    db: str
    error: str
    message: str
    hint: str
    exit_code: int
    transient: bool

    @classmethod
    def of(cls, db: str, error: Error) -> Self:
        return cls(db, type(error).__name__, error.message, error.hint, error.exit_code, error.transient)


@dataclass
class RepairedDatabases(Rows):
    """Repairs of several databases, or their plans. `status`: the worst of theirs. `failed`: databases whose repair
    failed; the others were repaired all the same."""

    listed: ClassVar[str] = "databases"

    status: str
    databases: list[Repaired | RepairPlan]
    failed: list[FailedRepair] = field(default_factory=list)

    @classmethod
    def of(cls, databases: list[Repaired | RepairPlan], failed: list[FailedRepair]) -> Self:
        states = ("same", "planned", "repaired", "incomplete", "different", "failed")
        found = [each.status for each in databases] + (["failed"] if failed else [])
        return cls(max(found, key=states.index), databases, failed)

    @property
    def failed_code(self) -> int:
        """The exit code of the worst error, one that no later run mends by itself; 0 without an error."""
        worst = min(self.failed, key=lambda each: each.transient, default=None)
        return worst.exit_code if worst else 0


# ---- repair ----------------------------------------------------------------------------------------------------------


REPAIR = "repair-"  # prefix of the id of a repair's dump, which the database contains while it is repaired


@dataclass(frozen=True)
class RepairSettings:
    """The scope and options of a repair.

    db: the database, by its source name. tables: only these, by their source names, without the database's own
    properties and functions (empty: the objects in `differing`). differing: names as in Verified.differing (None: they
    are determined by a comparison). drop_extra: tables that only the target has, and that replication did not create,
    are moved to its $cmroot. cmroot, warehouse, external, shared_external: as for the loads; a table remains at its
    location on the target. scratch: a directory for the temporary dump, which executors must be able to read (None: the
    system's). brake: the removal limit, as for a load."""

    db: str
    tables: Sequence[str] = ()
    differing: Sequence[str] | None = None
    drop_extra: bool = False
    cmroot: str | None = None
    warehouse: str | None = None
    external: str | None = None
    shared_external: bool | None = None
    source_root: str | None = None
    scratch: str | None = None
    brake: Brake | None = None


@dataclass(frozen=True)
class DecidedRepair:
    """A repair that is decided. `tables`: source names of the examined tables; `reader`: their state at the target's
    checkpoint (None: nothing differs); `load`: the settings of its load. `lacking`: what the replica is missing, as
    recorded in its database and as found."""

    comparison: Comparison
    options: RepairSettings
    point: Point
    found: Verified | None
    tables: list[str]
    reader: DumpReader | None
    load: LoadSettings
    lacking: list[NotReplicated]

    def described(self, target: Metastore, runtime: Runtime) -> RepairPlan:
        """Returns what would be changed and copied, compared by contents. Changes nothing."""
        report = RepairPlan(
            db=self.options.db,
            event=self.point.event,
            position=self.point.position,
            tables=self.tables,
            found=self.found.difference_count if self.found else None,
            not_replicated=self.lacking,
        )
        if self.reader is None:
            return report
        replay = planned_load(self.reader, target, self.load, runtime)
        cost, load = price(replay), describe(replay.plan, self.reader)
        return dataclasses.replace(
            report,
            drop_tables=load["drop_tables"],
            create_tables=load["create_tables"],
            alter_tables=load["alter_tables"],
            files_to_copy=cost.files,
            bytes_to_copy=cost.bytes,
            files_to_remove=cost.files_removed,
            bytes_to_remove=cost.bytes_removed,
            partitions_to_drop=cost.partitions_removed,
            files_missing=cost.missing,
            not_replicated=merged(self.lacking, replay.plan.not_replicated),
            warnings=load["warnings"],
        )


@contextmanager
def planned(
    root: ChangeRoot, comparison: Comparison, options: RepairSettings, runtime: Runtime
) -> Iterator[DecidedRepair]:
    """Decides a repair; the plan is valid for the duration of the block. Changes nothing on the target.

    `root`: the source's. At the levels crc and checksum, files of the right size and time are read, too. Raises
    BootstrapNeeded for a target without a checkpoint of this source, Refused for one with an unfinished load,
    ObjectNotFound for a database or named table that does not exist."""
    point, begun = _checkpoint(root, comparison, options.db)
    found = None
    names = options.tables or options.differing
    if names is None:
        found = verify(comparison, [options.db], runtime)
        names = found.differing
    tables = sorted({name.rpartition(".")[2] for name in names if name != options.db})
    chosen = LoadSettings(
        warehouse=options.warehouse,
        cmroot=options.cmroot,
        rename=[(options.db, comparison.replica(options.db))],
        map_locations=comparison.map_locations,
        external=options.external,
        shared_external=options.shared_external,
        overwrite=True,
        source_root=options.source_root or root.place,
        as_they_are=comparison.formats == AS_THEY_ARE,
        brake=options.brake,
        grants=comparison.grants,
        principals=comparison.principals,
        by_difference=ByDifference(
            reread=comparison.level in ("crc", "checksum"),
            drop_extra=options.drop_extra,
            only_tables=bool(options.tables),
        ),
    )
    lacking = merged(_said(comparison, options), found.not_replicated if found else ())
    if not names and not begun:  # a repair killed at its very end still has to remove its claim
        yield DecidedRepair(comparison, options, point, found, [], None, chosen, lacking)
        return
    with temporary_dump(
        root, "repair", _state(root, comparison, options, tables, point), runtime, options.scratch
    ) as reader:
        _require_tables(reader, options)
        yield DecidedRepair(comparison, options, point, found, tables, reader, chosen, lacking)


def carry_out(plan: DecidedRepair, target: Metastore, runtime: Runtime) -> Repaired:
    """Executes a plan, and compares again. Run a killed repair again. Raises as a load does: FilesMissing, before
    anything is changed, if bytes are neither at the source nor in its `$cmroot`."""
    began, comparison, options = clocks.monotonic(), plan.comparison, plan.options
    report = Repaired(
        db=options.db,
        target=target.uri,
        event=plan.point.event,
        position=plan.point.position,
        tables=plan.tables,
        found=plan.found.difference_count if plan.found else None,
    )
    if plan.reader is None:
        report.not_replicated = plan.lacking
        report.status = INCOMPLETE if plan.lacking else "same"
        return report
    loaded = load(plan.reader.place, target, plan.load, runtime)
    report.count(loaded)
    report.warnings = loaded.warnings
    databases = () if options.tables else [options.db]
    remaining = verify(comparison, databases, runtime, tables={options.db: plan.tables})
    report.remaining, report.remaining_count = remaining.differences, remaining.difference_count
    report.not_replicated = merged(_said(comparison, options), loaded.not_replicated, remaining.not_replicated)
    report.status = "different" if report.remaining_count else INCOMPLETE if report.not_replicated else "repaired"
    report.warnings += _reasons(plan.point, comparison.source, remaining)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def repair(
    root: ChangeRoot, comparison: Comparison, target: Metastore, options: RepairSettings, runtime: Runtime
) -> Repaired:
    """Plans and executes a repair; raises as `planned` and `carry_out` do. May run twice, and again after a crash.
    `target`: that of the comparison, for writing."""
    began = clocks.monotonic()
    with planned(root, comparison, options, runtime) as plan:
        report = carry_out(plan, target, runtime)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def differing_in(report: str | os.PathLike[str], db: str) -> list[str]:
    """Returns one database's differing names from a file of `verify --json`. Raises UsageError for any other file."""
    hint = "write it with `replicator verify --json > FILE`"
    try:
        said = json.loads(Path(report).read_text())
        found = {each["object"].partition("/")[0] for each in said["differences"]} | set(said.get("differing", ()))
        whole = "differing" in said or said["difference_count"] == len(said["differences"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{report} is not a report of verify: {error}", hint=hint) from error
    if not whole:
        raise UsageError(f"{report} does not list all differences", hint=hint)
    return sorted(name for name in found if name == db or name.startswith(f"{db}."))


# ---- the target's checkpoint, and the state there -----------------------------------------------------------------


def _checkpoint(root: ChangeRoot, comparison: Comparison, db: str) -> tuple[Point, bool]:
    """Returns the point to which the target is loaded, and True if a repair has begun and not ended."""
    name = comparison.replica(db)
    parameters = comparison.target.database(name).parameters
    position, event = (parameters.get(key, "") for key in (POSITION, LAST_ID))
    if not position.isdigit() or not event.isdigit():
        raise BootstrapNeeded(
            f"database {name} of the target has no checkpoint: its expected contents are unknown",
            hint="dump without --since and load that; files that the target already has are not copied again",
        )
    if parameters.get(SOURCE) != root.id:
        raise Refused(
            f"database {name} of the target replicates another source ($cmroot {parameters.get(SOURCE)})",
            hint="name the $cmroot that its dumps were written from",
        )
    unfinished = parameters.get(LOADING, "")
    if unfinished and not unfinished.startswith(REPAIR):
        raise Refused(
            f"the load of dump {unfinished} into {name} began, but has not ended",
            hint="run that load again, then repair",
        )
    for segment in segments(root.place):
        if segment.first <= int(position) <= segment.last:
            for record in read_records(segment, int(position) - 1, int(position)):
                return Point(record.position, int(event), record.time), bool(unfinished)
    raise BootstrapNeeded(
        f"{root.place}: the captured log does not have position {position}, that of the target",
        hint="dump without --since and load that",
    )


def _said(comparison: Comparison, options: RepairSettings) -> list[NotReplicated]:
    """Returns what the replica records as missing for the tables of a repair, and for the database as a whole."""
    there = comparison.target.database(comparison.replica(options.db))
    said = from_property(there.parameters.get(PROPERTY), options.db)
    held = Patterns.of_names(options.tables) if options.tables else comparison.patterns
    return [each for each in said if "." not in each.object or held.match(each.object.partition(".")[2])]


def _state(
    root: ChangeRoot, comparison: Comparison, options: RepairSettings, tables: Sequence[str], point: Point
) -> DumpSettings:
    """Returns the settings of the dump. Its id depends on the repair, so that a killed one is recognised."""
    filters = {name: each.text for name, each in comparison.patterns.partitions.items()}
    about = [
        root.id,
        options.db,
        comparison.replica(options.db),
        list(tables),
        bool(options.tables),
        point.position,
        filters,
    ]
    key = REPAIR + xxhash.xxh3_128_hexdigest(json.dumps(about).encode())
    patterns = Patterns.of_names(tables, comparison.patterns.partitions)
    return DumpSettings(comparison.source.uri, [options.db], patterns, until=point, id=key, empty=True)


def _require_tables(reader: DumpReader, options: RepairSettings) -> None:
    gone = sorted({*options.tables} - {table.name for table in reader.tables()})
    if gone and not options.drop_extra:
        raise ObjectNotFound(
            f"{', '.join(f'{options.db}.{name}' for name in gone)} did not exist at event {reader.metadata.end.event}, "
            "the state of the target",
            hint="the next load creates tables that are new at the source; --drop-extra drops one that "
            "only the target has",
        )


def _reasons(point: Point, source: MetastoreReader, remaining: Verified) -> Iterator[str]:
    """Yields reasons why differences may remain."""
    extra = [each.object for each in remaining.differences if each.kind == "table extra"]
    if extra:
        yield f"kept, because replication did not create them: {', '.join(extra[:10])}; --drop-extra drops them"
    if remaining.difference_count > len(extra):
        ahead = source.current_event_id() - point.event
        yield (
            f"the source is {count_text(ahead, 'event')} ahead of the target, or was changed without an event: "
            "capture and load, then compare again"
        )
