"""Load: a dump is replayed on a target: check, plan, prepare, copy, commit, checkpoint, acknowledge, confirm.

Order (docs/design.md, invariant 7): bytes before the metadata that names them, metadata before the checkpoint, the
checkpoint before the acknowledgement. Every step may run twice, so a load that was killed is simply run again.
"""

from __future__ import annotations

import os
import time as clocks
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa

from cmroot.lease import acquire
from cmroot.place import is_local, join, local_path, normal, store_for
from cmroot.recycle import sweep_incoming
from cmroot.root import create_or_open
from replicator.dump import layout
from replicator.dump.reader import DumpReader
from replicator.dump.slots import confirm
from replicator.engine import AutoEngine
from replicator.errors import BootstrapNeeded, FilesMissing, UsageError
from replicator.load.admission import check_target
from replicator.load.asides import sweep_asides
from replicator.load.carrying import Carrying
from replicator.load.commit import Commit
from replicator.load.copying import Roots
from replicator.load.difference import ByDifference, stay
from replicator.load.files import COMPARE, COPY, PROBE, REMOVE, CopyReport, CopyTask, FileRules, run_copy_task
from replicator.load.gathering import gathered
from replicator.load.isolation import isolate, touched_objects
from replicator.load.placement import Placement
from replicator.load.plan import Plan, Sharing, looked_at, make_plan
from replicator.load.prepare import Preparation
from replicator.load.proof import prove
from replicator.load.prune import prune, surplus
from replicator.load.published import of_published_tables
from replicator.load.replica import PUBLISH
from replicator.load.squash import squash, surviving_partitions
from replicator.load.strays import clear_strays
from replicator.load.target import (
    TargetDatabase,
    database_location,
    default_warehouse,
    read_databases,
    read_part,
    read_target,
)
from replicator.load.unlike import unlike_objects
from replicator.load.work import Work
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.progress import Progress
from replicator.report import json_text

TASK_BYTES = 1 << 30  # a copy task's share, so that executors finish together and a lost one costs little
TASK_FILES = 20_000


@dataclass(frozen=True)
class LoadOptions:
    """How a load is made.

    warehouse, cmroot: the target's own (None: its default database's directory, and `.cmroot` in it).
    rename: (source database, target database) pairs. map_locations: (source prefix, target prefix) pairs.
    external: where data outside its database's directory goes (None: `external` in the warehouse; it stays if `exact`).
    overwrite: replace objects that replication did not make, or that are newer.
    jobs: tables committed side by side.
    source_root: the source's $cmroot where it is reachable under another name than the dump says.
    exact: for a restore: the target's database becomes the dump's; what it holds besides goes, whoever made it, and it
    may be the source itself.
    allow_missing: files found nowhere are left out and told, instead of FilesMissing.
    shared_external: external tables keep their data at the source, and only their metadata is loaded (None: those that
    do so on the target now).
    publish: "snapshot": what is changed goes to new directories, and the metastore flips to them (docs/decisions/0007);
    "mirror": the source's layout; None: as loads into the target's databases did before.
    by_difference: a bootstrap takes over what the target holds already, and copies only what differs (None: it copies
    all)."""

    warehouse: str | None = None
    cmroot: str | None = None
    rename: Sequence[tuple[str, str]] = ()
    map_locations: Sequence[tuple[str, str]] = ()
    external: str | None = None
    overwrite: bool = False
    jobs: int = 2
    source_root: str | None = None
    exact: bool = False
    allow_missing: bool = False
    by_difference: ByDifference | None = None
    shared_external: bool | None = None
    publish: Literal["mirror", "snapshot"] | None = None


@dataclass
class Loaded:
    """What a load did; see docs/cli.md. `missing`: files found nowhere with the recorded bytes."""

    dump: str
    kind: str
    from_event: int | None
    to_event: int
    status: str = "loaded"
    records: int = 0
    squashed: int = 0
    files_copied: int = 0
    bytes_copied: int = 0
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    files_skipped: int = 0
    files_removed: int = 0
    objects_changed: int = 0
    missing: list[dict[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    spark_start_seconds: float = 0.0
    copy_seconds: float = 0.0
    commit_seconds: float = 0.0

    __str__ = json_text


def load(dump: str, target: Metastore, options: LoadOptions, *, engine: AutoEngine, progress: Progress) -> Loaded:
    """Replays a finished dump. May run twice, and again after a crash at any point.

    Raises FormatError for a dump that is unfinished or damaged, Refused and BootstrapNeeded as `make_plan` says,
    FilesMissing, before any metadata of the range is committed, when bytes are nowhere to be had."""
    began = clocks.monotonic()
    reader = DumpReader(dump)
    root = create_or_open(options.cmroot or join(_warehouse(target, options), ".cmroot")).place
    with acquire(root, "load"):
        sweep_incoming(root)
        sweep_asides(root)
        plan = plan_load(reader, target, options)
        outcome = _outcome(plan, reader)
        work = Work(plan, target, root, engine, options.jobs)
        preparation, commit = Preparation(work), Commit(work)
        if plan.skipped:
            outcome.status = "already loaded"
            preparation.sweep_marks()  # a crash may have come right after the checkpoint
        else:
            roots = Roots(source=options.source_root or reader.metadata.root, target=root)
            compare(plan, reader, target, engine)
            if not options.allow_missing:
                _probe(reader, plan, roots, engine, progress)
            preparation.prepare()
            Carrying(work).carry(surviving_partitions(plan.squashed, reader.records()) if plan.back else iter(()))
            pruned = prune(plan, reader, target, roots, engine)
            strays = clear_strays(plan, reader, roots, engine)
            _copy(reader, plan, roots, engine, progress, outcome, allow_missing=options.allow_missing)
            _commit(reader, plan, commit, target, progress, outcome)
            outcome.objects_changed = work.changed.objects + pruned.partitions
            outcome.files_removed += work.changed.recycled + pruned.files + strays
            outcome.warnings = plan.warnings + pruned.warnings
        _acknowledge(reader, target, plan)
    if warning := confirm(reader.metadata, reader.place, options.source_root or reader.metadata.root, clocks.time):
        outcome.warnings.append(warning)
    outcome.spark_start_seconds = round(engine.start_seconds, 3)
    outcome.seconds = round(clocks.monotonic() - began, 3)
    return outcome


def plan_load(reader: DumpReader, target: MetastoreReader, options: LoadOptions) -> Plan:
    """Decides what a load does; changes nothing. The dump's parts are verified first."""
    reader.verify()
    placement = _placement(reader.metadata, target, options)
    bootstrap = reader.metadata.kind == layout.BOOTSTRAP
    names = list(placement.databases.values())
    whole = bootstrap or options.exact or options.by_difference is not None
    there = read_target(target, names) if whole else read_databases(target, names)
    snapshots = _by_snapshots(options, there, bootstrap=bootstrap)
    sharing = Sharing(False if options.exact else options.shared_external)
    if options.by_difference is not None:
        placement = stay(placement, reader.tables(), there, sharing.of, back=not snapshots)
    after = check_target(
        reader.metadata, placement, there, overwrite=options.overwrite, exact=options.exact,
        by_difference=options.by_difference is not None,
    )  # fmt: skip
    position = reader.metadata.end.position if after is None else after
    squashed = squash(
        reader.records(0 if bootstrap and after is not None else position), reader.tables(), bootstrap=bootstrap
    )
    if not whole:
        parts = looked_at(squashed, placement)
        there = {name: read_part(target, each, parts[name]) for name, each in there.items()}
        same = {each.now for each in squashed.lineages if each.now == each.before and len(each.names) == 1}
        tables = (table for table in reader.tables() if (table.db, table.name) in same)
        placement = stay(placement, tables, there, sharing.of, back=False)  # what was adopted where it lay
    placement = of_published_tables(placement, squashed)
    plan = make_plan(
        reader.metadata, squashed if after is not None else squash((), (), bootstrap=False), placement, there,
        after=position if not bootstrap else 0, overwrite=options.overwrite, exact=options.exact,
        by_difference=options.by_difference if bootstrap else None, sharing=sharing,
    )  # fmt: skip
    plan.back = plan.by_difference is not None and not snapshots
    if snapshots:
        plan.snapshot = plan.metadata.id
        if plan.by_difference is None:
            isolate(plan, touched_objects(_entries(reader), plan.file_rules()))
    if after is None:
        plan.skipped = f"the target is at position {reader.metadata.end.position} already"
    return plan


def compare(plan: Plan, reader: DumpReader, target: MetastoreReader, engine: AutoEngine) -> None:
    """Ends the planning of a load by difference that publishes by snapshots: which objects are to be published anew is
    told by what is in them. Changes nothing; may run twice."""
    if plan.snapshot and plan.by_difference is not None:
        isolate(plan, unlike_objects(plan, reader, target, engine))


def _by_snapshots(options: LoadOptions, there: Mapping[str, TargetDatabase], *, bootstrap: bool) -> bool:
    """Whether a load publishes by snapshots. Raises BootstrapNeeded where it is to keep the source's layout, and the
    target does not."""
    databases = [each.database for each in there.values() if each.database is not None]
    snapshots = sorted(each.name for each in databases if each.parameters.get(PUBLISH) == "snapshot")
    if options.exact or options.publish is None:
        return bool(snapshots) and not options.exact
    if snapshots and options.publish == "mirror" and not bootstrap:
        raise BootstrapNeeded(
            f"{', '.join(snapshots)} of the target was published by snapshots: its data lies in other directories",
            hint="a bootstrap by difference brings the source's layout back",
        )
    return options.publish == "snapshot"


def _entries(reader: DumpReader) -> Iterator[pa.Table]:
    for batch in reader.entries():
        yield pa.Table.from_batches([batch])


@dataclass(frozen=True)
class Price:
    """What a load would copy and take away: files and bytes by their contents, not as the dump names them. `missing`:
    files whose bytes are not to be had. files_from_...: where the files' bytes would come from, by name and size; those
    from the target are what its `$cmroot` keeps."""

    files: int
    bytes: int
    files_removed: int
    bytes_removed: int
    partitions_removed: int
    missing: int
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0


def price(
    plan: Plan, reader: DumpReader, target: MetastoreReader, roots: Roots, *, engine: AutoEngine, progress: Progress
) -> Price:  # fmt: skip
    """Compares every file of a dump with what lies at its place on the target. Changes nothing."""
    metadata, reread = reader.metadata, bool(plan.by_difference and plan.by_difference.reread)
    compare(plan, reader, target, engine)
    rules = plan.file_rules()
    report = _run(
        reader, rules, roots, engine, progress, metadata.files, metadata.bytes, COMPARE, reread=reread
    ) if metadata.files else CopyReport()  # fmt: skip
    extra = surplus(plan, reader, target, roots, engine)
    return Price(
        report.copied, report.bytes_copied, extra.files, extra.bytes, extra.partitions, report.missing_count,
        report.from_source, report.from_cmroot, report.from_target,
    )  # fmt: skip


def describe(plan: Plan, reader: DumpReader) -> dict[str, Any]:
    """A plan for `--dry-run`: what would be changed, and how many files and bytes are named at most."""
    return {
        "skipped": plan.skipped,
        "create_databases": [each.name for each in plan.create_databases],
        "drop_databases": plan.drop_databases,
        "drop_tables": [f"{table.db}.{table.name}" for table in plan.drops],
        "rename_tables": [f"{'.'.join(s.rename_from)} -> {'.'.join(s.name)}" for s in plan.tables if s.rename_from],
        "create_tables": [".".join(step.name) for step in plan.tables if not step.exists],
        "alter_tables": [".".join(step.name) for step in plan.tables if step.exists],
        "functions": [f"{each.db}.{each.name}" for each in plan.put_functions],
        "drop_functions": [".".join(name) for name in plan.drop_functions],
        "partitions_touched": sum(
            len(named) for _, named in surviving_partitions(plan.squashed, reader.records(plan.after))
        ),
        "files": 0 if plan.skipped else reader.metadata.files,
        "bytes": 0 if plan.skipped else reader.metadata.bytes,
        "files_to_remove": 0 if plan.skipped else reader.metadata.removed,
        "locations": {
            ".".join(step.name): step.table.location for step in plan.tables if step.table and step.table.location
        },
        "warnings": plan.warnings,
    }


def _warehouse(target: MetastoreReader, options: LoadOptions) -> str:
    return normal(options.warehouse or default_warehouse(target))


def _placement(metadata: layout.DumpMetadata, target: MetastoreReader, options: LoadOptions) -> Placement:
    renames = dict(options.rename)
    unknown = set(renames) - set(metadata.scope.databases)
    if unknown:
        raise UsageError(
            f"--rename-db names {', '.join(sorted(unknown))}, which the dump does not hold",
            hint=f"it holds {', '.join(metadata.scope.databases)}",
        )
    names = {name: renames.get(name, name).lower() for name in metadata.scope.databases}
    if len(set(names.values())) < len(names):
        raise UsageError(
            f"--rename-db puts two databases under one name: {names}", hint="give each a name of its own on the target"
        )
    warehouse = _warehouse(target, options)
    locations = {}
    existing = set(target.database_names())
    for source, name in names.items():
        there = target.database(name).location if name in existing else None
        locations[source] = there or database_location(warehouse, name)
    external = options.external
    if external is None and not options.exact:
        external = join(warehouse, "external")
    return Placement(
        databases=names, source_locations=metadata.locations, target_locations=locations, external=external,
        mappings=tuple(options.map_locations),
    )  # fmt: skip


def _outcome(plan: Plan, reader: DumpReader) -> Loaded:
    metadata = reader.metadata
    return Loaded(
        dump=reader.place, kind=metadata.kind, from_event=metadata.begin.event if metadata.begin else None,
        to_event=metadata.end.event, records=plan.squashed.records, squashed=plan.squashed.squashed,
    )  # fmt: skip


# ---- copy ---------------------------------------------------------------------------------------------------------


def _copy(
    reader: DumpReader, plan: Plan, roots: Roots, engine: AutoEngine, progress: Progress, outcome: Loaded,
    *, allow_missing: bool,
) -> None:  # fmt: skip
    """Publishes every file, then recycles those the source removed. Raises FilesMissing, unless they are allowed."""
    began = clocks.monotonic()
    metadata = reader.metadata
    rules = plan.file_rules()
    reread, private = bool(plan.by_difference and plan.by_difference.reread), plan.snapshot is not None
    if metadata.files:
        report = _run(
            reader, rules, roots, engine, progress, metadata.files, metadata.bytes, COPY, reread=reread, private=private
        )  # fmt: skip
        outcome.files_copied, outcome.bytes_copied = report.copied, report.bytes_copied
        outcome.files_from_source, outcome.files_from_cmroot = report.from_source, report.from_cmroot
        outcome.files_from_target, outcome.files_skipped = report.from_target, report.skipped
        if report.missing_count and not allow_missing:
            raise _files_missing(report, roots)
        outcome.missing = _missing(report)
        for place in {*plan.placement.target_locations.values(), plan.placement.external}:
            if place and is_local(place) and os.path.isdir(local_path(place)):
                store_for(place).sync(place)  # once a filesystem instead of once a file
    if metadata.removed:
        report = _run(reader, rules, roots, engine, progress, metadata.removed, 0, REMOVE, private=private)
        outcome.files_removed = report.removed
    outcome.copy_seconds = round(clocks.monotonic() - began, 3)


def _probe(
    reader: DumpReader, plan: Plan, roots: Roots, engine: AutoEngine, progress: Progress
) -> None:  # fmt: skip
    """Before anything that the target shows is changed: are all bytes to be had? Raises FilesMissing."""
    metadata = reader.metadata
    if plan.changes_shown and metadata.files:
        report = _run(reader, plan.file_rules(), roots, engine, progress, metadata.files, 0, PROBE)
        if report.missing_count:
            raise _files_missing(report, roots)


_TITLES = {COPY: "copy files", REMOVE: "recycle removed files", PROBE: "look for files", COMPARE: "compare files"}


def _run(
    reader: DumpReader, rules: FileRules, roots: Roots, engines: AutoEngine, progress: Progress, files: int, size: int,
    purpose: str, *, reread: bool = False, private: bool = False,
) -> CopyReport:  # fmt: skip
    engine = engines.for_work(files, size)
    buckets = reader.buckets()
    wanted = max(engine.parallelism, size // TASK_BYTES, files // TASK_FILES)
    shares = max(1, -(-wanted // len(buckets)))
    tasks = [
        CopyTask([place], rules, roots, share, shares, purpose, reread=reread, private=private)
        for place, _ in buckets
        for share in range(shares)
    ]
    total = CopyReport()
    with progress.task(_TITLES[purpose], total=len(tasks)) as advance:
        for report in engine.run(run_copy_task, tasks):
            total.add(report)
            advance(1)
    return total


def _files_missing(report: CopyReport, roots: Roots) -> FilesMissing:
    target, position, reason = report.missing[0]
    return FilesMissing(
        f"{report.missing_count} files are neither at the source nor in {roots.source} with the recorded bytes, "
        f"the first: {target} (position {position}): {reason}",
        hint="nothing of the dump's metadata was committed; make a newer dump, which no longer names them, or restore "
        "the bytes to $cmroot; capture more often to keep bytes of short-lived files",
        details={"missing": _missing(report)},
    )


def _missing(report: CopyReport) -> list[dict[str, object]]:
    return [{"file": file, "position": position, "reason": reason} for file, position, reason in report.missing]


# ---- commit -------------------------------------------------------------------------------------------------------


def _commit(
    reader: DumpReader, plan: Plan, commit: Commit, target: Metastore, progress: Progress, outcome: Loaded
) -> None:
    began = clocks.monotonic()
    commit.databases()
    with progress.task("commit tables", total=len(plan.tables)) as advance:
        commit.tables(advance)
    with progress.task("commit partitions") as advance:
        commit.partitions(gathered(surviving_partitions(plan.squashed, reader.records(plan.after))), advance)
    commit.flip()
    commit.statistics()
    commit.functions()
    commit.drop_databases()
    prove(plan, target)
    commit.checkpoint()
    outcome.commit_seconds = round(clocks.monotonic() - began, 3)


def _acknowledge(reader: DumpReader, target: MetastoreReader, plan: Plan) -> None:
    """Tells whoever keeps dumps that this target has this one. After the checkpoint, as the last write of a load."""
    databases = sorted(plan.placement.databases.values())
    name = "-".join([*databases, target.uri.replace("://", "-").replace(":", "-").replace(",", "-").replace("/", "-")])
    end = reader.metadata.end
    says = {
        "format": layout.FORMAT, "version": layout.VERSION, "dump": reader.metadata.id, "target": target.uri,
        "databases": databases, "position": end.position, "event": end.event,
    }  # fmt: skip
    store = store_for(reader.place)
    store.write_bytes(join(reader.place, layout.LOADS, f"{name}.json"), msgspec.json.encode(says) + b"\n")
