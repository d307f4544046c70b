"""Restore: a database, or tables of it, as at an event or a time, from the captured log and `$cmroot`.

A bootstrap dump of that state is loaded under another name, so all guarantees of a load apply here, too. Every file of
the state is looked for before the target is changed. Bytes are copied, never shared with the live table, and the result
is a plain database, not a replica.
"""

from __future__ import annotations

import os
import time as clocks
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from cmroot.root import ChangeRoot
from cmroot.store.place import is_local, local_path
from replicator.core.model import Database
from replicator.core.not_replicated import INCOMPLETE, CopyCounts, NotReplicated
from replicator.core.roles import after_restore, mark_of
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import FilesMissing, ObjectExists, Refused
from replicator.metastore.client import Metastore
from replicator.replay.apply.load import load
from replicator.replay.places.placement import uri
from replicator.replay.places.replica import RESTORING, own_parameters
from replicator.replay.restore.available import moment_text
from replicator.replay.restore.plan import DecidedRestore, RestoreSettings, planned


@dataclass
class Restored(CopyCounts):
    """The result of a restore. `event`, `position`, `time`: the recovery point; `partitions`: the restored ones, if
    only some were; `files`, `bytes`: of the state; `dropped`: tables of an existing database that the state did not
    have; `missing`: the first of `files_missing` files that exist nowhere; `not_replicated`: tables that were not
    restored."""

    before: ClassVar[str] = "files_missing"
    db: str
    into: str
    target: str
    event: int
    position: int
    time: str
    status: str = "restored"
    tables: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    files_missing: int = 0
    bytes_missing: int = 0
    missing: list[dict[str, Any]] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def carry_out(plan: DecidedRestore, target: Metastore, runtime: Runtime) -> Restored:
    """Executes a plan. A restore that was killed is run again.

    Raises FilesMissing before any change if bytes exist nowhere (unless that is allowed), otherwise as a load."""
    began = clocks.monotonic()
    missing, metadata = plan.available.missing, plan.reader.metadata
    if missing.files and not plan.options.allow_missing:
        raise _files_missing(plan)
    _begin(plan, target)
    loaded = load(plan.reader.place, target, plan.options, runtime)
    _make_plain(plan, target)
    report = Restored(
        db=metadata.scope.databases[0],
        into=plan.into,
        target=target.uri,
        event=plan.point.event,
        position=plan.point.position,
        time=moment_text(plan.point),
        status=INCOMPLETE if missing.files or loaded.not_replicated else "restored",
        tables=plan.tables,
        partitions=plan.partitions,
        not_replicated=loaded.not_replicated,
        files=metadata.files,
        bytes=metadata.bytes,
        files_missing=missing.files,
        bytes_missing=missing.bytes,
        missing=plan.available.named,
        dropped=plan.dropped,
        warnings=plan.warnings + loaded.warnings,
        seconds=round(clocks.monotonic() - began, 3),
    )
    report.count(loaded)
    return report


def _files_missing(plan: DecidedRestore) -> FilesMissing:
    missing, first = plan.available.missing, plan.available.named[0]
    return FilesMissing(
        f"{count_text(missing.files, 'file')} ({count_text(missing.bytes, 'byte')}) of event {plan.point.event} "
        f"found nowhere any more, the first: "
        f"{first['file']} of {first['object']}: {first['reason']}",
        hint="nothing was done; choose another moment or other tables, or --allow-missing to restore the rest; "
        "--dry-run lists them",
        details={"files_missing": missing.files, "bytes_missing": missing.bytes, "missing": plan.available.named},
    )


def _begin(plan: DecidedRestore, target: Metastore) -> None:
    """Creates the database with the mark by which a repeated restore recognises it; ends the role of a replica."""
    mark = {RESTORING: plan.key}
    if plan.existing is None:
        begun = (record.change.creates for record in plan.reader.records())
        then = next(each for each in begun if isinstance(each, Database))
        if is_local(plan.location):
            os.makedirs(local_path(plan.location), exist_ok=True)
        made = Database(
            name=plan.into,
            description=then.description,
            location=uri(plan.location),
            parameters=own_parameters(then.parameters) | mark,
            owner=then.owner,
            owner_type=then.owner_type,
        )
        try:
            target.create_database(made)
        except ObjectExists:
            raise Refused(
                f"database {plan.into} was made by another meanwhile", hint="choose another name with --into"
            ) from None
    elif plan.existing.parameters.get(RESTORING) != plan.key:
        parameters = _plain(plan.existing) | mark
        target.alter_database(plan.into, msgspec.structs.replace(plan.existing, parameters=parameters))


def _make_plain(plan: DecidedRestore, target: Metastore) -> None:
    """Removes the load's marks, the database's last: until then a repeated restore resumes."""
    for table in target.tables(plan.into, plan.tables):  # one by one: in parallel they wait for the event log's lock
        plain = own_parameters(table.parameters)
        if plain != table.parameters:
            target.alter_table(table.db, table.name, msgspec.structs.replace(table, parameters=plain))
    there = target.database(plan.into)
    target.alter_database(plan.into, msgspec.structs.replace(there, parameters=_plain(there)))


def _plain(database: Database) -> dict[str, str]:
    """Returns a database's properties without marks of replication, except the role that a restore leaves it."""
    name = f"database {database.name}"
    return own_parameters(database.parameters) | after_restore(mark_of(database.parameters, name), name).parameters()


def restore(root: ChangeRoot, target: Metastore, options: RestoreSettings, runtime: Runtime) -> Restored:
    """Plans and executes a restore; raises as `planned` and `carry_out`. May run again after a crash."""
    began = clocks.monotonic()
    with planned(root, target, options, runtime) as plan:
        report = carry_out(plan, target, runtime)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report
