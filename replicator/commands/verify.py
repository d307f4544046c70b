"""`verify`: compare a target with its source, all of it, or some tables in each run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

from cmroot.errors import Error
from cmroot.root import open_existing
from replicator.commands.base import Braked, names, pairs, renames, verb
from replicator.commands.of_policy import Selecting, is_pattern, only_one, principals_of, selected
from replicator.commands.options import (
    CommitJobs,
    DatabaseNames,
    DryRun,
    EveryDatabase,
    ExternalBase,
    Formats,
    GrantsOption,
    LocationMap,
    OptionalPolicy,
    PrincipalNames,
    Scratch,
    SelectedDatabases,
    Source,
    SourceCatalog,
    SourceRoot,
    Target,
    TargetCatalog,
    TargetWarehouse,
)
from replicator.compare import repair as repairs
from replicator.compare.both_sides import Comparison, Level
from replicator.compare.repair import FailedRepair, Repaired, RepairedDatabases, RepairPlan
from replicator.compare.sampling import Budget, Sampled, memory_of, verify_sample
from replicator.compare.verify import Verified, refuse_itself
from replicator.compare.verify import verify as compare
from replicator.core.not_replicated import SUPPORTED
from replicator.core.option import Bytes, Positive, opt, python_only
from replicator.core.runtime import JOBS
from replicator.errors import UsageError
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import refuse_other_catalog


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Selecting):
    chooses: ClassVar = "source"
    needed: ClassVar = ("source", "target", "db")
    renamed: ClassVar = {"cmroot": "target_cmroot"}

    policy: OptionalPolicy = field(default=None, kw_only=False)
    source: Source = ""
    target: Target = ""
    catalog: SourceCatalog = None
    target_catalog: TargetCatalog = None
    db: SelectedDatabases = ()
    all_databases: EveryDatabase = False
    rename_db: DatabaseNames = ()
    map_location: LocationMap = ()
    level: Annotated[
        Level,
        opt(
            "Comparison of files: none, name and size, the 32-bit CRCs that HDFS keeps (files are not "
            "read; those of other stores are), or content."
        ),
    ] = "checksum"
    sample: Annotated[Positive | None, opt("Compare only N tables: those with the oldest comparison.", metavar="N")] = (
        None
    )
    sample_bytes: Annotated[
        Bytes | None,
        opt("The same, with a limit of bytes to read; a larger table is read in shares, one per run.", metavar="SIZE"),
    ] = None
    target_cmroot: Annotated[
        str | None,
        opt(
            "For samples: the target's change-management root, which stores the times of comparisons.", metavar="PLACE"
        ),
    ] = None
    formats: Formats = None
    grants: GrantsOption = None
    principals: PrincipalNames = ()


@verb(VerifyOptions)
def verify(options: VerifyOptions) -> Verified | Sampled:
    """Compares every object and file of both sides, read again from both; with `sample` or `sample_bytes` each run
    compares some tables, and successive runs all of them in turn. Changes nothing; may run again at any time.

        replicator.verify(source="thrift://a:9083", target="thrift://b:9083", db="sales")
        replicator.verify("west", level="size")
        replicator.verify(source="prod", target="dr", db="sales", sample=100, target_cmroot="/cm-of-dr")

    Raises UsageError for databases that would be compared with themselves, and for a sample without `target_cmroot`;
    ObjectNotFound for a database that the source does not have; LeaseHeld while another run samples with the same
    root."""
    sampling = options.sample is not None or options.sample_bytes is not None
    if sampling and options.target_cmroot is None:
        raise UsageError("--sample needs a location to remember the times of comparisons", hint="give --target-cmroot")
    databases, rename, of = names(options.db), renames(options.rename_db), options.settings.metastore
    mappings = pairs(options.map_location, "--map-location")
    refuse_itself(of(options.source), of(options.target), databases, rename)
    with (
        options.runtime() as runtime,
        options.connected(options.source) as source,
        options.connected(options.target) as target,
    ):
        both = _comparison(options, source, target, rename, mappings)
        if not sampling or options.target_cmroot is None:
            return compare(both, databases, runtime)
        budget, root = Budget(options.sample, options.sample_bytes), open_existing(options.target_cmroot)
        return verify_sample(both, databases, budget, memory_of(root.place), runtime)


def _comparison(
    options: VerifyOptions | RepairOptions,
    source: MetastoreReader,
    target: MetastoreReader,
    rename: Sequence[tuple[str, str]],
    mappings: Sequence[tuple[str, str]],
) -> Comparison:
    return Comparison(
        source,
        target,
        rename,
        mappings,
        options.patterns,
        options.level,
        options.formats or SUPPORTED,
        options.grants != "ignore",
        principals_of(options.principals),
    )


# ---- repair ----------------------------------------------------------------------------------------------------------
# `repair`: copies the differences of a replica; a dry run lists them.


@dataclass(frozen=True, kw_only=True)
class RepairOptions(Braked, Selecting):
    chooses: ClassVar = "source"
    within: ClassVar = True
    needed: ClassVar = ("source", "target", "cmroot", "db")

    policy: OptionalPolicy = field(default=None, kw_only=False)
    source: Source = ""
    target: Target = ""
    catalog: SourceCatalog = None
    target_catalog: TargetCatalog = None
    cmroot: SourceRoot = ""
    target_cmroot: Annotated[
        str | None,
        opt(
            "The target's change-management root, which keeps removed files; default: .cmroot in the warehouse.",
            metavar="PLACE",
        ),
    ] = None
    db: SelectedDatabases = ()
    all_databases: EveryDatabase = False
    table: Annotated[
        str | Sequence[str], opt("Only this table, even without a difference; repeatable.", metavar="NAME")
    ] = ()
    report: Annotated[
        str | os.PathLike[str] | None,
        opt(
            "Output of `verify --json`: repair its differences instead of comparing first.",
            "--from",
            metavar="FILE",
            exists=True,
        ),
    ] = None
    differing: Annotated[
        Sequence[str] | None,
        python_only("The objects to repair, as in a report's `differing`; None: they are searched for."),
    ] = None
    rename_db: DatabaseNames = ()
    map_location: LocationMap = ()
    level: Annotated[
        Level, opt("Comparison of files: none, name and size, the 32-bit CRCs that HDFS keeps, or content.")
    ] = "checksum"
    drop_extra: Annotated[
        bool,
        opt(
            "Also drop tables that only the target has and replication did not create; their data is "
            "moved to the target's root."
        ),
    ] = False
    warehouse: TargetWarehouse = None
    external_base: ExternalBase = None
    shared_external: Annotated[
        bool | None, python_only("External tables leave their data at the source; None: as in earlier loads.")
    ] = None
    scratch: Scratch = None
    jobs: CommitJobs = JOBS
    formats: Formats = None
    grants: GrantsOption = None
    principals: PrincipalNames = ()
    dry_run: DryRun = False

    def complete(self) -> Self:
        """Makes a single name the one database of the report."""
        given = () if isinstance(self.db, str) else tuple(self.db)
        if len(given) == 1 and not is_pattern(given[0]):
            return replace(self, db=given[0]).complete()
        return super().complete()


@verb(RepairOptions)
def repair(options: RepairOptions) -> Repaired | RepairPlan | RepairedDatabases:
    """Restores a replica to the state of its last load: finds the differences from the captured log at the target's
    checkpoint, which does not move, and copies exactly these. May run twice, and again after a crash.

        replicator.repair(source="thrift://a:9083", target="thrift://b:9083", cmroot="/cm", db="sales", dry_run=True)
        replicator.repair(source="prod", target="dr", cmroot="/cm", db="sales", table="orders")
        replicator.repair("west", dry_run=True).to_arrow()

    Raises UsageError for a file that is not a report of verify; BootstrapNeeded for a target without a checkpoint of
    this source; ObjectNotFound for objects that do not exist; Refused for an unfinished load, and for a repair that
    would exceed the limits of removals; LeaseHeld while a load is running; FilesMissing if bytes are not available
    anywhere. Of several databases, one that raises is in `failed` of the report, and the others are repaired."""
    if options.table and options.report:
        raise UsageError("--table and --from both select what to repair", hint="give one of them")
    if isinstance(options.db, str):
        with options.connected(options.source) as source:
            selected(source, [options.db])
    elif options.table:
        options = replace(options, db=only_one(options.db, options.policy))
    return _repaired(options) if isinstance(options.db, str) else _each_repaired(options, options.db)


def _each_repaired(options: RepairOptions, databases: Sequence[str]) -> RepairedDatabases:
    """Repairs several databases, also after the repair of one has failed."""
    done, failed = list[Repaired | RepairPlan](), list[FailedRepair]()
    for db in databases:
        try:
            done.append(_repaired(replace(options, db=db)))
        except Error as error:
            failed.append(FailedRepair.of(db, error))
    return RepairedDatabases.of(done, failed)


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
        both = _comparison(options, source, target, rename, mappings)
        if options.dry_run:
            with repairs.planned(root, both, what, runtime) as plan:
                return plan.described(target, runtime)
        return repairs.repair(root, both, target, what, runtime)
