"""`verify`: compare a target with its source, all of it, or some tables in each run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cmroot.root import open_existing
from replicator.captures.events.scope import refuse_other_catalog
from replicator.commands.base import Braked, Where, names, pairs, renames, verb
from replicator.commands.of_policy import Selecting, only_one
from replicator.commands.ranges import Jobs, Natural, Positive
from replicator.compare import repair as repairs
from replicator.compare.both_sides import Comparison, Level
from replicator.compare.repair import Repaired, RepairedDatabases, RepairPlan
from replicator.compare.sampling import Budget, Sampled, memory_of, verify_sample
from replicator.compare.verify import Verified, refuse_itself
from replicator.compare.verify import verify as compare
from replicator.core.not_replicated import SUPPORTED, FormatChoice
from replicator.core.runtime import JOBS
from replicator.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Selecting):
    """Arguments:

    source, target: their metastores: a thrift URI, several separated by commas, or a configured name.
    catalog, target_catalog: of both sides, on Hive 3 and newer; None: the server's default one.
    db: a database, or several, by their names at the source.
    rename_db: names of databases on the target by those at the source, as a mapping or "A=B" texts.
    map_location: prefixes of places on the target by those at the source, likewise.
    level: how far files are compared: "metadata" (not at all), "size" (by name and size), "crc" (by the CRCs
        that HDFS keeps; other files by content), "checksum" (by content).
    sample: compare only so many tables, those compared longest ago.
    sample_bytes: the same, with a limit of bytes to read; a table that is larger is read in shares, one a run.
    target_cmroot: for samples: the target's change-management root, which remembers when each table was compared.
    formats: "supported", or "as-they-are" for tables that name their files by whole paths, too; None: the policy's,
      else "supported".
    """

    needed: ClassVar = ("source", "target", "db")
    renamed: ClassVar = {"cmroot": "target_cmroot"}

    policy: str | None = field(default=None, kw_only=False)
    source: Where = ""
    target: Where = ""
    catalog: str | None = None
    target_catalog: str | None = None
    db: str | Sequence[str] = ()
    rename_db: Mapping[str, str] | Sequence[str] = ()
    map_location: Mapping[str, str] | Sequence[str] = ()
    level: Level = "checksum"
    sample: Positive | None = None
    sample_bytes: Natural | None = None
    target_cmroot: str | None = None
    formats: FormatChoice | None = None


@verb(VerifyOptions)
def verify(options: VerifyOptions) -> Verified | Sampled:
    """Compares every object and file of both sides, read again from both; with `sample` or `sample_bytes` those of some
    tables, and in the end of all, round and round. Changes nothing; may run again at any time.

        replicator.verify(source="thrift://a:9083", target="thrift://b:9083", db="sales")
        replicator.verify("west", level="size")
        replicator.verify(source="prod", target="dr", db="sales", sample=100, target_cmroot="/cm-of-dr")

    Raises UsageError for databases that would be compared with themselves, and for a sample without `target_cmroot`;
    ObjectNotFound for a database that the source does not have; LeaseHeld while another run samples there."""
    sampling = options.sample is not None or options.sample_bytes is not None
    if sampling and options.target_cmroot is None:
        raise UsageError("--sample needs a place to remember what was compared when", hint="give --target-cmroot")
    databases, rename, of = names(options.db), renames(options.rename_db), options.settings.metastore
    mappings, patterns = pairs(options.map_location, "--map-location"), options.patterns
    refuse_itself(of(options.source), of(options.target), databases, rename)
    with (
        options.runtime() as runtime,
        options.connected(options.source) as source,
        options.connected(options.target) as target,
    ):
        both = Comparison(source, target, rename, mappings, patterns, options.level, options.formats or SUPPORTED)
        if not sampling or options.target_cmroot is None:
            return compare(both, databases, runtime)
        budget, root = Budget(options.sample, options.sample_bytes), open_existing(options.target_cmroot)
        return verify_sample(both, databases, budget, memory_of(root.place), runtime)


# ---- repair ----------------------------------------------------------------------------------------------------------
# `repair`: copy exactly what differs on a replica; or say what that would be.


@dataclass(frozen=True, kw_only=True)
class RepairOptions(Braked, Selecting):
    """Arguments:

    source, target: their metastores: a thrift URI, several separated by commas, or a configured name.
    catalog, target_catalog: of both sides, on Hive 3 and newer; None: the server's default one.
    cmroot: the source's change-management root.
    target_cmroot: the target's own root, for what the repair takes away; None: .cmroot in the warehouse.
    db: the database, by its source name; none: all of the policy, and the report is a list.
    table: only this table, or these, whether they differ or not.
    report: a file that `verify --json` wrote: what differed then is repaired, instead of comparing first.
    differing: the same as names, of a report's `differing`; None: what differs is looked for.
    rename_db: names of databases on the target by those at the source, as a mapping or "A=B" texts.
    map_location: prefixes of places on the target by those at the source, likewise.
    level: how far files are compared: "metadata" (not at all), "size" (by name and size), "crc" (by the 32-bit CRCs
      that HDFS keeps; other files by content), "checksum" (by content).
    drop_extra: take away tables that only the target has and replication did not make, too.
    warehouse: where the target's databases lie; None: its default database's directory.
    external_base: where data from outside its database's directory goes; None: external in the warehouse.
    shared_external: external tables keep their data at the source; None: those that did before.
    scratch: a directory that executors can read; None: the system's own.
    jobs: the most tables committed side by side; as many are as make it faster.
    formats: "supported", or "as-they-are" for tables that name their files by whole paths, too; None: the policy's,
      else "supported".
    dry_run: only say what would be done, compared by contents; nothing is changed.
    """

    needed: ClassVar = ("source", "target", "cmroot", "db")

    policy: str | None = field(default=None, kw_only=False)
    source: Where = ""
    target: Where = ""
    catalog: str | None = None
    target_catalog: str | None = None
    cmroot: str = ""
    target_cmroot: str | None = None
    db: str | Sequence[str] = ()
    table: str | Sequence[str] = ()
    report: str | os.PathLike[str] | None = None
    differing: Sequence[str] | None = None
    rename_db: Mapping[str, str] | Sequence[str] = ()
    map_location: Mapping[str, str] | Sequence[str] = ()
    level: Level = "checksum"
    drop_extra: bool = False
    warehouse: str | None = None
    external_base: str | None = None
    shared_external: bool | None = None
    scratch: str | None = None
    jobs: Jobs = JOBS
    formats: FormatChoice | None = None
    dry_run: bool = False


@verb(RepairOptions)
def repair(options: RepairOptions) -> Repaired | RepairPlan | RepairedDatabases:
    """Makes a replica again what it was loaded as: finds what differs from the captured log at the target's checkpoint,
    which does not move, and copies exactly that. May run twice, and again after a crash.

        replicator.repair(source="thrift://a:9083", target="thrift://b:9083", cmroot="/cm", db="sales", dry_run=True)
        replicator.repair(source="prod", target="dr", cmroot="/cm", db="sales", table="orders")
        replicator.repair("west", dry_run=True).to_arrow()

    Raises UsageError for a file that is no report of verify; BootstrapNeeded for a target without a checkpoint of this
    source; ObjectNotFound for what does not exist; Refused for a load that has not ended, and for a repair that would
    take away more than it may; LeaseHeld while a load is running; FilesMissing when bytes are nowhere to be had."""
    if options.table and options.report:
        raise UsageError("--table and --from both say what to repair", hint="give one of them")
    if not isinstance(options.db, str) and options.table:
        options = replace(options, db=only_one(options.db, options.policy))
    if not isinstance(options.db, str):
        return RepairedDatabases.of([_repaired(replace(options, db=db)) for db in options.db])
    return _repaired(options)


def _repaired(options: RepairOptions) -> Repaired | RepairPlan:
    assert isinstance(options.db, str)
    db, rename, mappings = options.db.lower(), renames(options.rename_db), pairs(options.map_location, "--map-location")
    what = repairs.RepairSettings(
        db=db,
        tables=names(options.table),
        differing=repairs.differing_in(options.report, db) if options.report else options.differing,
        drop_extra=options.drop_extra,
        cmroot=options.target_cmroot,
        warehouse=options.warehouse,
        external=options.external_base,
        shared_external=options.shared_external,
        scratch=options.scratch,
        brake=options.limits,
    )
    root = open_existing(options.cmroot)
    with (
        options.runtime(options.jobs) as runtime,
        options.connected(options.source) as source,
        options.connected(options.target) as target,
    ):
        refuse_other_catalog(root.place, source)
        both = Comparison(
            source, target, rename, mappings, options.patterns, options.level, options.formats or SUPPORTED
        )
        if options.dry_run:
            with repairs.planned(root, both, what, runtime) as plan:
                return plan.described(target, runtime)
        return repairs.repair(root, both, target, what, runtime)
