"""Load: replays a dump on a target: check, plan, prepare, copy, commit, checkpoint, acknowledge, confirm.

Order (docs/design.md, invariant 7): bytes before the metadata that names them, metadata before the checkpoint, the
checkpoint before the acknowledgement. Every step may run twice, so a killed load is simply run again.
"""

from __future__ import annotations

import hashlib
import time as clocks
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import ClassVar

import msgspec

from cmroot.keep.recycle import sweep_incoming
from cmroot.lease import acquire
from cmroot.root import create_or_open
from cmroot.store.place import Place
from replicator.captures.dumps import layout
from replicator.captures.dumps.dump import confirm
from replicator.captures.dumps.layout import DumpReader
from replicator.core.audit import record_begun
from replicator.core.formats.interface import Removals
from replicator.core.logging import tell_event
from replicator.core.model import Function, Name
from replicator.core.not_replicated import INCOMPLETE, LoadCounts, NotReplicated, merged
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import CommitOutcomeUnknown, DatabaseMoved, ObjectExists, ObjectNotFound
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.events.scope import bind_catalog
from replicator.replay.apply.commit import Commit
from replicator.replay.apply.planning import LoadSettings, compare, plan_load, roots_of
from replicator.replay.apply.prepare import Preparation
from replicator.replay.apply.prune import clear_orphans, prune
from replicator.replay.apply.staging import Claims, sweep_staging
from replicator.replay.apply.table_details import ConstraintCommit, GrantCommit
from replicator.replay.apply.transactional import begin_again, end_left_locks, end_transactions, without_readers
from replicator.replay.apply.transfer import (
    Cloning,
    copy_files,
    look_again,
    missing_files,
    probe_files,
    refuse_commits_of_others,
    remove_late,
)
from replicator.replay.apply.weighing import stop_excess
from replicator.replay.apply.work import Changed, Replay, Work
from replicator.replay.placement import with_seen
from replicator.replay.plan import Plan
from replicator.replay.server_rules import NO_CONSTRAINT
from replicator.replay.squash import gathered, surviving_partitions

FEW = 50  # maximum of tables that are requested by name
NAME_BYTES = 200  # of an acknowledgement's file name: filesystems allow 255


@dataclass
class Loaded(LoadCounts):
    """The result of a load; see docs/cli.md. `missing`: files found nowhere with the recorded bytes. `not_replicated`:
    objects that differ from the source's because the dump could not bring them, by the source's names; `status` is
    "incomplete" then."""

    before: ClassVar[str] = "missing"
    dump: str
    kind: str
    from_event: int | None
    to_event: int
    status: str = "loaded"
    records: int = 0
    squashed: int = 0
    missing: list[dict[str, object]] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    spark_start_seconds: float = 0.0
    copy_seconds: float = 0.0
    commit_seconds: float = 0.0


def load(dump: str, target: Metastore, options: LoadSettings, runtime: Runtime) -> Loaded:
    """Replays a finished dump. May run twice, and again after a crash at any point.

    Raises FormatError for a dump that is unfinished or damaged; Refused and BootstrapNeeded as `make_plan` does; before
    any change, LeaseHeld if another load is running on the target, and Refused if removals exceed the options' removal
    limit; FilesMissing, before any metadata of the range is committed, if bytes are not available anywhere."""
    try:
        return _load(dump, target, options, runtime)
    except DatabaseMoved:  # it exists now: a new plan locates its tables where the metastore has put it
        return _load(dump, target, options, runtime)


def _load(dump: str, target: Metastore, options: LoadSettings, runtime: Runtime) -> Loaded:
    began = clocks.monotonic()
    reader = DumpReader(dump, options.keys)
    roots = roots_of(reader, target, options)
    if roots.data and reader.is_signed:
        from replicator.captures.dumps.data import refuse_damaged

        refuse_damaged(reader, runtime)
    root = create_or_open(roots.target).place
    with acquire(root, "load") as lease:
        lease.check()
        bind_catalog(root, target)
        sweep_incoming(root, record=partial(record_begun, root))
        unswept = dict[str, None]()
        sweep_staging(root, unswept.setdefault)
        plan = plan_load(reader, target, options)
        outcome = _outcome(plan, reader)
        outcome.warnings += unswept
        claims = Claims.of(root, lease.holder, reader.metadata.id, take_over=options.take_over)
        work = Work(plan, target, root, runtime, lease.check, claims)
        replay = Replay(plan, reader, work.target, roots, runtime, work)
        preparation, commit = Preparation(work), Commit(work)
        if plan.skipped:
            outcome.status = "already loaded"
            preparation.sweep_marks()  # a crash may have happened right after the checkpoint
        else:
            work.may_begin()
            compare(replay)
            refuse_commits_of_others(plan)
            end_left_locks(plan, replay.target)
            begin_again(plan, replay.target)
            if not options.allow_missing:
                probe_files(replay)
            if options.brake is not None and not options.exact and _may_remove(plan):
                stop_excess(replay, options.brake)
            details = (ConstraintCommit(work), GrantCommit(work)) if _has_details(plan) else None
            if details:
                details[0].remember()
            preparation.prepare()
            Cloning(work).carry(surviving_partitions(plan.squashed, reader.records()) if plan.back else iter(()))
            lease.check()
            pruned = prune(replay, Removals.COPY)
            lease.check()
            orphans = clear_orphans(replay)
            copying = clocks.monotonic()
            copied = copy_files(replay, lease.check, allow_missing=options.allow_missing)
            outcome.count(copied)
            outcome.missing = missing_files(copied)
            lease.check()
            late = prune(replay, Removals.LOG)
            outcome.copy_seconds = round(clocks.monotonic() - copying, 3)
            lease.check()
            _commit(replay, commit, details, copied.late, outcome)
            rest = plan.stays.found or plan.stays.lacking
            stays = plan.stays.not_replicated(plan.placement.databases) if rest else []
            outcome.not_replicated = merged(stays, plan.not_replicated, commit.dangling())
            outcome.status = INCOMPLETE if outcome.not_replicated else "loaded"
            outcome.objects_changed = work.changed.objects + pruned.partitions
            outcome.files_removed += work.changed.recycled + pruned.files + late.files + orphans
            outcome.warnings += plan.warnings + pruned.warnings + late.warnings
        lease.check()
        _acknowledge(reader, target, plan)
    if warning := confirm(reader.metadata, reader.place, roots.source, runtime.clock):
        outcome.warnings.append(warning)
    outcome.spark_start_seconds = round(runtime.engines.start_seconds, 3)
    outcome.seconds = round(clocks.monotonic() - began, 3)
    tell_event(outcome.status, reader.metadata.end.event, reader.metadata.end.position)
    return outcome


def _outcome(plan: Plan, reader: DumpReader) -> Loaded:
    metadata, lacking = reader.metadata, plan.not_replicated
    return Loaded(
        dump=reader.place,
        kind=metadata.kind,
        from_event=metadata.begin.event if metadata.begin else None,
        to_event=metadata.end.event,
        records=plan.squashed.records,
        squashed=plan.squashed.squashed,
        not_replicated=lacking,
        status=INCOMPLETE if lacking else "loaded",
    )


def _may_remove(plan: Plan) -> bool:
    """Returns True unless the load only adds: then it need not be weighed."""
    made = {step.name for step in plan.tables}
    replaced = plan.metadata.kind == layout.BOOTSTRAP and any((table.db, table.name) in made for table in plan.drops)
    return bool(plan.metadata.removed or replaced or any(step.prune and step.exists for step in plan.tables))


def _has_details(plan: Plan) -> bool:
    """Returns True if constraints or grants may change, or prevent a change of columns."""
    whole = plan.metadata.kind == layout.BOOTSTRAP and (plan.metadata.constraints or plan.metadata.grants)
    failed = any(each.reason.startswith(NO_CONSTRAINT) for each in plan.lacked)
    changed = any(
        step.lineage.constraints is not None or step.lineage.grants or step.changes_columns for step in plan.tables
    )
    return bool(whole or failed or changed or plan.drops or plan.squashed.grants or plan.squashed.roles)


def _commit(
    replay: Replay,
    commit: Commit,
    details: tuple[ConstraintCommit, GrantCommit] | None,
    late: Collection[Name | None],
    outcome: Loaded,
) -> None:
    """details: None if neither constraints nor grants change. late: tables with files that are removed last."""
    began, plan, progress = clocks.monotonic(), replay.plan, replay.runtime.progress
    commit.databases()
    if details:
        details[0].drop()
    with progress.task("commit tables", total=len(plan.tables)) as advance:
        commit.tables(advance)
    commit.left_out()
    with progress.task("commit partitions") as advance:
        commit.partitions(gathered(surviving_partitions(plan.squashed, replay.reader.records(plan.after))), advance)
    commit.flip()
    commit.statistics()
    if details:
        constraints, grants = details
        constraints.add()
        grants.apply()
    _functions(replay, commit)
    commit.recycle_left()
    end_transactions(plan, replay.target)
    with without_readers(plan, replay.target, late):
        last = prune(replay, Removals.METADATA)
        outcome.files_removed += last.files
        outcome.warnings += last.warnings
        outcome.files_removed += remove_late(replay) if late else 0
    commit.drop_databases()
    if plan.named:
        look_again(replay)
    _prove(plan, replay.target)
    commit.checkpoint()
    outcome.commit_seconds = round(clocks.monotonic() - began, 3)


def _functions(replay: Replay, commit: Commit) -> None:
    sources = {replica: source for source, replica in replay.plan.placement.databases.items()}
    for function in replay.plan.put_functions:
        name = f"{sources[function.db]}.{function.name}"
        if before := replay.plan.squashed.functions.get((sources[function.db], function.name)):
            function = with_seen(before, function, replay.plan.placement.source_locations.get(before.db))
        commit.outcomes.attempt(name, _put_function, replay.target, commit.changed, function)
    for db, name in replay.plan.drop_functions:
        commit.outcomes.attempt(f"{sources[db]}.{name}", _drop_function, replay.target, commit.changed, db, name)


def _put_function(target: Metastore, changed: Changed, function: Function) -> None:
    try:
        target.create_function(function)
    except ObjectExists:
        there = {each.name: each for each in target.functions(function.db)}.get(function.name)
        wanted = msgspec.structs.replace(function, create_time=there.create_time if there else 0)
        if there == wanted:
            return
        if there is not None and there.resources != wanted.resources:  # servers alter everything else
            target.drop_function(wanted.db, wanted.name)
            target.create_function(wanted)
        else:
            target.alter_function(wanted)
    changed.count()


def _drop_function(target: Metastore, changed: Changed, db: str, name: str) -> None:
    with suppress(ObjectNotFound):
        target.drop_function(db, name)
        changed.count()


def _prove(plan: Plan, target: Metastore) -> None:
    """Verifies tables before the checkpoint: a 2.3 server may report a change as done after rolling it back, as its
    handler ignores the result of its transaction's commit (HiveMetaStore.drop_table_core, create_table_core). Uses one
    call per database. Repeats drops of tables that still exist. Raises CommitOutcomeUnknown for a table that is not as
    planned; running the same load again repairs it."""
    made = {step.name for step in plan.tables if step.table is not None}
    dropped = {(table.db, table.name) for table in plan.drops} - made
    there = _there(target, made | dropped)
    for db, name in sorted(dropped & there):
        with suppress(ObjectNotFound):
            target.drop_table(db, name)
    wrong = made - there
    if dropped & there:
        wrong |= dropped & _there(target, dropped & there)
    if wrong:
        some = ", ".join(sorted(".".join(name) for name in wrong)[:5])
        raise CommitOutcomeUnknown(
            f"{target.uri} reported {count_text(len(wrong), 'table')} as created or dropped, but they were not: {some}",
            hint="the checkpoint was not written; run the same load again",
        )


def _there(target: Metastore, names: set[Name]) -> set[Name]:
    """Returns which of the tables exist on the target. A few are requested, for more all names are listed."""
    found: set[Name] = set()
    for db, ours in groupby(sorted(names), key=lambda name: name[0]):
        some = [name for _, name in ours]
        with suppress(ObjectNotFound):
            there = [each.name for each in target.tables(db, some)] if len(some) <= FEW else target.table_names(db)
            found |= {(db, name) for name in there}
    return found & names


def _acknowledge(reader: DumpReader, target: MetastoreReader, plan: Plan) -> None:
    """Records in the dump that this target has loaded it, for dump retention. After the checkpoint, as the last write
    of a load."""
    databases = sorted(plan.placement.databases.values())
    name = _short(
        "-".join([*databases, target.uri.replace("://", "-").replace(":", "-").replace(",", "-").replace("/", "-")])
    )
    end = reader.metadata.end
    says = {
        "format": layout.FORMAT,
        "version": layout.VERSION,
        "dump": reader.metadata.id,
        "target": target.uri,
        "databases": databases,
        "position": end.position,
        "event": end.event,
    }
    (Place(reader.place) / layout.LOADS / f"{name}.json").write_bytes(msgspec.json.encode(says) + b"\n")


def _short(name: str) -> str:
    """Returns a name short enough for stores: for very many databases its beginning, and a digest of all."""
    if len(name.encode()) <= NAME_BYTES:
        return name
    return f"{name.encode()[:100].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
